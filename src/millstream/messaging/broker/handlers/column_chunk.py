"""Messages that are given together as they lie in their log: columns from the disk to the client.

An object a message would cost more than all the rest of giving it. What is not plain goes the way of single messages,
so that there is one place that says what such messages look like.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.messaging.broker.names import write_handles
from millstream.messaging.broker.storage.wire_codec import GROUP, ID, QUEUE, TAG, TYPE
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ByteColumn, ReceiveBatchResponse, checksum

_PLAIN: Final = frozenset((ID, QUEUE, TAG, GROUP, TYPE))
"""Headers that columns are made of here; messages with others, users' own among them, go singly."""


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
        return int(pc.sum(pc.binary_length(self.arrow.column("body"))).as_py() or 0)


def to_columns(run: ColumnChunk, delivered: int) -> ReceiveBatchResponse | None:
    """*run* as it is handed out at *delivered* (microseconds); None where its messages are not alike and plain."""
    arrow, count = run.arrow, len(run)
    headers = _plain_headers(arrow.column("headers"), count)
    if headers is None:
        return None
    bodies, first = _byte_column(arrow.column("body")), run.first_id
    handles = write_handles(first, count, run.token)
    return ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        delivered=delivered,
        crc=checksum(bodies),
        ids=_byte_column(headers[ID]),
        handles=ByteColumn(count, [len(handles) // count], handles),
        attempts=[1],
        bodies=bodies,
        queues=_queues(headers[QUEUE]) if QUEUE in headers else [0],
        offsets=[first - 1],
        born=_times(arrow.column("event_time")),
        stored=_times(arrow.column("received_at")),
        hosts=_texts(arrow.column("source")),
        tags=_texts(headers[TAG]) if TAG in headers else [],
        keys=[(key,) if key else () for key in _texts(arrow.column("key"))],
        groups=_texts(headers[GROUP]) if GROUP in headers else [],
    )


def _plain_headers(headers: Any, count: int) -> dict[str, Any] | None:
    """The values of each header, where all *count* messages have the same plain ones in the same order, else None."""
    pairs = headers.flatten()
    width, rest = divmod(len(pairs), count)
    if rest or not width or (np.diff(_offsets(headers)) != width).any():
        return None
    names = pairs.field("name")
    row = names[:width].to_pylist()
    if ID not in row or len(set(row)) < width or not _PLAIN.issuperset(row) or not _repeats(names, width):
        return None
    try:
        values = pairs.field("value").cast(pa.string())
    except pa.ArrowInvalid:
        return None
    return {name: values.take(pa.array(np.arange(place, len(pairs), width))) for place, name in enumerate(row)}


def _repeats(array: Any, count: int) -> bool:
    """Whether the first *count* values of *array*, text or binary, come again and again, and there is nothing else."""
    offsets = _offsets(array)
    lengths = np.diff(offsets).reshape(-1, count)
    data = _data(array, offsets)
    return bool((lengths == lengths[0]).all()) and data == data[: lengths[0].sum()] * len(lengths)


def _byte_column(array: Any) -> ByteColumn:
    offsets = _offsets(array)
    lengths = np.diff(offsets)
    is_even = lengths[0] > 0 and bool((lengths == lengths[0]).all())
    return ByteColumn(len(array), lengths[:1].tolist() if is_even else lengths.tolist(), _data(array, offsets))


def _texts(array: Any) -> list[str]:
    """The values of *array*; one that is for all."""
    found: list[str] = (array[:1] if _repeats(array, 1) else array).to_pylist()
    return found


def _times(array: Any) -> list[int]:
    """The times in *array*; one that is for all."""
    times = (array.fill_null(0) if array.null_count else array).to_numpy()
    found: list[int] = (times[:1] if (times == times[0]).all() else times).tolist()
    return found


def _queues(digits: Any) -> list[int]:
    """The numbers that the texts *digits* are."""
    coded = digits.dictionary_encode()
    found: list[int] = np.array([int(text) for text in coded.dictionary.to_pylist()])[coded.indices.to_numpy()].tolist()
    return found


def _data(array: Any, offsets: npt.NDArray[np.int32]) -> bytes:
    """The values of *array*, which has these *offsets*, one after the other."""
    return bytes(memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]])


def _offsets(array: Any) -> npt.NDArray[np.int32]:
    """The offsets of *array*, which is not empty: binary, text or lists."""
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
