"""Running ``millstream demo`` as a user does: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from millstream.testing.waiting import until

MILLSTREAM = Path(sys.executable).with_name("millstream")
OPTIONS = ("--limit", "20000")


class Run(NamedTuple):
    """A finished demo: its data folder and its figures."""

    data: Path
    figures: dict[str, Any]


def start_demo(data: Path, *options: str) -> subprocess.Popen[bytes]:
    """A demo that has just been started, in a process group of its own."""
    command = [str(MILLSTREAM), "demo", "--json", "--data", str(data), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def run_demo(data: Path, *options: str) -> dict[str, Any]:
    """The figures of a demo that went through undisturbed."""
    process = start_demo(data, *options)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err.decode()
    figures: dict[str, Any] = json.loads(out)
    return figures


def cut_short(data: Path, seconds: float, how: signal.Signals, *options: str, after: Path | None = None) -> int | None:
    """Start a demo, and send it *how* *seconds* after its folder, or *after*, is there; its return code, or None where
    it was done.

    A program that still imports its parts, which takes seconds on a busy machine, would not end as one that runs.
    """
    process, begun = start_demo(data, *options), after or data
    until(lambda: begun.exists() or process.poll() is not None, f"{begun.name} of the demo", seconds=300)
    try:
        _, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        send = os.killpg if how == signal.SIGINT else os.kill  # Ctrl-C reaches all that run in the terminal
        send(process.pid, how)
        process.communicate(timeout=60)
        return process.returncode
    assert process.returncode == 0, complaint
    return None


def stage(figures: dict[str, Any], name: str) -> dict[str, Any]:
    """The figures of one stage."""
    found: dict[str, Any] = next(row for row in figures["stages"] if row["stage"] == name)
    return found
