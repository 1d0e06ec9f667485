"""Who writes: a name for this process, by which others can tell whether it is gone."""

from __future__ import annotations

import os
import secrets
import socket

from millstream.core.processes import find_process


def new_holder() -> str:
    """A name for a holder in this process: host, process id, when the process began, and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{_begun(os.getpid())}/{secrets.token_hex(4)}"


def has_ended(holder: str) -> bool:
    """Whether the process of *holder* is known to have ended; False where that cannot be told from here."""
    host, *rest = holder.split("/")
    if host != socket.gethostname() or len(rest) != 3 or not rest[0].isdigit():
        return False
    return _begun(int(rest[0])) != rest[1]


def _begun(pid: int) -> str:
    """When the process began, in ticks since the machine did; empty where there is none."""
    found = find_process(pid)
    return "" if found is None else str(found.started)
