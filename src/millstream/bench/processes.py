"""What the processes of a benchmark take of the machine: this one and all that it started, as ``/proc`` tells."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER = 11
"""The place of the user time in ``/proc/PID/stat``, counted after the name; system, and both of waited-for children,
follow (proc_pid_stat(5))."""


class _Cpu:
    """The processor time of this process and all that it started, which grows whatever becomes of them.

    A process that nobody waits for takes its time along when it ends: what was counted of it stays counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[int, int]] = {}
        self._total = 0

    def ticks(self) -> int:
        """The ticks so far."""
        with self._lock:
            now = {pid: _cpu_ticks(pid) for pid in descendants(os.getpid())}
            nothing = (0, 0)
            own = sum(used - self._last.get(pid, nothing)[0] for pid, (used, _) in now.items())
            waited_for = sum(used - self._last.get(pid, nothing)[1] for pid, (_, used) in now.items())
            known = sum(sum(self._last[pid]) for pid in self._last.keys() - now.keys())
            self._total += max(0, own) + max(0, waited_for - known)
            self._last = now
            return self._total


_cpu = _Cpu()


def cpu_seconds() -> float:
    """Seconds of processor time so far of this process, of all that it started, and of those of them that have ended.

    It never goes back. A rate by this time does not depend on what else the machine does; it is 0.0 where there is no
    ``/proc``.
    """
    return _cpu.ticks() / _TICKS


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """Seconds of processor time so far of the processes *pids*, and of those of their children that have ended."""
    return sum(sum(_cpu_ticks(pid)) for pid in pids) / _TICKS


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


def processes_of(word: str) -> list[int]:
    """The processes that this one started, and theirs, whose command has *word* among its arguments."""
    return [pid for pid in descendants(os.getpid()) if word in _command(pid)]


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    return []


def forget_peaks() -> None:
    """Let the most memory that the driver took be counted from now on: what it prepared before is not the job's."""
    for pid in (os.getpid(), *_java()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")  # resets VmHWM (proc_pid_clear_refs(5))


def spark_memory() -> dict[str, float]:
    """The most memory in megabytes, since peaks were forgotten, of the driver (Python and Java), and of all Python
    workers now, also those of executors that this process started."""
    java = _java()
    daemons = [pid for machine in _machines(os.getpid()) for pid in children(machine) if not _is_java(pid)]
    workers = daemons + [pid for daemon in daemons for pid in children(daemon)]
    peak = sum(_status(pid, "VmHWM") for pid in (os.getpid(), *java))
    return {"driver MB": peak / 1000, "workers MB": sum(_status(pid, "RssAnon") for pid in workers) / 1000}


def _java() -> list[int]:
    return [pid for pid in children(os.getpid()) if _is_java(pid)]


def _machines(pid: int) -> list[int]:
    return [machine for machine in descendants(pid) if _is_java(machine)]


def _is_java(pid: int) -> bool:
    return "java" in _name(pid)


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


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """What the process has used, and what those of its children had that it waited for."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        user, system, user_of_children, system_of_children = map(int, fields[_USER : _USER + 4])
        return user + system, user_of_children + system_of_children
    return 0, 0


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
