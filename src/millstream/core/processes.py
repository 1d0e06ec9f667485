"""Information from Linux about processes and the machine."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Process(msgspec.Struct, frozen=True):
    """A process that has not ended: its ``program``, its ``state`` as one letter, and since when it runs.

    ``started`` is in clock ticks since boot, which with its number tells it from all others of this boot.
    """

    program: str
    state: str
    started: int


def find_process(pid: int) -> Process | None:
    """The process *pid*; None where it has ended, even if it was not reaped yet, or cannot be seen from here."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    program, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] in {"Z", "X"} else Process(program, fields[0], int(fields[19]))


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
