"""How long tests take, as measured at each size and kept in ``tests/measured.json``: it orders and splits runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parents[1] / "measured.json"
LEAST_KEPT = 1.0
"""Seconds: functions that take less are not kept."""
UNKNOWN = 0.3
"""Seconds that a function takes which is not kept."""


def function(nodeid: str) -> str:
    """The test function of *nodeid*, whatever its parameters."""
    return nodeid.partition("[")[0]


GROWTH = 10.0
"""How much longer a function takes at the size ``long`` than at ``ci``, where it was never measured."""


@functools.cache
def read(size: str) -> Mapping[str, float]:
    """Wall seconds of all cases of a test function together, by function, at *size*."""
    kept: Mapping[str, Mapping[str, float]] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    guessed = {name: GROWTH * wall for name, wall in kept.get("ci", {}).items()} if size == "long" else {}
    return {**guessed, **kept.get(size, {})}


def record(size: str, walls: Mapping[str, float]) -> None:
    """Keep what these functions took; what is kept of others stays."""
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    rows = {**kept.get(size, {}), **{name: round(wall, 1) for name, wall in walls.items()}}
    kept[size] = {name: wall for name, wall in sorted(rows.items()) if wall >= LEAST_KEPT}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
