"""Common steps of all runs that move blocks: seal, store, enter and free; trimmed objects are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from millstream.log.backend import Backend, Head, StoredBlock
from millstream.log.errors import DamagedLogError
from millstream.log.ids import IdRange
from millstream.log.reading.scan import FETCH_BYTES
from millstream.log.tiering.object_writer import ObjectWriter
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.tiering.sealed_objects import SealedObject, add_object, drop_objects, read_objects
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


def move_blocks(
    hot: Backend, log: str, writer: ObjectWriter, head: Head, due: Iterable[IdRange], *, stopped: Callable[[], bool]
) -> tuple[list[SealedObject], int]:
    """Make an object of *writer* of each of *due*, enter and free it; the rows, and the bytes that were freed.

    *head* is that of the log when *due* was found out. It ends when *stopped* returns True, or if another process has
    entered the same messages. Raises :class:`DamagedLogError` where blocks are damaged: they are not freed.
    """
    rows, freed = list[SealedObject](), 0
    for ids in due:
        row = None if stopped() else _enter(hot, log, writer, ids, max(ids.first, head.hot_id))
        if row is None:
            break
        rows.append(row)
        freed += free_moved(hot, log)
    return rows, freed


def _enter(hot: Backend, log: str, writer: ObjectWriter, ids: IdRange, hot_id: int) -> SealedObject | None:
    """Seal *ids*, store the object, read it back and enter it; None where another process was quicker.

    Then the hot mark has moved beyond *hot_id*: what was moved or trimmed looks like damage.
    """
    try:
        row = writer.write(ids, _hot_blocks(hot, log, ids))
    except DamagedLogError:
        if hot.head(log).hot_id > hot_id:
            return None
        raise
    return row if add_object(hot, log, row) else None


def _hot_blocks(hot: Backend, log: str, ids: IdRange) -> Iterator[StoredBlock]:
    """The blocks of *ids* in the log's own store; fewer where some are missing."""
    first_id = ids.first
    while first_id <= ids.last:
        found = hot.read(log, first_id, ids.last, max_bytes=FETCH_BYTES)
        if not found:
            return
        yield from found
        first_id = found[-1].last_id + 1
