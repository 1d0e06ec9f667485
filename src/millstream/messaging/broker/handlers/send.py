"""Taking messages from producers: into their topics, or held back until their time or their transaction's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from millstream.log import Message
from millstream.log.encoding.columns import MESSAGE_BYTES
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.batch_codec import (
    check_columns,
    check_sender,
    is_uniform,
    name_run,
    to_columns,
    to_log_messages,
    to_messages,
)
from millstream.messaging.broker.handlers.delayed_message_scheduler import DelayedMessageScheduler
from millstream.messaging.broker.handlers.validation import check_delivery_time, check_message, check_topic_name
from millstream.messaging.broker.names import write_recall, write_transaction
from millstream.messaging.broker.storage.delayed_messages import delayed_message, half_message
from millstream.messaging.broker.storage.topic import MIN_COLUMNS, Topic
from millstream.messaging.broker.storage.wire_codec import to_log
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import SendBatchRequest, SendBatchResponse

_AT_ONCE: Final = 1024  # messages, some 15 ms

_log = logging.getLogger(__name__)


class SendResult(msgspec.Struct, frozen=True):
    """The result of sending one message. ``code`` and ``text`` are its status."""

    code: int
    text: str
    message_id: str = ""
    offset: int = 0
    transaction_id: str = ""
    recall_handle: str = ""


class SendHandler:
    """Stores what producers send to *core*."""

    def __init__(self, core: BrokerCore, delayed_messages: DelayedMessageScheduler) -> None:
        self._core = core
        self._delayed_messages = delayed_messages
        self._bytes = 0  # of messages that are being stored

    async def send(self, name: str, messages: Sequence[v2.Message]) -> list[SendResult]:
        """Store *messages* in the topic *name*: a receipt for each, in order. What was refused is not stored.

        Raises :class:`StatusError` where the topic cannot take any, and the log's errors.
        """
        check_topic_name(name)
        topic = self._core.topic(name)
        size = self._reserve_bytes(sum([len(message.body) for message in messages]), len(messages))
        try:
            return await self._send(topic, messages)
        finally:
            self._bytes -= size

    async def _send(self, topic: Topic, messages: Iterable[v2.Message]) -> list[SendResult]:
        refused: dict[int, SendResult] = {}
        stored: list[Message] = []
        names: list[str] = []
        for row, message in enumerate(messages):
            try:
                stored.append(self._read(topic, message))
                names.append(message.system_properties.message_id)
            except StatusError as error:
                refused[row] = SendResult(error.code, str(error))
            if row % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # other calls do not wait for all of them
        results = await self._store(topic, stored, names)
        if not refused:
            return results
        left = iter(results)
        return [refused[row] if row in refused else next(left) for row in range(len(names) + len(refused))]

    async def send_batch(self, name: str, batch: SendBatchRequest) -> SendBatchResponse:
        """Like :meth:`send`, of a batch of one of our clients."""
        check_topic_name(name)
        topic = self._core.topic(name)
        check_columns(batch)
        check_sender(batch)
        size = self._reserve_bytes(len(batch.bodies.data), batch.ids.count)
        try:
            return await self._send_batch(topic, batch)
        finally:
            self._bytes -= size

    async def _send_batch(self, topic: Topic, batch: SendBatchRequest) -> SendBatchResponse:
        name, count = topic.spec.name, batch.ids.count
        is_ordered = batch.kind == v2.FIFO
        fits = batch.kind == topic.spec.kind and (batch.kind == v2.NORMAL or (is_ordered and batch.group))
        if not fits or not is_uniform(batch):
            return _stored(await self._send(topic, to_messages(batch)))
        queues = topic.assign_queues(count, batch.group)
        if count < MIN_COLUMNS:
            ids = await self._core.publish(name, to_log_messages(batch, queues))
        else:
            names = name_run(batch.ids) or batch.ids.values()
            ids = await self._core.publish_columns(name, names, to_columns(batch, queues))
        offsets = [ids.start - 1] if isinstance(ids, range) else [number - 1 for number in ids]
        return SendBatchResponse(v2.OK, "OK", offsets)

    def _reserve_bytes(self, size: int, count: int) -> int:
        """The bytes of *count* messages with bodies of *size* bytes, which count as being stored from now on.

        Raises TOO_MANY_REQUESTS on top of too much by others.
        """
        size += MESSAGE_BYTES * count
        if self._bytes and self._bytes + size > self._core.limits.max_pending_bytes:
            raise StatusError(v2.TOO_MANY_REQUESTS, "too many messages are in flight: send the message again later")
        self._bytes += size
        return size

    def _read(self, topic: Topic, message: v2.Message) -> Message:
        kind = check_message(message, topic.spec)
        system = message.system_properties
        found = to_log(message, kind, topic.assign_queue(system.message_group))
        if kind == v2.DELAY:
            now = self._core.clock.now()
            return delayed_message(found, topic.spec.name, check_delivery_time(message, now, self._core.limits))
        if kind == v2.TRANSACTION:
            return half_message(found, topic.spec.name, self._first_check(system))
        return found

    def _first_check(self, system: v2.SystemProperties) -> int:
        wait = self._core.limits.first_check
        if system.HasField("orphaned_transaction_recovery_duration"):
            asked = system.orphaned_transaction_recovery_duration
            wait = min(max(asked.seconds * 1_000_000 + asked.nanos // 1000, 0), self._core.limits.max_delay)
        return self._core.clock.now() + wait

    async def _store(self, topic: Topic, messages: Sequence[Message], names: Sequence[str]) -> list[SendResult]:
        if not messages:
            return []
        if topic.spec.type in ("NORMAL", "FIFO"):
            ids = await self._core.publish(topic.spec.name, messages)
            return [SendResult(v2.OK, "OK", name, number - 1) for name, number in zip(names, ids, strict=True)]
        held = zip(names, await self._delayed_messages.hold(messages), strict=True)
        if topic.spec.type == "DELAY":
            return [
                SendResult(v2.OK, "OK", name, number - 1, recall_handle=write_recall(number, name))
                for name, number in held
            ]
        return [
            SendResult(v2.OK, "OK", name, number - 1, transaction_id=write_transaction(number, name))
            for name, number in held
        ]


def _stored(receipts: Sequence[SendResult]) -> SendBatchResponse:
    refused = {row: (each.code, each.text) for row, each in enumerate(receipts) if each.code != v2.OK}
    code, text = combined_status([(each.code, each.text) for each in receipts])
    return SendBatchResponse(code, text, [each.offset for each in receipts], refused)


def combined_status(parts: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """The status of a call from those of its entries: theirs where they agree, else MULTIPLE_RESULTS."""
    if len({code for code, _ in parts}) == 1:
        return parts[0]
    return v2.MULTIPLE_RESULTS, "the entries ended differently; see each"
