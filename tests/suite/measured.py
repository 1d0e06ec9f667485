"""How long tests take, as measured at each size and kept in ``tests/measured.json``: it orders and splits runs.

A run that measures writes to ``build/measured``, so that the parts of a long run that follow are split as it was;
``python -m suite.measured``, with ``PYTHONPATH=tests``, takes what all of them measured into the file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parents[1] / "measured.json"
RUNS = Path(__file__).parents[2] / "build" / "measured"
LEAST_KEPT = 1.0
"""Seconds: functions that take less are not kept."""
UNKNOWN = 0.3
"""Seconds that a function takes which is not kept."""
UNKNOWN_HEAVY = 20.0
"""The same for one that kills processes, uses Spark or follows documents, in a file of which nothing is kept."""


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


def record(size: str, part: str, walls: Mapping[str, float]) -> None:
    """Write down what the functions of a run of *part* (``n/m``) took."""
    RUNS.mkdir(parents=True, exist_ok=True)
    path = RUNS / f"{size}-{part.replace('/', '-of-')}.json"
    path.write_text(json.dumps({size: walls}), "utf-8")


def take(runs: Path = RUNS, kept: Path = KEPT) -> None:
    """Take what was measured in *runs* into *kept*; what *kept* says of other functions stays."""
    sizes: dict[str, dict[str, float]] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for path in sorted(runs.glob("*.json")):
        for size, walls in json.loads(path.read_text("utf-8")).items():
            rows = sizes.get(size, {}) | {name: round(wall, 1) for name, wall in walls.items()}
            sizes[size] = {name: wall for name, wall in sorted(rows.items()) if wall >= LEAST_KEPT}
        path.unlink()
    kept.write_text(json.dumps(sizes, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    take()
