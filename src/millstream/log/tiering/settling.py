"""What every run that moves blocks begins and ends with: trimmed objects are deleted, and what was moved is freed."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.log.backend import Backend, StoredBlock
from millstream.log.ids import IdRange
from millstream.log.reading.scan import FETCH_BYTES
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.tiering.sealed_objects import drop_objects, read_objects
from millstream.log.upkeep.trimming import free_blocks, raise_watermarks


def drop_trimmed(hot: Backend, log: str, places: ObjectPlaces) -> int:
    """Delete the objects whose messages were all trimmed, then their rows; returns how many bytes those had."""
    head = hot.head(log)
    freed = 0
    for row in read_objects(hot, log):
        if row.last_id < head.first_id:
            places.delete(row)
            freed += row.size
    if freed:
        drop_objects(hot, log, head.first_id)
    return freed


def free_moved(hot: Backend, log: str) -> int:
    """Move the hot mark over everything that was entered, and free it; returns the bytes that were freed."""
    rows = read_objects(hot, log)
    if rows:
        raise_watermarks(hot, log, hot_id=rows[-1].last_id + 1)
    return free_blocks(hot, log)


def hot_blocks(hot: Backend, log: str, ids: IdRange) -> Iterator[StoredBlock]:
    """The blocks of *ids* in the log's own store; fewer where some are missing."""
    first_id = ids.first
    while first_id <= ids.last:
        found = hot.read(log, first_id, ids.last, max_bytes=FETCH_BYTES)
        if not found:
            return
        yield from found
        first_id = found[-1].last_id + 1
