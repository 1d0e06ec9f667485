"""However often the demo is cut short, the same command ends where an undisturbed run ends."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from demo_runs import OPTIONS, Run, cut_short, run_demo, stage

from millstream.cli.demo import DEMO_FOLDER
from suite.sizes import sized
from support.commands import run_command

LOGS = ("weather", "flights", "system:ledger")

pytestmark = pytest.mark.acceptance


def outcome(data: Path, figures: dict[str, Any]) -> dict[str, Any]:
    """All that must not depend on disturbances."""
    ledger = run_command("anchor", "ledger", "--json", "--data", str(data)).out.splitlines()
    logs = [json.loads(line) for line in run_command("log", "list", "--json", "--data", str(data)).out.splitlines()]
    names = (
        "publish-weather",
        "publish-flights",
        "batch",
        "batch-flights",
        "anchor",
        "ingest",
        "duplicate",
        "sweep-2",
        "sweep-3",
        "prove",
    )
    return {
        "anchors": [json.loads(line)["anchor_string"] for line in ledger],
        "counts": {name: stage(figures, name)["counts"] for name in names},
        "rejected": [stage(figures, name)["facts"]["rejected"] for name in ("batch", "batch-flights")],
        "files": sorted(path.name for path in (data / "cas").iterdir()),
        "copies": sorted(
            str(path.relative_to(data))
            for name in ("second", "third")
            for path in (data / "stores" / name).rglob("*.py")
        ),
        "messages": {row["name"]: row["last_id"] for row in logs if row["name"] in LOGS},
    }


@pytest.mark.long
@pytest.mark.timeout(900)  # six runs of the demo, minutes each on a busy machine
def test_interrupted_and_killed_at_random_moments_it_ends_like_an_undisturbed_run(
    undisturbed: Run, tmp_path: Path
) -> None:
    """Ctrl-C once, then kills: the same command goes on after each, from where the one before it was.

    They are killed before Java has started (long size only), and when a stage that was not done is recorded.
    """
    draw, data = random.Random(11), tmp_path / "data"
    whole = undisturbed.figures["seconds"]
    early = min(8.0, 0.4 * whole)  # the undisturbed run may have been slowed down by others
    assert cut_short(data, early, signal.SIGINT, *OPTIONS) == 130
    for _ in range(sized(ci=0, long=18)):
        assert cut_short(data, draw.uniform(0.8, 4.0), signal.SIGKILL, *OPTIONS) == -signal.SIGKILL
    records = [data / DEMO_FOLDER / f"{row['stage']}.json" for row in undisturbed.figures["stages"]]
    recorded = {path.name for path in (undisturbed.data / DEMO_FOLDER).iterdir()}
    left = [path for path in records if path.name in recorded and not path.exists()][:-1]  # the last is soon the end
    assert len(left) > 2
    for record in sorted(draw.sample(left, min(sized(ci=2, long=12), len(left))), key=left.index):
        if not record.exists():  # another stage may be done between its record and its kill
            code = cut_short(data, draw.uniform(0.0, 0.5), signal.SIGKILL, *OPTIONS, after=record)
            assert code == -signal.SIGKILL
    figures = run_demo(data, *OPTIONS)
    assert outcome(data, figures) == outcome(undisturbed.data, undisturbed.figures)
