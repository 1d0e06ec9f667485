"""Batches of our clients as columns of a log, and messages of a log as batches, without an object a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.core.message import HEADER_TYPE, MESSAGE_SCHEMA, Message
from millstream.messaging.broker.handlers.receive import DeliveredMessage
from millstream.messaging.broker.handlers.validation import (
    MAX_BODY,
    MAX_BORN,
    MAX_ID_CHARACTERS,
    check_born_host,
    check_count,
    check_ids,
    check_keys,
    check_message_group,
)
from millstream.messaging.broker.storage.deduplication_index import DIGITS, NameRun
from millstream.messaging.broker.storage.wire_codec import (
    DELIVER_AT,
    ENCODING,
    GROUP,
    ID,
    KEY,
    MAX_TIME,
    PREFIX,
    QUEUE,
    TAG,
    TYPE,
    header_number,
    header_text,
    message_id,
    properties,
    set_time,
)
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import (
    ByteColumn,
    ReceiveBatchResponse,
    SendBatchRequest,
    byte_column,
    checksum,
    text_column,
)

Queues = npt.NDArray[np.int64]
"""The queue of each message."""

_SCHEMA: Final = pa.schema([MESSAGE_SCHEMA.field(name) for name in ("event_time", "source", "key", "headers", "body")])


def check_columns(batch: SendBatchRequest) -> None:
    """Raise MESSAGE_CORRUPTED where the columns of *batch* do not match, and as :func:`check_count` does."""
    ids, bodies = batch.ids, batch.bodies
    if ids.count != bodies.count:
        raise StatusError(
            v2.MESSAGE_CORRUPTED,
            f"the request has {ids.count:,} message ids but {bodies.count:,} bodies: send one body for each message",
        )
    if not (ids.is_valid and bodies.is_valid):
        raise StatusError(
            v2.MESSAGE_CORRUPTED,
            f"the lengths in the column of {'bodies' if ids.is_valid else 'message ids'} do not add up to its bytes: "
            "send the length of each",
        )
    columns: dict[str, Sequence[Any]] = {"tags": batch.tags, "keys": batch.keys, "properties": batch.properties}
    for name, column in columns.items():
        if len(column) not in (0, ids.count):
            raise StatusError(
                v2.MESSAGE_CORRUPTED,
                f"the request has {len(column):,} entries in the column {name}, but {ids.count:,} messages: send one "
                "entry for each message, or none",
            )
    check_count(ids.count)


def check_sender(batch: SendBatchRequest) -> None:
    """Raise where no message can have the born host or the message group of *batch*. These are checked before each
    message gets a copy of them."""
    check_born_host(batch.host)
    if batch.group:
        check_message_group(batch.group)


def is_uniform(batch: SendBatchRequest) -> bool:
    """Whether all messages of *batch* have the same kinds of headers, and nothing is wrong with any of them.

    It was checked (:func:`check_columns`, :func:`check_sender`). Others go the way of single messages, which tells what
    is wrong with which.
    """
    count, lengths = batch.ids.count, batch.bodies.lengths
    if not count or not 0 < batch.born <= MAX_BORN or any(batch.properties):
        return False
    if not 0 < min(lengths) <= max(lengths) <= MAX_BODY:
        return False
    if (batch.tags and not all(batch.tags)) or (batch.keys and {len(keys) for keys in batch.keys} != {1}):
        return False
    try:
        _check_ids(batch.ids)
        for keys in batch.keys:
            check_keys(keys, "")
        for tag in set(batch.tags):
            check_keys((), tag)
    except (StatusError, UnicodeDecodeError):
        return False
    return True


def _check_ids(ids: ByteColumn) -> None:
    """Raise where an id is no text, and as :func:`check_ids` does. What clients send are digits and letters."""
    if not (ids.data.isalnum() and 0 < min(ids.lengths) <= max(ids.lengths) <= MAX_ID_CHARACTERS):
        check_ids(ids.texts())


def to_messages(batch: SendBatchRequest) -> Iterator[v2.Message]:
    """The messages of *batch*, whose columns were checked, as the protocol has them; one at a time, as each of them
    takes a KiB.

    Raises MESSAGE_CORRUPTED where an id is no text.
    """
    kind: Any = batch.kind
    for row, (body, name) in enumerate(zip(batch.bodies.values(), _texts_of(batch.ids), strict=True)):
        message = v2.Message(body=body)
        system = message.system_properties
        system.message_id, system.message_type, system.message_group = name, kind, batch.group
        system.born_host = batch.host
        set_time(system.born_timestamp, batch.born)
        if batch.tags:
            system.tag = batch.tags[row]
        if batch.keys:
            system.keys.extend(batch.keys[row])
        if batch.properties:
            message.user_properties.update(batch.properties[row])
        yield message


def _texts_of(ids: ByteColumn) -> list[str]:
    try:
        return ids.texts()
    except UnicodeDecodeError as error:
        raise StatusError(v2.MESSAGE_CORRUPTED, f"a message id is not UTF-8: {error}") from error


def to_log_messages(batch: SendBatchRequest, queues: Queues | None) -> list[Message]:
    """The same as :func:`to_columns`, an object a message: a few of them cost less than columns do."""
    pairs = [[(ID, name)] for name in batch.ids.values()]
    if queues is not None:
        for headers, queue in zip(pairs, queues.tolist(), strict=True):
            headers.append((QUEUE, b"%d" % queue))
    for headers, tag in zip(pairs, batch.tags, strict=False):
        headers.append((TAG, tag.encode()))
    alike = _same_headers(batch)
    rows = zip(batch.bodies.values(), _first_keys(batch), pairs, strict=True)
    return [Message(body, key, batch.host, batch.born, None, (*headers, *alike)) for body, key, headers in rows]


def to_columns(batch: SendBatchRequest, queues: Queues | None) -> pa.RecordBatch:
    """The uniform *batch* as it is appended to its topic; *queues* are those of its messages, None where there is one.

    Headers are in the order of :func:`~millstream.messaging.broker.storage.wire_codec.to_log`.
    """
    count = batch.ids.count
    headers = [(ID, to_array(batch.ids))]
    if queues is not None:
        digits = pa.array([b"%d" % number for number in range(int(queues.max()) + 1)], pa.binary())
        headers.append((QUEUE, digits.take(pa.array(queues))))
    if batch.tags:
        headers.append((TAG, pa.array([tag.encode() for tag in batch.tags], pa.binary())))
    headers += [(name, pa.repeat(pa.scalar(value, pa.binary()), count)) for name, value in _same_headers(batch)]
    keys = pa.array(_first_keys(batch), pa.string()) if batch.keys else pa.repeat("", count)
    born = pa.array(np.full(count, batch.born), pa.int64())
    columns = [born, pa.repeat(batch.host, count), keys, _headers(headers, count), to_array(batch.bodies)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def name_run(ids: ByteColumn) -> NameRun | None:
    """The valid *ids* as a run of names if they are one, as the ids of a call of our clients are."""
    if len(ids.lengths) != 1 or ids.lengths[0] < DIGITS:
        return None
    table = np.frombuffer(ids.data, np.uint8).reshape(ids.count, -1)
    digits = table[:, -DIGITS:].tobytes()
    try:
        first = int(digits[:DIGITS], 16)
    except ValueError:
        return None
    numbers = np.arange(first, first + ids.count).astype(">u4")  # beyond 2^32 they begin again, and are no run
    is_counted = first + ids.count <= 1 << 32 and numbers.tobytes().hex().upper().encode() == digits
    is_run = is_counted and (table[:, :-DIGITS] == table[0, :-DIGITS]).all()
    return NameRun(ids.data[: ids.lengths[0] - DIGITS], first, ids.count) if is_run else None


def to_array(column: ByteColumn) -> pa.Array:
    """The valid *column* as an Arrow array, without copying."""
    if len(column.lengths) == 1:
        offsets = np.arange(column.count + 1, dtype=np.int32) * np.int32(column.lengths[0])
    else:
        offsets = np.zeros(column.count + 1, np.int32)
        np.cumsum(column.lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), column.count, buffers)


def _first_keys(batch: SendBatchRequest) -> list[str]:
    return [each[0] for each in batch.keys] if batch.keys else [""] * batch.ids.count


def _same_headers(batch: SendBatchRequest) -> list[tuple[str, bytes]]:
    """The last headers of each message of the uniform *batch*: those that have the same value in all of them."""
    found = [(GROUP, batch.group.encode())] if batch.group else []
    if batch.kind != v2.NORMAL:
        found.append((TYPE, v2.MessageType.Name(batch.kind).encode()))
    return found


def _headers(headers: Sequence[tuple[str, pa.Array]], count: int) -> pa.Array:
    """The column of *count* lists of the same *headers*, each a name and its values."""
    width = len(headers)
    values = headers[0][1]
    if width > 1:  # one after the other for each message
        rows = np.arange(width * count).reshape(width, count).T.ravel()
        values = pa.concat_arrays([column for _, column in headers]).take(pa.array(rows))
    names = pa.array([name for name, _ in headers], pa.string()).take(pa.array(np.tile(np.arange(width), count)))
    fields = [HEADER_TYPE.field(0), HEADER_TYPE.field(1)]
    pairs = pa.StructArray.from_arrays([names, values], fields=fields)
    offsets = pa.array(np.arange(0, width * count + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, type=MESSAGE_SCHEMA.field("headers").type)


def to_batch(given: Sequence[DeliveredMessage], delivered: int) -> ReceiveBatchResponse:
    """Encode the messages that a receive has *given*, delivered at *delivered* (microseconds)."""
    messages = [each.message for each in given]
    known = [dict(message.headers) for message in messages]
    bodies = byte_column([message.body for message in messages])
    plain = all(name.startswith(PREFIX) for name in set().union(*known))
    return ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        delivered=delivered,
        crc=checksum(bodies),
        ids=text_column([message_id(message, headers) for message, headers in zip(messages, known, strict=True)]),
        handles=text_column([each.handle for each in given]),
        attempts=[each.attempt for each in given],
        bodies=bodies,
        queues=[header_number(headers.get(QUEUE, b"0")) for headers in known],
        offsets=[max(message.id - 1, 0) for message in messages],
        born=[message.event_time or 0 for message in messages],
        stored=[message.received_at or 0 for message in messages],
        hosts=[message.source for message in messages],
        tags=_texts(known, TAG),
        keys=_keys(messages, known),
        groups=_texts(known, GROUP),
        properties=[] if plain else [dict(properties(message)) for message in messages],
        due=[header_number(headers.get(DELIVER_AT, b"0"), MAX_TIME) for headers in known]
        if any(DELIVER_AT in each for each in known)
        else [],
        zipped=[row for row, headers in enumerate(known) if ENCODING in headers],
    )


def _texts(known: Sequence[dict[str, bytes]], name: str) -> list[str]:
    found = [header_text(headers.get(name, b"")) for headers in known]
    return found if any(found) else []


def _keys(messages: Sequence[Message], known: Sequence[dict[str, bytes]]) -> list[tuple[str, ...]]:
    if not any(message.key for message in messages):
        return []
    found: list[tuple[str, ...]] = [(message.key,) if message.key else () for message in messages]
    for row, headers in enumerate(known):
        if KEY in headers and found[row]:
            found[row] += tuple(header_text(value) for name, value in messages[row].headers if name == KEY)
    return found
