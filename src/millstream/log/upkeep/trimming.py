"""Trimming a log: the low-water mark moves first and durably, the space is freed afterwards, a share at a time."""

from __future__ import annotations

from millstream.log.backend import Backend
from millstream.log.watermarks import WATERMARKS, Watermarks, decode_watermarks, encode_watermarks, raised_watermarks

SHARE_BYTES = 16 << 20
"""About how much one transaction frees: a log that is being written waits no longer than for that."""


def raise_watermarks(backend: Backend, log: str, *, first_id: int = 0, hot_id: int = 0) -> Watermarks:
    """Move the marks of *log* up to *first_id* and *hot_id*, durably, and return them; a mark never goes back."""
    while True:
        state = backend.get_state(log, WATERMARKS)
        present = decode_watermarks(state.value)
        watermarks = raised_watermarks(present, first_id, hot_id)
        if watermarks == present or backend.put_state(
            log, WATERMARKS, encode_watermarks(watermarks), version=state.version
        ):
            return watermarks


def free_blocks(backend: Backend, log: str, *, share: int = SHARE_BYTES) -> int:
    """Free every block that lies wholly below the hot mark, in transactions of about *share* bytes.

    Returns the bytes of all of them. A crash leaves the rest for the next call.
    """
    below = backend.head(log).hot_id
    total = 0
    while freed := backend.reclaim(log, below, max_bytes=share):
        total += freed
    return total
