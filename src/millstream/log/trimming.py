"""Trimming a log: the low-water mark moves first and durably, the space is freed afterwards, a share at a time."""

from __future__ import annotations

from millstream.log.backend import Backend
from millstream.log.marks import MARKS, Marks, decode_marks, encode_marks, raised

SHARE_BYTES = 16 << 20
"""About how much one transaction frees: a log that is being written waits no longer than for that."""


def raise_marks(backend: Backend, log: str, *, first_id: int = 0, hot_id: int = 0) -> Marks:
    """Move the marks of *log* up to *first_id* and *hot_id*, durably, and return them; a mark never goes back."""
    while True:
        state = backend.get_state(log, MARKS)
        present = decode_marks(state.value)
        marks = raised(present, first_id, hot_id)
        if marks == present or backend.put_state(log, MARKS, encode_marks(marks), version=state.version):
            return marks


def free_blocks(backend: Backend, log: str, *, share: int = SHARE_BYTES) -> int:
    """Free every block that lies wholly below the hot mark, in transactions of about *share* bytes.

    Returns the bytes of all of them. A crash leaves the rest for the next call.
    """
    below = backend.head(log).hot_id
    total = 0
    while freed := backend.reclaim(log, below, max_bytes=share):
        total += freed
    return total
