"""Messages of the protocol as messages of a log, and back.

Body, event time (when it was born), receive time (when it was stored), source (the host it was born on) and key (the
first of its keys) are the log's own; user properties are headers of the same name; all else is in headers that begin
with ``mq:``, which no user property may. What was written to a log by other means can be received as well, but for
ticks (:mod:`millstream.batching.ticks`), which are there for who batches the log.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow.compute as pc
from pyarrow import RecordBatch

from millstream.batching.message_events import TICK_SOURCE
from millstream.log import Message
from millstream.messaging.broker.storage.arrow_buffers import data_of
from millstream.messaging.protocol import v2

PREFIX: Final = "mq:"
ID: Final = "mq:id"
TAG: Final = "mq:tag"
KEY: Final = "mq:key"
GROUP: Final = "mq:group"
TYPE: Final = "mq:type"
QUEUE: Final = "mq:queue"
DELIVER_AT: Final = "mq:deliver-at"
TRANSACTION: Final = "mq:transaction"
ENCODING: Final = "mq:encoding"
TRACE: Final = "mq:trace"
DEAD_TOPIC: Final = "mq:dead-topic"
DEAD_ID: Final = "mq:dead-id"

MAX_QUEUE: Final = (1 << 31) - 1
"""The largest number of a queue that the protocol can express."""

MAX_TIME: Final = (1 << 63) - 1
"""The largest time that a log can express, in microseconds."""

Headers = list[tuple[str, bytes]]
_KINDS: Final[dict[bytes, Any]] = {name.encode(): number for name, number in v2.MessageType.items()}


class DeliveryInfo(msgspec.Struct, frozen=True):
    """The data that a delivery adds to a message: the client's name of the topic, its handle, and its attempts.

    ``namespace`` and ``topic`` are the client's own spelling; ``invisible`` is in microseconds.
    """

    namespace: str
    topic: str
    handle: str = ""
    attempt: int = 0
    invisible: int = 0


def to_log(message: v2.Message, kind: int, queue: int | None) -> Message:
    """*message*, of type *kind*, as it is appended to its topic; *queue* is its queue, None where there is but one."""
    system = message.system_properties
    headers: Headers = [(ID, system.message_id.encode())]
    if queue is not None:
        headers.append((QUEUE, b"%d" % queue))
    tag, group, keys, pairs = system.tag, system.message_group, system.keys, message.user_properties
    if tag:
        headers.append((TAG, tag.encode()))
    if group:
        headers.append((GROUP, group.encode()))
    if kind != v2.NORMAL:
        headers.append((TYPE, v2.MessageType.Name(kind).encode()))
    if system.body_encoding == v2.GZIP:
        headers.append((ENCODING, b"gzip"))
    if system.trace_context:
        headers.append((TRACE, system.trace_context.encode()))
    if keys:
        headers += [(KEY, key.encode()) for key in keys[1:]]
    if pairs:
        headers += [(name, value.encode()) for name, value in pairs.items()]
    return Message(
        message.body, keys[0] if keys else "", system.born_host, born_at(system) or None, None, tuple(headers)
    )


def born_at(system: v2.SystemProperties) -> int:
    """When a message was born, in microseconds; 0 where it does not say."""
    born = system.born_timestamp
    return born.seconds * 1_000_000 + born.nanos // 1000


def to_wire(message: Message, frame: DeliveryInfo) -> v2.Message:
    """A message of a topic's log as a consumer gets it."""
    wire = v2.Message(body=message.body)
    topic, system = wire.topic, wire.system_properties
    topic.name = frame.topic
    if frame.namespace:
        topic.resource_namespace = frame.namespace
    known, more_keys = _sort_headers(message, wire)
    system.message_id = message_id(message, known)
    system.message_type = _KINDS.get(known.get(TYPE, b""), v2.NORMAL)
    system.body_encoding = v2.GZIP if ENCODING in known else v2.IDENTITY
    digest = system.body_digest
    digest.type = v2.MD5
    digest.checksum = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    system.born_host = message.source
    set_time(system.born_timestamp, message.event_time or 0)
    set_time(system.store_timestamp, message.received_at or 0)
    system.queue_offset = max(message.id - 1, 0)
    system.queue_id = header_number(known.get(QUEUE, b"0"))
    if message.key:
        system.keys.append(message.key)
        system.keys.extend(more_keys)
    _set_optional(system, known)
    _set_delivery(system, frame)
    return wire


