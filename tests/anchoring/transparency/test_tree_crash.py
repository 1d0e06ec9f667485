"""A process dies between any two steps of append, tree, signature, copy and tiles, and no two checkpoints disagree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.sizes import sized

pytestmark = pytest.mark.crash

LOOP = Path(__file__).with_name("tree_crash_loop.py")
TESTS = Path(__file__).parents[2]


@pytest.mark.smoke
@pytest.mark.long
def test_no_death_leads_to_two_checkpoints_that_disagree(tmp_path: Path) -> None:
    count = sized(quick=8, ci=0, long=500)  # with 0, each step is fatal once
    undisturbed, others = run(tmp_path, count)
    steps = undisturbed["steps"]
    assert {"append 0", "append 1", "tree 1", "sign 1", "commit", "copy 0", "tile 1", "rename"} <= set(steps)
    assert len(others) == (count or len(steps))
    for result in others:
        assert result["ends"][0] == [-9, steps[result["fatal"][0] - 1]], "the first death fell where it was to fall"
        assert result["status"] == 0
        assert (result["inconsistent"], result["unproven"]) == ([], [])
        same = ("anchors", "newest", "leaves", "copied", "published")
        assert {name: result[name] for name in same} == {name: undisturbed[name] for name in same}
    assert (undisturbed["newest"], undisturbed["leaves"], undisturbed["copied"]) == (257, 257, True)


def run(folder: Path, count: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    command = [sys.executable, str(LOOP), str(folder), "7", str(count)]
    path = ":".join(filter(None, [str(TESTS), *sys.path]))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": path, "PATH": ""})
    assert done.returncode == 0, done.stderr
    undisturbed, *others = map(json.loads, done.stdout.splitlines())
    return undisturbed, others
