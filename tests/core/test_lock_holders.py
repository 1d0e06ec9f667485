"""Who holds a lock on a file, and whether that process is stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.lock_holders import describe_lock_holders, find_lock_holders
from millstream.testing.waiting import until

HOLDS = {
    "flock": "import fcntl; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX)",
    "posix": "import fcntl; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX, 8, 120)",
    "sqlite": "import sqlite3; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE')",
}


@pytest.mark.parametrize("kind", HOLDS)
def test_the_process_that_holds_a_lock_is_named_and_so_is_that_it_is_stopped(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kept"
    if kind == "sqlite":
        sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").close()
    command = [sys.executable, "-c", f"import sys; {HOLDS[kind]}; print('held', flush=True); sys.stdin.read()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        files = [path, Path(f"{path}-shm")]
        (found,) = find_lock_holders(files)
        assert (found.pid, found.stopped, found.program[:6]) == (child.pid, False, "python")
        assert describe_lock_holders(*files).startswith(
            f"process {child.pid} ({found.program}) holds its lock: wait for it"
        )
        child.send_signal(signal.SIGSTOP)
        until(lambda: find_lock_holders(files)[0].stopped, "the stop")
        assert f"kill -CONT {child.pid}" in describe_lock_holders(*files)
        child.kill()
        child.wait()
    assert find_lock_holders(files) == []
    assert "find the process with fuser" in describe_lock_holders(*files)


def test_this_process_and_files_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    with (tmp_path / "own").open("a") as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        assert str(os.getpid()) not in str(find_lock_holders([tmp_path / "own", tmp_path / "none"]))
        assert find_lock_holders([tmp_path / "own", tmp_path / "none"]) == []
