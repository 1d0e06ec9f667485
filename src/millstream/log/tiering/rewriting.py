"""Putting one sealed object in the place of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.log.backend import StoredBlock
from millstream.log.errors import DamagedLogError
from millstream.log.ids import IdRange
from millstream.log.tiering.format import SealError, decode_index
from millstream.log.tiering.object_writer import ObjectWriter
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.tiering.seal import PART_BYTES, read_index
from millstream.log.tiering.sealed_objects import RowPage, SealedObject, read_pages, replace_objects, rewritten_suffix


def rewrite(
    places: ObjectPlaces, writer: ObjectWriter, page: RowPage, rows: Sequence[SealedObject]
) -> SealedObject | None:
    """Write the blocks of *rows*, neighbours in *page*, as one object of *writer*, enter it, and delete theirs.

    None where another process has changed the page. Raises :class:`DamagedLogError` where a block is damaged.
    """
    ids = IdRange(rows[0].first_id, rows[-1].last_id)
    try:
        row = writer.write(ids, _blocks(places, rows), rewritten_suffix(page))
    except DamagedLogError:
        if page not in read_pages(places.backend, places.log):
            return None  # another process has replaced or trimmed them, which looks like damage
        raise
    if not replace_objects(places.backend, places.log, page, rows, row):
        return None
    for old in rows:
        places.delete(old)
    return row


def _blocks(places: ObjectPlaces, rows: Sequence[SealedObject]) -> Iterator[StoredBlock]:
    for row in rows:
        objects = places.of(row)
        try:
            data = read_index(objects, row)
            entries = None if data is None else decode_index(data)
        except SealError as error:
            raise DamagedLogError(
                f"the object {row.name} of log {places.log!r} is damaged: {error}. Restore the object from a copy of "
                "its store"
            ) from error
        if entries is None:
            raise DamagedLogError(
                f"the object {row.name} of log {places.log!r} is missing: restore the object from a copy of its store"
            )
        for begin, end, part in _parts(entries):
            found = objects.read(row.name, begin, end - begin) or b""
            for first_id, last_id, offset, size in part:
                yield StoredBlock(first_id, last_id, found[offset - begin : offset - begin + size])


def _parts(entries: object) -> Iterator[tuple[int, int, list[tuple[int, int, int, int]]]]:
    """The blocks in runs of about 4 MiB: where a run begins and ends, and ids, offset and size of each block."""
    part: list[tuple[int, int, int, int]] = []
    for entry in entries[["first_id", "last_id", "offset", "bytes"]].tolist():  # type: ignore[index]
        if part and entry[2] + entry[3] - part[0][2] > PART_BYTES:
            yield part[0][2], part[-1][2] + part[-1][3], part
            part = []
        part.append(entry)
    if part:
        yield part[0][2], part[-1][2] + part[-1][3], part
