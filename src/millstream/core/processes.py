"""Information from Linux about processes and the machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_ENDED = {"Z", "X"}


class Process(msgspec.Struct, frozen=True):
    """A process that has not ended: its ``program``, its ``state`` as one letter, and since when it runs.

    ``started`` is in clock ticks since boot, which with its number tells it from all others of this boot.
    """

    program: str
    state: str
    started: int


def find_process(pid: int) -> Process | None:
    """The process *pid*; None where it has ended, even if it was not reaped yet, or cannot be seen from here."""
    found = _read_process(pid)
    return None if found is None or found.state in _ENDED else found


def has_ended(pid: int, started: int) -> bool:
    """Whether the process *pid* that runs since *started* (clock ticks since boot) has certainly ended.

    ``/proc`` may hide processes of other users (``hidepid``, ``ProtectProc``): what it does not show has ended only if
    the number is nobody's.
    """
    found = _read_process(pid)
    if found is not None:
        return found.state in _ENDED or found.started != started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's, and runs
        pass
    return False


def _read_process(pid: int) -> Process | None:
    """What ``/proc`` shows of the process *pid*, also of one that has ended and was not reaped yet."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    program, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(program, fields[0], int(fields[19]))


def boot_id() -> str:
    """The id of this start of the machine; empty if the system does not provide it."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The id of this installation of the system; empty if it has none."""
    return _first_line("/etc/machine-id")


def pid_namespace() -> str:
    """Which processes this one shares its process ids with: those of its container; empty where that is not known."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace").strip()
    except OSError:
        return ""
