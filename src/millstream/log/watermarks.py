"""The marks of a log: from which id on it is kept, and from which id on its own store must hold it."""

from __future__ import annotations

import msgspec

from millstream.core.decoding import prepared

WATERMARKS = "marks"
"""The state in which a backend keeps the marks of a log; :meth:`millstream.log.backend.Backend.head` tells them too."""


class Watermarks(msgspec.Struct, frozen=True):
    """``first_id`` is the low-water mark: what lies below it is gone. Below ``hot_id`` no block is needed in the store
    of the log: what is there still may be freed, for it is trimmed or lies in a tier.
    """

    first_id: int = 1
    hot_id: int = 1


def encode_watermarks(watermarks: Watermarks) -> bytes:
    """*watermarks* as JSON, for a state."""
    return msgspec.json.encode(watermarks)


def decode_watermarks(value: bytes | None) -> Watermarks:
    """The marks in the value of a state; those of a new log where it was never written."""
    return msgspec.json.decode(value, type=prepared(Watermarks)) if value else Watermarks()


def raised_watermarks(watermarks: Watermarks, first_id: int, hot_id: int) -> Watermarks:
    """*watermarks* moved up to *first_id* and *hot_id*; a mark never goes back, and what is trimmed is not hot."""
    first_id = max(watermarks.first_id, first_id)
    return Watermarks(first_id, max(watermarks.hot_id, hot_id, first_id))
