"""What Linux tells of another process of this machine."""

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
    """The process *pid*; None where it has ended, even if nobody has noticed yet, or cannot be seen from here."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    program, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] in {"Z", "X"} else Process(program, fields[0], int(fields[19]))
