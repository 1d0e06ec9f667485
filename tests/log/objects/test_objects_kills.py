"""Writers, a trimmer, a compactor and a reader of a log in a bucket die at any request: nothing confirmed is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.testing.s3 import S3Server
from suite.sizes import sized

pytestmark = pytest.mark.crash

LOOP = Path(__file__).with_name("bucket_kill_loop.py")
TESTS = Path(__file__).parents[2]
FOLDERS = {
    "commit": "/commits/",
    "fence": "/commits/",
    "read": "/commits/",
    "epoch": "/epochs/",
    "layout": "/layout/",
    "layout read": "/layout/",
    "state": "/states/",
    "sealed": "/sealed/",
    "read sealed": "/sealed/",
    "delete": "",
}
"""What the request was for at which a process was to be killed, by the name of its object."""


@pytest.mark.smoke
def test_p1_p2_p3_p10_hold_on_moto_while_processes_are_killed(moto: S3Server) -> None:
    kill_on(moto, 3, sized(quick=4, ci=12, long=100))


@pytest.mark.long
def test_p1_p2_p3_p10_hold_on_the_versity_gateway_while_processes_are_killed(versitygw: S3Server) -> None:
    kill_on(versitygw, 5, sized(quick=4, ci=30, long=1000))


def kill_on(server: S3Server, seed: int, kills: int) -> None:
    """Kill so many processes of a log on *server*, and look at each kill and at what has come of all."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, str(LOOP), server.new_url(), str(seed), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-3000:]
    *lines, outcome = map(json.loads, done.stdout.splitlines())
    assert len(lines) == kills
    for line in lines:
        check_kill(line)
    check_outcome(outcome, kills)


def check_kill(kill: dict[str, Any]) -> None:
    """It fell where it was meant to: while the process was waiting for the answer to that request."""
    assert (kill["status"], kill["was_alive"]) == (-9, True)
    assert FOLDERS[kill["place"]] in kill["name"]
    assert (kill["answer"] > 0) == (kill["moment"] == "after"), "the server had done it, or had not got it"


def check_outcome(outcome: dict[str, Any], kills: int) -> None:
    for wrong in ("lost", "wrong", "twice", "epochs of two", "problems", "gaps", "differs"):
        assert outcome[wrong] == [], wrong
    assert outcome["in order"], "sequences follow each other without a gap"
    assert outcome["epochs"] > 1
    assert outcome["messages"] >= outcome["confirmed"]
    if kills >= 20:
        assert min(outcome["confirmed"], outcome["delivered"], outcome["sealed"]) > 0
