"""P7 with real deaths: the writer is killed by SIGKILL, started again, and has anchored everything exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.sizes import sized

pytestmark = pytest.mark.crash

LOOP = Path(__file__).with_name("crash_loop.py")


def deaths(folder: Path, seed: int, count: int, how: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    command = [sys.executable, str(LOOP), str(folder), str(seed), str(count), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    undisturbed, *others = map(json.loads, done.stdout.splitlines())
    assert len(others) == count
    return undisturbed, others


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.parametrize("how", ["steps", "packed", "times"])
def test_p7_a_writer_killed_at_any_point_anchors_every_batch_once(tmp_path: Path, how: str) -> None:
    undisturbed, others = deaths(tmp_path, seed=7, count=sized(quick=3, ci=7, long=400), how=how)
    assert (undisturbed["observed"], undisturbed["waiting_rejects"], undisturbed["findings"]) == (13, 0, [])
    assert len(undisturbed["anchors"]) == 3
    assert any(-9 in other["ends"] for other in others)
    assert how != "times" or all(other["ends"][0] == -9 for other in others)
    for other in others:
        assert other["ends"][-1] == 0
        same = ("anchors", "observed", "waiting_rejects", "findings", "files")
        assert {name: other[name] for name in same} == {name: undisturbed[name] for name in same}
