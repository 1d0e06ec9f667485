"""The simple consumer: the application receives and acknowledges by itself."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import ClassVar

import msgspec

from millstream.core import tracing
from millstream.core.clock import Clock
from millstream.messaging.client.consumer import Consumer
from millstream.messaging.client.errors import BadRequestError, ForbiddenError, ResourceNotFoundError
from millstream.messaging.client.message import Received
from millstream.messaging.client.options import DEFAULTS, Options, seconds_of
from millstream.messaging.client.route import Queue, write_queue
from millstream.messaging.client.subscription import Filter, read_filter
from millstream.messaging.protocol import v2


class SimpleConsumer(Consumer):
    """Receives for *group* from the servers at *endpoints*; see :class:`Consumer`.

    A receive waits for *await_duration* (seconds or a timedelta) where there is nothing.

    >>> async with SimpleConsumer("127.0.0.1:8081", "kitchen", {"orders": "*"}) as consumer:  # doctest: +SKIP
    ...     for message in await consumer.receive(32, invisible=60):
    ...         await consumer.ack(message)
    """

    kind: ClassVar[int] = v2.SIMPLE_CONSUMER

    def __init__(
        self,
        endpoints: str,
        group: str,
        subscriptions: Mapping[str, str | Filter],
        *,
        await_duration: float | timedelta = 20.0,
        options: Options = DEFAULTS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(endpoints, group, subscriptions, options=options, clock=clock)
        self._await = seconds_of(await_duration)
        self._topic_turns = itertools.count()
        self._queue_turns: dict[str, Iterator[int]] = defaultdict(itertools.count)

    async def receive(
        self, count: int = 32, *, invisible: float | timedelta = 30.0, topic: str | None = None
    ) -> list[Received]:
        """At most *count* messages of one topic, hidden from the group's others for *invisible*; none is no error.

        Unless it is *topic*, the topics take turns; so do their queues. Raises :class:`ClientError`.
        """
        self.require_running()
        if count < 1:
            raise BadRequestError(f"count must be at least 1, not {count}")
        topics = sorted(self.subscriptions)
        if not topics or (topic is not None and topic not in topics):
            what = "subscription" if topic is None else f"subscription of topic {topic}"
            raise BadRequestError(f"the consumer has no {what}: subscribe to a topic first")
        if topic is None:
            topic = topics[next(self._topic_turns) % len(topics)]
        began = self.clock.now()
        try:
            found = await self._receive(topic, count, seconds_of(invisible))
        except ForbiddenError:
            self.refused.add(topic)
            raise
        self.refused.discard(topic)
        if found:
            traces = [trace for message in found if (trace := message.properties.get(tracing.HEADER))]
            facts = {"topic": topic, "group": self.group, "messages": len(found)}
            with tracing.span("receive", parent=traces[0] if traces else None, links=traces[1:], began=began, **facts):
                pass
        return found

    async def _receive(self, topic: str, count: int, invisible: float) -> list[Received]:
        queue = await self._next_queue(topic)
        request = v2.ReceiveMessageRequest(
            group=self.group_resource(),
            message_queue=write_queue(queue, topic, self.options.namespace),
            filter_expression=self.subscriptions[topic].to_wire(),
            batch_size=count,
        )
        request.invisible_duration.FromMilliseconds(round(invisible * 1000))
        request.long_polling_timeout.FromMilliseconds(round(self._await * 1000))
        return await self.receive_from(queue.endpoints, request, self._await)

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Messages one by one, for ever; each is to be acknowledged within 30 seconds."""
        while True:
            for message in await self.receive():
                yield message

    async def ack(self, *messages: Received) -> None:
        """*messages* are done. Raises :class:`ClientError`, of the first call that failed."""
        self.require_running()
        calls: dict[object, list[Received]] = defaultdict(list)
        for message in messages:
            calls[message.topic, message.endpoints].append(message)
        await asyncio.gather(*map(self.acknowledge, calls.values()))

    async def change_invisible_duration(self, message: Received, invisible: float | timedelta) -> Received:
        """Let *message* come back when *invisible* is over; the message with the handle that is valid from now on."""
        self.require_running()
        handle = await self.hide(message, seconds_of(invisible))
        return msgspec.structs.replace(message, receipt_handle=handle)

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Receive from *topic* as well. Raises :class:`ClientError` if its route is unavailable."""
        self.require_running()
        await self.route(topic)
        self.subscriptions[topic] = read_filter(wanted)
        await self.sync_settings()

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more from *topic*."""
        self.require_running()
        self.subscriptions.pop(topic, None)
        await self.sync_settings()

    def declare(self, settings: v2.Settings) -> None:
        super().declare(settings)
        settings.subscription.long_polling_timeout.FromMilliseconds(round(self._await * 1000))

    def apply_settings(self, settings: v2.Settings) -> None:
        """A simple consumer keeps its own."""

    async def _next_queue(self, topic: str) -> Queue:
        readable = (await self.route(topic)).readable
        if not readable:
            raise ResourceNotFoundError(
                f"topic {topic} has no readable queue: give the topic read permission on the server"
            )
        return readable[next(self._queue_turns[topic]) % len(readable)]