def _sort_headers(message: Message, wire: v2.Message) -> tuple[dict[str, bytes], list[str]]:
    """Our own headers of *message*, and its further keys; all others become user properties of *wire*."""
    known: dict[str, bytes] = {}
    keys: list[str] = []
    for name, value in message.headers:
        if name == KEY:
            keys.append(header_text(value))
        elif name.startswith(PREFIX):
            known[name] = value
        else:
            with contextlib.suppress(UnicodeDecodeError):
                wire.user_properties[name] = value.decode()
    return known, keys


def properties(message: Message) -> Iterator[tuple[str, str]]:
    """The user properties of a message of a log: its headers; one that is not text gives none."""
    for name, value in message.headers:
        if not name.startswith(PREFIX):
            try:
                yield name, value.decode()
            except UnicodeDecodeError:
                continue


def header(message: Message, name: str) -> str:
    """The header *name* of a message; empty where it has none."""
    return next((header_text(value) for found, value in message.headers if found == name), "")


def header_text(value: bytes) -> str:
    """A header of ours as text: another program that writes to the log may have written any bytes."""
    return value.decode("utf-8", "replace")


def header_number(value: bytes | str, most: int = MAX_QUEUE) -> int:
    """A header of ours as a number; 0 where another program wrote what is none, or is not within 0 and *most*."""
    try:
        number = int(value)
    except ValueError:
        return 0
    return number if 0 <= number <= most else 0


def is_tick(message: Message) -> bool:
    """Whether *message* is a tick, which no consumer gets."""
    return message.source == TICK_SOURCE


def have_ticks(messages: RecordBatch) -> bool:
    """Whether a tick is among *messages* (``MESSAGE_SCHEMA``)."""
    sources = messages.column("source")
    return TICK_SOURCE.encode() in data_of(sources) and pc.index(sources, TICK_SOURCE).as_py() >= 0


def message_id(message: Message, known: dict[str, bytes] | None = None) -> str:
    """The id by which clients know a message; one that no client sent is named after its place in the log.

    A dead letter keeps the id that the message had.
    """
    headers = known or dict(message.headers)
    found = headers.get(DEAD_ID) or headers.get(ID)
    return header_text(found) if found else f"LOG{message.id:019d}"


def _set_optional(system: v2.SystemProperties, known: dict[str, bytes]) -> None:
    if TAG in known:
        system.tag = header_text(known[TAG])
    if GROUP in known:
        system.message_group = header_text(known[GROUP])
    if DELIVER_AT in known:
        set_time(system.delivery_timestamp, header_number(known[DELIVER_AT], MAX_TIME))
    if TRACE in known:
        system.trace_context = header_text(known[TRACE])
    if DEAD_TOPIC in known:
        system.dead_letter_queue.topic = header_text(known[DEAD_TOPIC])
        system.dead_letter_queue.message_id = header_text(known.get(DEAD_ID, b""))


def _set_delivery(system: v2.SystemProperties, frame: DeliveryInfo) -> None:
    if frame.handle:
        system.receipt_handle = frame.handle
        system.delivery_attempt = frame.attempt
        set_time(system.invisible_duration, frame.invisible)


def set_time(target: Any, microseconds: int) -> None:
    """Set a timestamp or a duration of the protocol; its own methods take ten times as long."""
    target.seconds, rest = divmod(microseconds, 1_000_000)
    target.nanos = rest * 1000
