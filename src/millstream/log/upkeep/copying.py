"""Copying a log from one store to another: same ids, same times, same headers, read back and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from millstream.log.batch import Batch
from millstream.log.errors import DamagedLogError, LogInputError
from millstream.log.ids import IdRange
from millstream.log.log import Log

_OVERLAP = 1000  # messages that are compared before a copy is gone on with

_COPIED_METADATA = ("batching/origin", "batching/rules", "ledger/aside")
"""What the batches in a log came of: without it nobody can continue or verify the copy; and what in the log of a ledger
is no entry."""

_BATCHING = "batching"
"""The producer of logs of batches. Its sequence is copied: it says from which messages the batches were made, and
whoever batches checks it. Other producers may begin to count anew, and a copy would drop what they send."""


class LogCopyResult(msgspec.Struct, frozen=True):
    """The result of a copy: the added ids ``first_id`` to ``last_id`` (none where ``messages`` is 0)."""

    log: str
    first_id: int
    last_id: int
    messages: int


def copy_log(source: Log, target: Log, *, bodies_only: bool = False) -> LogCopyResult:
    """Add to *target* all that *source* has beyond it; what is there already must be a beginning of *source*.

    A copy of a log of batches also gets their rules, their origin and the sequence of their producer. A log that has no
    rule for trimming gets that of *source*.

    Where *source* keeps bodies alone, the copy is given receive times as it is made. Where *target* does, all else is
    left out, if *bodies_only* allows that. Where *source* was trimmed, make *target* with its ``first_id``. Every batch
    is read back from *target* and compared before the next. A copy that was interrupted is gone on with by calling this
    again. Raises :class:`LogInputError` where *target* holds something else, or ends before *source* begins,
    :class:`DamagedLogError` where it does not give back what was written, and what reader and writer raise.
    """
    if target.bodies_only and not (source.bodies_only or bodies_only):
        raise LogInputError(
            f"copying to {target.name!r} would lose source, key, headers and times, because the target "
            "stores only bodies: use --bodies to copy only the bodies"
        )
    sequence, last = _end_with_sequence(source)
    with target.writer(_BATCHING if sequence else "") as writer:
        first, counted = writer.last_id + 1, sequence > writer.sequence
        columns = ["body"] if source.bodies_only or target.bodies_only else None
        _refuse_trimmed(source, target, first)
        _refuse_other(source, target, writer.last_id, columns)
        if first <= last:  # a copy that is interrupted after its last message has the rules of that as well
            _copy_metadata(source, target, replace=True)
        for batch in source.read(first, last, columns, gaps="none"):
            is_end = counted and batch.last_id == last
            ids = writer.append(batch.arrow, sequence=sequence if is_end else None)
            if ids != batch.ids or not _same(target, batch):
                raise DamagedLogError(
                    f"ids {batch.first_id} to {batch.last_id} of the copy {target.name!r} differ from "
                    "what was written: check the disk, and copy into a new store"
                )
        done = LogCopyResult(source.name, first, writer.last_id, writer.last_id - first + 1)
        _copy_metadata(source, target, replace=done.messages > 0)
        return done


def _end_with_sequence(source: Log) -> tuple[int, int]:
    """The sequence of the producer of batches (0: none), and the last id of *source* at that sequence."""
    while True:
        sequence, last_id = source.sequence(_BATCHING), source.last_id
        if source.sequence(_BATCHING) == sequence:
            return sequence, last_id


def copy_consumers(source: Log, target: Log) -> Mapping[str, int]:
    """Copy the position of every consumer of *source* to *target*, unless it is further there; returns the
    positions."""
    for consumer, pointer in source.info().consumers.items():
        if pointer > target.pointer(consumer):
            target.set_pointer(consumer, min(pointer, target.last_id))
    return target.info().consumers


def _copy_metadata(source: Log, target: Log, *, replace: bool) -> None:
    """Read after the messages: rules are recorded before the first batch that they give.

    Without *replace* what *target* has stays: a log that was moved may have newer rules than its old copy.
    """
    for key in _COPIED_METADATA:
        value = source.metadata(key)
        if value and (replace or not target.metadata(key)):
            target.put_metadata(key, value)
    if replace and target.retention is None and source.retention is not None:
        target.set_retention(source.retention)


def _refuse_trimmed(source: Log, target: Log, next_id: int) -> None:
    first_id = source.first_id
    if next_id < first_id:
        raise LogInputError(
            f"log {source.name!r} was trimmed and begins at id {first_id}, but the copy would continue "
            f"at {next_id}: copy into a store that has no log {target.name!r}"
        )


def _refuse_other(source: Log, target: Log, last_id: int, columns: Sequence[str] | None) -> None:
    """Whatever *target* has must be what *source* has under the same ids, as far as its last messages tell."""
    ids = IdRange(max(last_id - _OVERLAP + 1, source.first_id, target.first_id), last_id)
    parts = _read(source, ids, columns)
    if source.last_id < last_id or not all(_same(target, batch) for batch in parts):
        raise LogInputError(
            f"log {target.name!r} of the target, with ids up to {last_id}, differs from the beginning of the source "
            "log: copy into a store that has no log of this name"
        )


def _read(log: Log, ids: IdRange, columns: Sequence[str] | None) -> Iterator[Batch]:
    return log.read(ids.first, ids.last, columns) if len(ids) else iter(())


def _same(target: Log, batch: Batch) -> bool:
    """Whether *target* gives back the messages of *batch*, from where it stores them."""
    target.forget_blocks()
    expected = pa.Table.from_batches([batch.arrow])
    parts = [part.arrow for part in target.read(batch.first_id, batch.last_id, expected.column_names)]
    return bool(pa.Table.from_batches(parts, expected.schema).equals(expected))
