"""The messages of one append call: checked, merged with others and cut into blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import pyarrow as pa

from millstream.core.message import Message
from millstream.log.block import encode_block, encode_bodies
from millstream.log.block_header import BlockOrigin, EncodedBlock
from millstream.log.encoding.bodies import Bodies, join_bodies, merge_bodies
from millstream.log.encoding.columns import MESSAGE_BYTES, Columns, concat, from_messages, from_record_batch, offsets_of
from millstream.log.errors import LogInputError, MessageTooLargeError
from millstream.log.spec import LogSpec

Messages: TypeAlias = Sequence[Message] | Sequence[bytes] | pa.RecordBatch
"""The types that a writer accepts in one call."""

MAX_MESSAGE_BYTES = 64 << 20
MAX_REQUEST_BYTES = 1 << 30

_BESIDES_BODY = ("source", "key", "headers", "event_time", "received_at")


class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """The messages of one call: bodies alone, joined or as an Arrow array, else columns.

    ``size`` is about the bytes that they take; ``sequence`` is the producer's.
    """

    content: Bodies | pa.Array | Columns
    count: int
    size: int
    sequence: int | None = None

    def columns(self, now: int) -> Columns:
        """The messages as columns, with *now* as the receive time of those that have none."""
        content = self.content
        return (content if isinstance(content, Columns) else Columns(_bodies([content]))).stamped(now)


def make_request(messages: Messages, sequence: int | None = None) -> AppendRequest:
    """The request of *messages*, checked. Raises :class:`LogInputError`."""
    if sequence is not None and not (isinstance(sequence, int | np.integer) and 1 <= sequence < 1 << 63):
        raise LogInputError(f"a producer's sequence must be a whole number from 1 to 2^63 - 1, not {sequence!r}")
    if type(messages) is list and len(messages) == 1 and type(messages[0]) is bytes:
        return _request_of_body(messages[0], sequence)
    if isinstance(messages, pa.RecordBatch):
        return _request_of_columns(from_record_batch(messages), sequence)
    if isinstance(messages, pa.Table | pa.Array | pa.ChunkedArray | bytes | str) or not isinstance(messages, Iterable):
        raise _not_taken(type(messages).__name__)
    found = list(messages)  # the caller may change its own list meanwhile
    try:
        return _request_of_bodies(cast(list[bytes], found), sequence)
    except TypeError:
        kinds = set(map(type, found))
    if kinds == {Message}:
        return _request_of_columns(from_messages(cast(list[Message], found)), sequence)
    raise _not_taken(f"a list of {', '.join(sorted(kind.__name__ for kind in kinds))}")


def _not_taken(what: str) -> LogInputError:
    return LogInputError(
        f"cannot append {what}: a log takes a list of Message, a list of bytes, or an Arrow record "
        "batch. Put a single value into a list, an Arrow array into a record batch as its column body, "
        "and append each of a table's to_batches() by a call of its own"
    )


def set_columns(request: AppendRequest) -> list[str]:
    """The columns besides ``body`` in which a message of *request* has a value."""
    found = request.content
    if not isinstance(found, Columns):
        return []
    return [name for name in _BESIDES_BODY if getattr(found, name) is not None]


def require_bodies_only(columns: Sequence[str]) -> None:
    """For a store that keeps nothing else. Raises :class:`LogInputError` where messages have *columns* besides."""
    if columns:
        raise LogInputError(
            f"a store with layout=nerve keeps only message bodies, but the messages also have {', '.join(columns)}: "
            "put the data into the body, or append only bodies"
        )


def encode_requests(
    requests: Sequence[AppendRequest], first_id: int, now: int, spec: LogSpec, origin: BlockOrigin
) -> list[EncodedBlock]:
    """The blocks of *requests*, one after the other, the first message under *first_id*."""
    blocks = []
    for group, size in _groups(requests, spec):
        contents: list[Any] = [request.content for request in group]
        if set(map(type, contents)) == {Bodies}:
            bodies = merge_bodies(contents)
            if bodies.count <= spec.block_messages and size <= spec.block_bytes:
                blocks.append(encode_bodies(bodies, now, first_id, origin, compression=spec.compression))
                first_id += bodies.count
                continue
            columns = Columns(bodies.array()).stamped(now)
        else:
            columns = _join(group, now)
        for part in _cut(columns, size, spec):
            blocks.append(encode_block(part, first_id, origin, compression=spec.compression))
            first_id += len(part)
    return blocks


def _request_of_body(body: bytes, sequence: int | None) -> AppendRequest:
    """The most frequent request, made in a third of the time."""
    length = len(body)
    size = length + MESSAGE_BYTES
    if length > MAX_MESSAGE_BYTES:
        _checked(size, length)
    return AppendRequest(Bodies(body, 1, length), 1, size, sequence)


def _request_of_bodies(bodies: list[bytes], sequence: int | None) -> AppendRequest:
    """Raises :class:`TypeError` where one is not bytes."""
    lengths = list(map(len, bodies))
    count, step = len(lengths), lengths[0] if lengths else 0
    if lengths.count(step) == count:
        size = _checked((step + MESSAGE_BYTES) * count, step)
        return AppendRequest(join_bodies(bodies, step), count, size, sequence)
    size = _checked(sum(lengths) + MESSAGE_BYTES * count, max(lengths))
    return AppendRequest(join_bodies(bodies, lengths), count, size, sequence)


def _checked_array(array: pa.Array) -> int:
    """The size of the request of *array*; only one with many bytes can have a message that is too large."""
    ends = offsets_of(array)
    total = int(ends[-1]) - int(ends[0])
    largest = int(np.diff(ends).max()) if total > MAX_MESSAGE_BYTES else 0
    return _checked(total + MESSAGE_BYTES * len(array), largest)


def _request_of_columns(columns: Columns, sequence: int | None) -> AppendRequest:
    if not len(columns):
        return AppendRequest(columns, 0, 0, sequence)
    if columns.is_bare:
        return AppendRequest(columns.body, len(columns), _checked_array(columns.body), sequence)
    size = columns.memory_bytes
    if size <= MAX_MESSAGE_BYTES:  # then no message is too large
        return AppendRequest(columns, len(columns), size, sequence)
    sizes = columns.sizes()
    return AppendRequest(columns, len(columns), _checked(int(sizes.sum()), int(sizes.max())), sequence)


def _checked(total: int, largest: int) -> int:
    if largest > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"a message of {largest:,} bytes exceeds the limit of {MAX_MESSAGE_BYTES:,} bytes: put the content into a "
            "store (`millstream store put`), and append only the item's id"
        )
    if total > MAX_REQUEST_BYTES:
        raise LogInputError(
            f"{total:,} bytes exceed the limit of one append call, {MAX_REQUEST_BYTES:,} bytes: append fewer "
            "messages per call"
        )
    return total


def _groups(requests: Sequence[AppendRequest], spec: LogSpec) -> Iterator[tuple[Sequence[AppendRequest], int]]:
    """Merge small requests up to the size of a block, so that a block has messages of many callers; with their size."""
    messages, total = sum([request.count for request in requests]), sum([request.size for request in requests])
    if messages <= spec.block_messages and total <= spec.block_bytes:
        yield requests, total
        return
    group: list[AppendRequest] = []
    count = size = 0
    for request in requests:
        if group and (count + request.count > spec.block_messages or size + request.size > spec.block_bytes):
            yield group, size
            group, count, size = [], 0, 0
        group.append(request)
        count, size = count + request.count, size + request.size
    if group:
        yield group, size


def _join(requests: Sequence[AppendRequest], now: int) -> Columns:
    contents: list[Any] = [request.content for request in requests]
    if Columns in set(map(type, contents)):
        return concat([request.columns(now) for request in requests])
    return Columns(_bodies(contents)).stamped(now)


def _bodies(contents: Iterable[Bodies | pa.Array]) -> pa.Array:
    """The bodies of requests that have nothing else, as one array."""
    parts: list[pa.Array] = []
    for kind, run in itertools.groupby(contents, type):
        found: list[Any] = list(run)
        parts += [merge_bodies(found).array()] if kind is Bodies else found
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _cut(columns: Columns, size: int, spec: LogSpec) -> Iterator[Columns]:
    if len(columns) <= spec.block_messages and size <= spec.block_bytes:
        yield columns
        return
    ends = np.cumsum(columns.sizes())
    start = 0
    while start < len(columns):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + spec.block_bytes, "right"))
        stop = min(max(stop, start + 1), start + spec.block_messages, len(columns))
        yield columns if stop - start == len(columns) else columns.slice(start, stop)
        start = stop
