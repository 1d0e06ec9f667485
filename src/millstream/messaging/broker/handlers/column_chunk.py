"""Messages that are given together as they lie in their log: columns from the disk to the client.

An object a message would cost more than all the rest of giving it. What is not plain goes the way of single messages,
so that there is one place that says what such messages look like.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millstream.log.encoding.columns import offsets_of
from millstream.messaging.broker.names import write_handles
from millstream.messaging.broker.storage.arrow_buffers import data_of
from millstream.messaging.broker.storage.wire_codec import GROUP, ID, QUEUE, TAG, TYPE
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ByteColumn, ReceiveBatchResponse, checksum

_PLAIN: Final = frozenset((ID, QUEUE, TAG, GROUP, TYPE))
"""Headers that columns are made of here; messages with others, users' own among them, go singly."""

_DIGITS: Final = 10  # so many may be a number that the protocol cannot express


class ColumnChunk(msgspec.Struct, frozen=True):
    """Messages that follow one another, none of them given before, as a slice of their log (``MESSAGE_SCHEMA``).

    ``token`` is what they were lent under.
    """

    arrow: Any
    token: int = 0

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def first_id(self) -> int:
        """The id of the first; the others follow without a gap."""
        return int(self.arrow.column("id")[0].as_py())

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        offsets = offsets_of(self.arrow.column("body"))
        return int(offsets[-1] - offsets[0])


def to_columns(run: ColumnChunk, delivered: int) -> ReceiveBatchResponse | None:
    """*run* as it is handed out at *delivered* (microseconds); None where its messages are not alike and plain."""
    arrow, count = run.arrow, len(run)
    headers = _plain_headers(arrow.column("headers"), count)
    queues = None if headers is None else _numbers(headers[QUEUE]) if QUEUE in headers else [0]
    if headers is None or queues is None:
        return None
    bodies, first = _byte_column(arrow.column("body")), run.first_id
    handles = write_handles(first, count, run.token)
    return ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        delivered=delivered,
        crc=checksum(bodies),
        ids=headers[ID],
        handles=ByteColumn(count, [len(handles) // count], handles),
        attempts=[1],
        bodies=bodies,
        queues=queues,
        offsets=[first - 1],
        born=_times(arrow.column("event_time")),
        stored=_times(arrow.column("received_at")),
        hosts=_texts(arrow.column("source")),
        tags=headers[TAG].texts() if TAG in headers else [],
        keys=[(key,) if key else () for key in _texts(arrow.column("key"))],
        groups=headers[GROUP].texts() if GROUP in headers else [],
    )


def _plain_headers(headers: Any, count: int) -> dict[str, ByteColumn] | None:
    """The values of each header, where all *count* messages have the same plain ones in the same order, else None."""
    begin, end = (int(offset) for offset in offsets_of(headers)[[0, -1]])
    width, rest = divmod(end - begin, count)
    if rest or not width or (np.diff(offsets_of(headers)) != width).any():
        return None
    pairs = headers.values.slice(begin, end - begin)  # flatten() releases the interpreter
    names = pairs.field("name")
    row = names[:width].to_pylist()
    if ID not in row or len(set(row)) < width or not _PLAIN.issuperset(row) or not _repeats(names, width):
        return None
    columns = _every(pairs.field("value"), width)
    if not all(column.data.isascii() or _is_text(column) for column in columns):
        return None
    return dict(zip(row, columns, strict=True))


def _every(array: Any, width: int) -> list[ByteColumn]:
    """Columns of the first, the second … of each *width* values of *array*."""
    offsets = offsets_of(array)
    lengths = np.diff(offsets).reshape(-1, width)
    count, ends = len(lengths), [0, *np.cumsum(lengths[0]).tolist()]
    if (lengths == lengths[0]).all() and all(begin < end for begin, end in itertools.pairwise(ends)):
        table = np.frombuffer(data_of(array), np.uint8).reshape(count, -1)
        parts = [(end - begin, table[:, begin:end].tobytes()) for begin, end in itertools.pairwise(ends)]
        return [ByteColumn(count, [length], data) for length, data in parts]
    return [_byte_column(array.take(pa.array(np.arange(place, len(array), width)))) for place in range(width)]


def _is_text(column: ByteColumn) -> bool:
    try:
        column.texts()
    except UnicodeDecodeError:
        return False
    return True


def _repeats(array: Any, count: int) -> bool:
    """Whether the first *count* values of *array*, text or binary, come again and again, and there is nothing else."""
    offsets = offsets_of(array)
    lengths = np.diff(offsets).reshape(-1, count)
    data = data_of(array)
    return bool((lengths == lengths[0]).all()) and data == data[: lengths[0].sum()] * len(lengths)


def _byte_column(array: Any) -> ByteColumn:
    offsets = offsets_of(array)
    lengths = np.diff(offsets)
    is_even = lengths[0] > 0 and bool((lengths == lengths[0]).all())
    return ByteColumn(len(array), lengths[:1].tolist() if is_even else lengths.tolist(), data_of(array))


def _texts(array: Any) -> list[str]:
    """The values of *array*; one that is for all."""
    found: list[str] = (array[:1] if _repeats(array, 1) else array).to_pylist()
    return found


def _times(array: Any) -> list[int]:
    """The times in *array*; one that is for all."""
    times = (array.fill_null(0) if array.null_count else array).to_numpy()
    found: list[int] = (times[:1] if (times == times[0]).all() else times).tolist()
    return found


def _numbers(digits: ByteColumn) -> list[int] | None:
    """The numbers that the texts *digits* are; None where another program wrote some that are no queues."""
    if not digits.data.isdigit() or not 0 < min(digits.lengths) <= max(digits.lengths) < _DIGITS:
        return None
    if digits.lengths == [1]:
        return [digit - ord("0") for digit in digits.data]
    return list(map(int, digits.values()))
