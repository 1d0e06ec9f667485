"""Batches of our clients as columns of a log, and messages of a log as batches, without an object a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millstream.core.message import HEADER_TYPE, MESSAGE_SCHEMA, Message
from millstream.messaging.broker.handlers.receive import DeliveredMessage
from millstream.messaging.broker.handlers.validation import MAX_BODY, check_ids, check_keys, check_message_group
from millstream.messaging.broker.storage.wire_codec import (
    DELIVER_AT,
    ENCODING,
    GROUP,
    ID,
    KEY,
    PREFIX,
    QUEUE,
    TAG,
    TYPE,
    message_id,
    properties,
)
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ReceiveBatchResponse, SendBatchRequest, checksum

_SCHEMA: Final = pa.schema([MESSAGE_SCHEMA.field(name) for name in ("event_time", "source", "key", "headers", "body")])


def is_uniform(batch: SendBatchRequest) -> bool:
    """Whether all messages of *batch* have the same kinds of headers, and nothing is wrong with any of them.

    Others go the way of single messages, which tells what is wrong with which.
    """
    count = len(batch.ids)
    columns = (batch.bodies, batch.tags, batch.keys)
    if (
        not count
        or batch.born <= 0
        or any(len(column) not in (0, count) for column in columns)
        or any(batch.properties)
    ):
        return False
    if len(batch.bodies) != count or not 0 < min(map(len, batch.bodies)) <= max(map(len, batch.bodies)) <= MAX_BODY:
        return False
    if (batch.tags and not all(batch.tags)) or (batch.keys and {len(keys) for keys in batch.keys} != {1}):
        return False
    try:
        check_ids(batch.ids)
        if batch.group:
            check_message_group(batch.group)
        for keys in batch.keys:
            check_keys(keys, "")
        for tag in set(batch.tags):
            check_keys((), tag)
    except StatusError:
        return False
    return True


def to_messages(batch: SendBatchRequest) -> list[v2.Message]:
    """The messages of *batch* as the protocol has them. Raises MESSAGE_CORRUPTED where its columns do not match."""
    count = len(batch.ids)
    if len(batch.bodies) != count:
        raise StatusError(
            v2.MESSAGE_CORRUPTED,
            f"the request has {count:,} message ids but {len(batch.bodies):,} bodies: send one body for each message",
        )
    kind: Any = batch.kind
    found = [v2.Message(body=body) for body in batch.bodies]
    for message, name in zip(found, batch.ids, strict=True):
        system = message.system_properties
        system.message_id, system.message_type, system.message_group = name, kind, batch.group
        system.born_host = batch.host
        system.born_timestamp.FromMicroseconds(batch.born)
    for message, tag in zip(found, batch.tags, strict=False):
        message.system_properties.tag = tag
    for message, keys in zip(found, batch.keys, strict=False):
        message.system_properties.keys.extend(keys)
    for message, pairs in zip(found, batch.properties, strict=False):
        message.user_properties.update(pairs)
    return found


def to_log_messages(batch: SendBatchRequest, names: Sequence[bytes], queues: Sequence[int] | None) -> list[Message]:
    """The same as :func:`to_columns`, an object a message: a few of them cost less than columns do."""
    pairs = [[(header, value) for value in values] for header, values in _header_columns(batch, names, queues)]
    rows = zip(batch.bodies, _first_keys(batch), zip(*pairs, strict=True), strict=True)
    return [Message(body, key, batch.host, batch.born, None, headers) for body, key, headers in rows]


def to_columns(batch: SendBatchRequest, names: Sequence[bytes], queues: Sequence[int] | None) -> pa.RecordBatch:
    """The uniform *batch* as it is appended to its topic; *queues* are those of its messages, None where there is one.

    Headers are in the order of :func:`~millstream.messaging.broker.storage.wire_codec.to_log`.
    """
    count = len(names)
    headers = _header_columns(batch, names, queues)
    keys = pa.array(_first_keys(batch), pa.string()) if batch.keys else pa.repeat("", count)
    born = pa.array(np.full(count, batch.born), pa.int64())
    columns = [born, pa.repeat(batch.host, count), keys, _headers(headers, count), pa.array(batch.bodies, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _first_keys(batch: SendBatchRequest) -> list[str]:
    return [each[0] for each in batch.keys] if batch.keys else [""] * len(batch.ids)


def _header_columns(
    batch: SendBatchRequest, names: Sequence[bytes], queues: Sequence[int] | None
) -> list[tuple[str, Sequence[bytes]]]:
    """The headers that each message of the uniform *batch* has: the name of each and its values."""
    count = len(names)
    headers: list[tuple[str, Sequence[bytes]]] = [(ID, names)]
    if queues is not None:
        digits = [b"%d" % number for number in range(max(queues) + 1)]
        headers.append((QUEUE, [digits[number] for number in queues]))
    if batch.tags:
        headers.append((TAG, [tag.encode() for tag in batch.tags]))
    if batch.group:
        headers.append((GROUP, [batch.group.encode()] * count))
    if batch.kind != v2.NORMAL:
        headers.append((TYPE, [v2.MessageType.Name(batch.kind).encode()] * count))
    return headers


def _headers(headers: Sequence[tuple[str, Sequence[bytes]]], count: int) -> pa.Array:
    """The column of *count* lists of the same *headers*, each a name and its values."""
    width = len(headers)
    values: list[Any] = [None] * (width * count)
    for place, (_, column) in enumerate(headers):
        values[place::width] = column
    names = pa.array([name for name, _ in headers], pa.string()).take(pa.array(np.tile(np.arange(width), count)))
    fields = [HEADER_TYPE.field(0), HEADER_TYPE.field(1)]
    pairs = pa.StructArray.from_arrays([names, pa.array(values, pa.binary())], fields=fields)
    offsets = pa.array(np.arange(0, width * count + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, type=MESSAGE_SCHEMA.field("headers").type)


def to_batch(given: Sequence[DeliveredMessage], delivered: int) -> ReceiveBatchResponse:
    """Encode the messages that a receive has *given*, delivered at *delivered* (microseconds)."""
    messages = [each.message for each in given]
    known = [dict(message.headers) for message in messages]
    bodies = [message.body for message in messages]
    plain = all(name.startswith(PREFIX) for name in set().union(*known))
    return ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        delivered=delivered,
        crc=checksum(bodies),
        ids=[message_id(message, headers) for message, headers in zip(messages, known, strict=True)],
        handles=[each.handle for each in given],
        attempts=[each.attempt for each in given],
        bodies=bodies,
        queues=[int(headers.get(QUEUE, b"0")) for headers in known],
        offsets=[max(message.id - 1, 0) for message in messages],
        born=[message.event_time or 0 for message in messages],
        stored=[message.received_at or 0 for message in messages],
        hosts=[message.source for message in messages],
        tags=_texts(known, TAG),
        keys=_keys(messages, known),
        groups=_texts(known, GROUP),
        properties=[] if plain else [dict(properties(message)) for message in messages],
        due=[int(headers.get(DELIVER_AT, b"0")) for headers in known]
        if any(DELIVER_AT in each for each in known)
        else [],
        zipped=[row for row, headers in enumerate(known) if ENCODING in headers],
    )


def _texts(known: Sequence[dict[str, bytes]], name: str) -> list[str]:
    found = [headers.get(name, b"").decode() for headers in known]
    return found if any(found) else []


def _keys(messages: Sequence[Message], known: Sequence[dict[str, bytes]]) -> list[tuple[str, ...]]:
    if not any(message.key for message in messages):
        return []
    found: list[tuple[str, ...]] = [(message.key,) if message.key else () for message in messages]
    for row, headers in enumerate(known):
        if KEY in headers and found[row]:
            found[row] += tuple(value.decode() for name, value in messages[row].headers if name == KEY)
    return found
