"""Copying a log from one store to another: same ids, same times, same headers, read back and compared."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log.batch import Batch
from millstream.log.errors import DamagedLogError, LogInputError
from millstream.log.ids import IdRange
from millstream.log.log import Log

_OVERLAP = 1000  # messages that are compared before a copy is gone on with


class Copied(msgspec.Struct, frozen=True):
    """What a copy has added: the ids ``first_id`` to ``last_id`` (none where ``messages`` is 0)."""

    log: str
    first_id: int
    last_id: int
    messages: int


def copy_log(source: Log, target: Log) -> Copied:
    """Add to *target* all that *source* has beyond it; what is there already must be a beginning of *source*.

    Every batch is read back from *target* and compared before the next. A copy that was interrupted is gone on with
    by calling this again. Raises :class:`LogInputError` where *target* holds something else,
    :class:`DamagedLogError` where it does not give back what was written, and what reader and writer raise.
    """
    with target.writer() as writer:
        first, last = writer.last_id + 1, source.last_id
        _refuse_other(source, target, writer.last_id)
        for batch in source.read(first, last):
            ids = writer.append(batch.arrow)
            if ids != batch.ids or not _same(target, batch):
                raise DamagedLogError(
                    f"ids {batch.first_id} to {batch.last_id} of {target.name!r} in the copy are not what was written. "
                    "Check the disk, and copy into a new store"
                )
        return Copied(source.name, first, writer.last_id, writer.last_id - first + 1)


def _refuse_other(source: Log, target: Log, last_id: int) -> None:
    """Whatever *target* has must be what *source* has under the same ids, as far as its last messages tell."""
    ids = IdRange(max(last_id - _OVERLAP + 1, 1), last_id)
    if source.last_id < last_id or not all(_same(target, batch) for batch in _read(source, ids)):
        raise LogInputError(
            f"the log {target.name!r} in the copy, with ids up to {last_id}, is no beginning of the one to be copied; "
            "copy into a store that has no such log"
        )


def _read(log: Log, ids: IdRange) -> Iterator[Batch]:
    return log.read(ids.first, ids.last) if len(ids) else iter(())


def _same(target: Log, batch: Batch) -> bool:
    """Whether *target* gives back the messages of *batch*."""
    parts = [part.arrow for part in target.read(batch.first_id, batch.last_id)]
    found = pa.Table.from_batches(parts, MESSAGE_SCHEMA)
    return bool(found.equals(pa.Table.from_batches([batch.arrow])))
