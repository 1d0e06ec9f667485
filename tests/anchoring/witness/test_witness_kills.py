"""Writers and witnesses die at any moment, in any number: no two cosigned trees disagree, and every proof completes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from suite.sizes import sized

pytestmark = pytest.mark.crash

LOOP = Path(__file__).with_name("witness_kill_loop.py")
TESTS = Path(__file__).parents[2]


@pytest.mark.smoke
@pytest.mark.long
def test_killed_writers_and_witnesses_leave_one_history_and_complete_proofs(tmp_path: Path) -> None:
    kills = sized(quick=4, ci=20, long=500)
    path = ":".join([str(TESTS), *sys.path])
    command = [sys.executable, str(LOOP), str(tmp_path), "11", str(kills)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": path, "PATH": "", "LC_ALL": "C.UTF-8"}
    )
    assert done.returncode == 0, done.stderr
    *deaths, outcome = map(json.loads, done.stdout.splitlines())
    victims = Counter("writer" if death["victim"] == "writer" else "witness" for death in deaths)
    assert [death["status"] for death in deaths] == [-9] * kills, "each was alive when it was killed"
    assert min(victims["writer"], victims["witness"]) >= (kills // 8 or 1)
    assert outcome["inconsistent"] == outcome["shrunk"] == outcome["unproven"] == []
    assert not outcome["twice"], "each message is in one anchor"
    assert outcome["entries"] > kills
    assert min(outcome["heads"].values()) > 0, "the ledger and all witnesses have signed"
    complete = [size for name, size in outcome["newest"].items() if name != outcome["stayed_away"]]
    assert complete == [outcome["entries"]] * 2
