"""The block: a run of consecutive messages as one checksummed byte string, readable as Arrow (docs/formats/block.md).

The same bytes lie in every backend.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log.block_header import (
    HEADER,
    MAGIC,
    MAX_COUNT,
    VERSION,
    BlockError,
    BlockHeader,
    BlockOrigin,
    EncodedBlock,
    log_hash,
    name_hash,
    read_header,
)
from millstream.log.encoding.bodies import Bodies
from millstream.log.encoding.columns import HEADERS, Columns, offsets_of
from millstream.log.encoding.sections import (
    NUMBERS,
    SectionError,
    SectionReader,
    SectionWriter,
    bounds,
    filled,
)
from millstream.log.spec import Compression

EVENT_TIME, RECEIVED_AT, SOURCE, KEY, HEADER_COUNTS, HEADER_NAMES, HEADER_VALUES, BODY = range(1, 9)  # columns

_NO_OFFSETS = pa.py_buffer(bytes(4 * (MAX_COUNT + 1)))  # of a column in which every value is empty

_CRC = struct.Struct("<I")
_CRC_AT = 8
_AFTER_CRC = _CRC_AT + _CRC.size


def encode_block(
    columns: Columns, first_id: int, origin: BlockOrigin, *, compression: Compression = "auto"
) -> EncodedBlock:
    """The block of *columns* (stamped, 1 to 65,536 messages), whose first message has the id *first_id*."""
    sections = SectionWriter(compression)
    received = _add_received(sections, columns)
    event = _add_event(sections, columns, received)
    for column, texts in ((SOURCE, columns.source), (KEY, columns.key)):
        if texts is not None:
            sections.add_texts(column, texts)
    if columns.headers is not None:
        _add_headers(sections, columns.headers)
    sections.add_values(BODY, columns.body)
    return _finish(sections, origin, count=len(columns), first_id=first_id, event=event, received=received)


def encode_bodies(
    bodies: Bodies, received_at: int, first_id: int, origin: BlockOrigin, *, compression: Compression = "auto"
) -> EncodedBlock:
    """The block that :func:`encode_block` makes of *bodies* alone, all received at one time, without Arrow's arrays.

    They cost a commit of one message more than everything else that its block takes.
    """
    sections = SectionWriter(compression)
    sections.add_constant(RECEIVED_AT, bodies.count)
    sections.add_bodies(BODY, bodies)
    times = received_at, received_at
    return _finish(sections, origin, count=bodies.count, first_id=first_id, event=times, received=times)


class Block:
    """A block whose checksum holds, ready to be decoded."""

    __slots__ = ("_received", "_sections", "header")

    def __init__(self, data: bytes) -> None:
        """Check *data* from the first byte to the last. Raises :class:`BlockError`."""
        self.header = read_header(data)
        self._received: Any = None
        if len(data) != HEADER.size + self.header.stored_bytes:
            raise BlockError(
                f"the block has {len(data)} bytes, but its header states {HEADER.size + self.header.stored_bytes}"
            )
        if _checksum(memoryview(data)[: HEADER.size], [memoryview(data)[HEADER.size :]]) != _stored_checksum(data):
            raise BlockError("the CRC32C does not match")
        try:
            body = memoryview(data)[HEADER.size :]
            self._sections = SectionReader(body, self.header.sections, self.header.raw_bytes)
        except SectionError as error:
            raise BlockError(str(error)) from error

    def decode(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The messages as a record batch of ``MESSAGE_SCHEMA``, or those *columns* of it.

        Raises :class:`BlockError`.
        """
        names = MESSAGE_SCHEMA.names if columns is None else list(columns)
        try:
            arrays = [self._column(name) for name in names]
        except SectionError as error:
            raise BlockError(str(error)) from error
        schema = MESSAGE_SCHEMA if columns is None else pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str) -> Any:
        head, sections = self.header, self._sections
        if name == "id":
            return filled(head.count, head.first_id, steps=True)
        if name == "event_time" and sections.has(EVENT_TIME):
            return sections.times(EVENT_TIME, head.min_event_time, head.count)
        if name in {"event_time", "received_at"}:
            return self._received_at()
        if name == "headers":
            return self._headers()
        number, kind = {"source": (SOURCE, pa.string()), "key": (KEY, pa.string()), "body": (BODY, pa.binary())}[name]
        return sections.values(number, kind, head.count) if sections.has(number) else _empty(kind, head.count)

    def _received_at(self) -> Any:
        if self._received is None:  # it often is the event time as well
            self._received = self._sections.times(RECEIVED_AT, self.header.min_received_at, self.header.count)
        return self._received

    def _headers(self) -> Any:
        count, sections = self.header.count, self._sections
        if not sections.has(HEADER_COUNTS):
            return _empty(HEADERS, count)
        offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, sections.offsets(HEADER_COUNTS, count)])
        total = offsets[count].as_py()
        names = sections.values(HEADER_NAMES, pa.string(), total)
        values = sections.values(HEADER_VALUES, pa.binary(), total)
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS)


