"""What the processes of a benchmark take of the machine: this one and all that it started, as ``/proc`` tells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER = 11
"""The place of the user time in ``/proc/PID/stat``, counted after the name; system, and both of waited-for children,
follow (proc_pid_stat(5))."""


def cpu_seconds() -> float:
    """Seconds of processor time so far of this process, of all that it started, and of those of them that have ended.

    A rate by this time does not depend on what else the machine does; it is 0.0 where there is no ``/proc``.
    """
    return sum(_cpu_ticks(pid) for pid in descendants(os.getpid())) / _TICKS


def descendants(pid: int) -> Iterator[int]:
    """*pid*, its children, theirs, and so on."""
    yield pid
    for child in children(pid):
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """The processes that *pid* has started and that have not ended."""
    with contextlib.suppress(OSError):
        found = [path.read_text("ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(word) for words in found for word in words]
    return []


def forget_peaks() -> None:
    """Let the most memory that the driver took be counted from now on: what it prepared before is not the job's."""
    for pid in (os.getpid(), *_java()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")  # resets VmHWM (proc_pid_clear_refs(5))


def spark_memory() -> dict[str, float]:
    """The most memory in megabytes, since peaks were forgotten, of the driver (Python and Java), and of all Python
    workers now."""
    java = _java()
    daemons = [pid for machine in java for pid in children(machine)]
    workers = daemons + [pid for daemon in daemons for pid in children(daemon)]
    peak = sum(_status(pid, "VmHWM") for pid in (os.getpid(), *java))
    return {"driver MB": peak / 1000, "workers MB": sum(_status(pid, "RssAnon") for pid in workers) / 1000}


def _java() -> list[int]:
    return [pid for pid in children(os.getpid()) if "java" in _name(pid)]


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Keep this thread, and what it starts in the block, to *count* cores; gives how many there are then.

    All where the machine has fewer, or where its system cannot do that.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield os.cpu_count() or 1
        return
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:count])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


def _cpu_ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return sum(int(field) for field in fields[_USER : _USER + 4])
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    return ""


def _status(pid: int, figure: str) -> int:
    """A figure of a process in kilobytes; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            if line.startswith(f"{figure}:"):
                return int(line.split()[1])
    return 0
