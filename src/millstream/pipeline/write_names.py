"""Whom the name of a write into a log belongs to: one checkpoint of a stream, or the rows of one job.

A name makes a write repeatable: what was appended under it is not appended again. So the same name must never come
with other rows, or these would be dropped in silence. The log keeps, for each name, who uses it (its *owner*).
"""

from __future__ import annotations

import zlib
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.decoding import prepared
from millstream.log import Log
from millstream.pipeline.errors import PipelineInputError

_KEY = "spark-write/"
"""Before the name, the key of its owner among the log's metadata."""


class StreamOwner(msgspec.Struct, frozen=True, tag="stream", kw_only=True):
    """A stream: the id of its query and the URL of its checkpoint, each empty where it is not known here."""

    query: str
    checkpoint: str

    @property
    def named(self) -> str:
        """The displayed identity of the stream."""
        return f"the checkpoint {self.checkpoint}" if self.checkpoint else f"the query id {self.query}"

    def is_same(self, other: StreamOwner) -> bool:
        """Whether both are one stream, as far as is known."""
        if self.query and other.query:
            return self.query == other.query
        return not (self.checkpoint and other.checkpoint) or self.checkpoint == other.checkpoint


class JobOwner(msgspec.Struct, frozen=True, tag="job", kw_only=True):
    """A job: how many rows it has, and the :func:`fingerprint` of all."""

    rows: int
    fingerprint: int


class WriteClaim(Protocol):
    """The owner of a name; a :class:`StreamClaim` or a :class:`JobClaim`."""

    def claim(self, log: Log, write: str) -> None:
        """Take the name *write* before anything is appended under it, or raise :class:`PipelineInputError`."""

    def check(self, log: Log, write: str) -> None:
        """Raise :class:`PipelineInputError` where other rows than these were appended under the name *write*."""


class StreamClaim:
    """The name of a stream: a checkpoint keeps it for good."""

    def __init__(self, owner: StreamOwner) -> None:
        self._owner = owner

    def claim(self, log: Log, write: str) -> None:
        self.check(log, write)
        known = _owner(log, write)
        if known != self._owner and (self._owner.query or not isinstance(known, StreamOwner)):
            _keep(log, write, self._owner)

    def check(self, log: Log, write: str) -> None:
        known = _owner(log, write)
        if isinstance(known, JobOwner):
            raise PipelineInputError(f"{_taken(log, write)} belongs to a job of {known.rows:,} rows: {_ADVICE}")
        if known is not None and not known.is_same(self._owner):
            raise PipelineInputError(
                f"{_taken(log, write)} belongs to the stream with {known.named}, but this stream has "
                f"{self._owner.named}: {_ADVICE}{AFTER_STORED_ROWS}"
            )


class JobClaim:
    """The name of a job: it stands for these rows, in whatever order."""

    def __init__(self, owner: JobOwner) -> None:
        self._owner = owner

    def claim(self, log: Log, write: str) -> None:
        if isinstance(_owner(log, write), StreamOwner):
            self.check(log, write)
        _keep(log, write, self._owner)

    def check(self, log: Log, write: str) -> None:
        known = _owner(log, write)
        if isinstance(known, StreamOwner):
            raise PipelineInputError(f"{_taken(log, write)} belongs to the stream with {known.named}: {_ADVICE}")
        if known is not None and known != self._owner:
            raise PipelineInputError(
                f"{_taken(log, write)} was used for {known.rows:,} rows that are in the log. The "
                f"{self._owner.rows:,} rows given now differ, and none of them was appended: {_ADVICE}"
            )


_ADVICE = "give this write a name of its own with .option('write', NAME)"

AFTER_STORED_ROWS = (
    ", and let the stream begin after the rows that are in the log already: otherwise these rows are appended again"
)
"""What else to do about a stream that gets a new name."""


def fingerprint(batch: pa.RecordBatch) -> int:
    """The sum of the CRC-32 of the rows of *batch*, in 53 bits: the same for the same rows in any order."""
    columns = [_as_binary(batch.column(name)) for name in sorted(batch.schema.names)]
    rows = pc.binary_join_element_wise(*columns, b"\x1f", null_handling="replace", null_replacement=b"\x00")
    return add_fingerprints(*map(zlib.crc32, rows.to_pylist()))


def add_fingerprints(*parts: int) -> int:
    """The fingerprint of all rows from those of *parts* of them."""
    return sum(parts) % (1 << 53)


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pa.array([None if row is None else repr(row).encode() for row in column.to_pylist()], pa.binary())
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.int64()).cast(pa.string()).cast(pa.binary())


def _taken(log: Log, write: str) -> str:
    return f"the write {write!r} of the log {log.name!r}"


def _owner(log: Log, write: str) -> StreamOwner | JobOwner | None:
    value = log.metadata(_KEY + write)
    return msgspec.json.decode(value, type=prepared(StreamOwner | JobOwner)) if value else None


def _keep(log: Log, write: str, owner: StreamOwner | JobOwner) -> None:
    log.put_metadata(_KEY + write, msgspec.json.encode(owner))