def _add_received(sections: SectionWriter, columns: Columns) -> tuple[int, int]:
    times = columns.received_at
    if isinstance(times, int):
        sections.add_constant(RECEIVED_AT, len(columns))
        return times, times
    assert times is not None
    least, most = bounds(times)
    sections.add_times(RECEIVED_AT, times, least, most)
    return least, most


def _add_event(sections: SectionWriter, columns: Columns, received: tuple[int, int]) -> tuple[int, int]:
    times = columns.event_time
    if times is None or np.array_equal(times, columns.received_at):  # type: ignore[arg-type]
        return received
    if isinstance(times, int):
        sections.add_constant(EVENT_TIME, len(columns))
        return times, times
    least, most = bounds(times)
    sections.add_times(EVENT_TIME, times, least, most)
    return least, most


def _add_headers(sections: SectionWriter, headers: Any) -> None:
    offsets = offsets_of(headers)
    if offsets[-1] == offsets[0]:  # a part of columns in which other messages have some
        return
    pairs = headers.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))  # flatten() releases the interpreter
    sections.add_numbers(HEADER_COUNTS, NUMBERS, offsets[1:] - offsets[:-1])
    sections.add_texts(HEADER_NAMES, pairs.field(0))
    sections.add_values(HEADER_VALUES, pairs.field(1))


def _finish(
    sections: SectionWriter,
    origin: BlockOrigin,
    *,
    count: int,
    first_id: int,
    event: tuple[int, int],
    received: tuple[int, int],
) -> EncodedBlock:
    number, buffers = sections.finish()
    header = BlockHeader(
        number,
        count,
        log_hash(origin.log),
        origin.epoch,
        first_id,
        *event,
        *received,
        name_hash(origin.producer),
        origin.sequence,
        sections.raw_bytes,
        sections.stored_bytes,
    )
    return EncodedBlock(header, _seal(header, buffers))


def _seal(header: BlockHeader, buffers: list[Any]) -> bytes:
    sections, *rest = msgspec.structs.astuple(header)
    head = HEADER.pack(MAGIC, VERSION, sections, 0, 0, *rest)
    checksum = _CRC.pack(_checksum(head, buffers))
    return b"".join([head[:_CRC_AT], checksum, head[_AFTER_CRC:], *buffers])


def _checksum(head: bytes | memoryview, buffers: list[Any]) -> int:
    checksum: int = crc32c(head[_AFTER_CRC:], crc32c(head[:_CRC_AT]))
    for buffer in buffers:
        checksum = crc32c(buffer, checksum)
    return checksum


def _stored_checksum(data: bytes) -> int:
    checksum: int = _CRC.unpack_from(data, _CRC_AT)[0]
    return checksum


def _empty(kind: Any, count: int) -> Any:
    empty = _all_empty(kind)
    return empty if count == MAX_COUNT else empty.slice(0, count)


@functools.cache
def _all_empty(kind: Any) -> Any:
    """As many empty values of *kind* as a block may have."""
    if kind == HEADERS:
        nothing = pa.array([], HEADERS.value_type)
        return pa.Array.from_buffers(kind, MAX_COUNT, [None, _NO_OFFSETS], children=[nothing])
    return pa.Array.from_buffers(kind, MAX_COUNT, [None, _NO_OFFSETS, pa.py_buffer(b"")])
