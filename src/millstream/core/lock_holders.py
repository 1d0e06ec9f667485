"""Which processes hold locks on a file, as Linux tells it, and whether they are stopped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from millstream.core.processes import find_process

_LOCKS = Path("/proc/locks")
_STOPPED = {"T", "t"}


class LockHolder(msgspec.Struct, frozen=True):
    """A process that holds a lock; ``stopped`` where it was stopped (SIGSTOP, Ctrl-Z, a debugger) and does not run."""

    pid: int
    program: str
    stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.program})"


def find_lock_holders(paths: Iterable[Path]) -> Sequence[LockHolder]:
    """The processes that hold locks on one of *paths*, this one left out; empty where the system does not say."""
    inodes = set()
    for path in paths:
        try:
            inodes.add(path.stat().st_ino)
        except OSError:
            continue
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return ()
    pids = {pid for line in lines if (pid := _pid_of(line, inodes)) and pid != os.getpid()}
    return [found for pid in sorted(pids) if (found := _look(pid)) is not None]


def describe_lock_holders(*paths: Path) -> str:
    """The holder of a lock on one of *paths* and the remedy, as the end of a sentence."""
    found = find_lock_holders(paths)
    for locker in found:
        if locker.stopped:
            return (
                f"{locker} holds its lock and is stopped, and no program can release the lock: resume it "
                f"(kill -CONT {locker.pid}) or end it (kill -9 {locker.pid}), then try again"
            )
    if found:
        return f"{', '.join(map(str, found))} holds its lock: wait for it or end it, then try again"
    return "another process holds its lock: find the process with fuser, then try again"


def _pid_of(line: str, inodes: set[int]) -> int:
    """The process of a *line* of ``/proc/locks`` about one of *inodes*; 0 for another, and for one that only waits."""
    fields = line.split()
    if "->" in fields or len(fields) < 6:
        return 0
    pid, place = fields[4], fields[5]
    return int(pid) if place.rpartition(":")[2] in map(str, inodes) and pid.isdigit() else 0


def _look(pid: int) -> LockHolder | None:
    found = find_process(pid)
    return None if found is None else LockHolder(pid, found.program, found.state in _STOPPED)
