"""The push consumer: a listener is given messages as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import ClassVar

from millstream.core.clock import Clock
from millstream.messaging.client.backoff import read_backoff
from millstream.messaging.client.command_answers import verification_answer
from millstream.messaging.client.consume_service import ConsumeService, Listener
from millstream.messaging.client.consumer import Consumer
from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.message import from_wire
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.process_queue import CacheLimits, Polling, ProcessQueue
from millstream.messaging.client.route import Queue, read_queue
from millstream.messaging.client.subscription import Filter
from millstream.messaging.protocol import v2

AssignedQueue = tuple[str, Queue]

_log = logging.getLogger(__name__)


class PushConsumer(Consumer):
    """Hands what *group* is given of *subscriptions* to *listener*, ``async def listener(message)``.

    A listener that returns has handled its message; one that raises, or returns False, has failed, and gets it again
    by the server's policy. At most *concurrency* run at a time; messages of topics with order one after another by
    message group. At most *cache* messages and *cache_bytes* bytes wait for a listener.

    >>> async with PushConsumer("127.0.0.1:8081", "kitchen", {"orders": "*"}, cook):  # doctest: +SKIP
    ...     await closing_time()
    """

    kind: ClassVar[int] = v2.PUSH_CONSUMER

    def __init__(
        self,
        endpoints: str,
        group: str,
        subscriptions: Mapping[str, str | Filter],
        listener: Listener,
        *,
        concurrency: int = 20,
        cache: int = 4096,
        cache_bytes: int = 64 << 20,
        options: Options = DEFAULTS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(endpoints, group, subscriptions, options=options, clock=clock)
        self._listener = listener
        self._cache = CacheLimits(cache, cache_bytes)
        self._concurrency = concurrency
        self._consume_service: ConsumeService | None = None
        self._queues: dict[AssignedQueue, ProcessQueue] = {}
        self._assigning = asyncio.Lock()
        self._polling = Polling()
        self._policy: v2.Settings | None = None

    async def on_start(self) -> None:
        self._consume_service = ConsumeService(self, self._listener, self._concurrency)
        if self._policy is not None:
            self.apply_settings(self._policy)
        pause = self.options.intervals.assignments
        await self._assign()
        self.spawn(self._repeat(pause, pause, self._assign))

    def cached(self) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for queue in list(self._queues.values()):
            count, size = found.get(queue.topic, (0, 0))
            found[queue.topic] = count + queue.cached, size + queue.cached_bytes
        return found

    async def on_routes(self) -> None:
        await self._assign()

    async def on_close(self) -> None:
        """Receive no more, wait for the listeners that run, and give back what has not begun."""
        await asyncio.gather(*(queue.drop() for queue in self._queues.values()))
        self._queues.clear()
        if self._consume_service is not None:
            await self._consume_service.end()

    def apply_settings(self, settings: v2.Settings) -> None:
        self._policy = settings
        wanted = settings.subscription
        if wanted.receive_batch_size:
            seconds = wanted.long_polling_timeout.ToTimedelta().total_seconds() or self._polling.seconds
            self._polling = Polling(wanted.receive_batch_size, seconds)
        if self._consume_service is not None:
            self._consume_service.fifo = wanted.fifo
            if settings.HasField("backoff_policy"):
                self._consume_service.backoff = read_backoff(settings.backoff_policy)

    async def on_command(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        if not command.HasField("verify_message_command"):
            return await super().on_command(endpoints, command)
        asked = command.verify_message_command
        try:
            fine = await self._listener(from_wire(asked.message, endpoints)) is not False
        except Exception:
            fine = False
        return verification_answer(asked.nonce, v2.OK if fine else v2.FAILED_TO_CONSUME_MESSAGE)

    async def _assign(self) -> None:
        """Ask which queues this consumer is to have, drop the others, and begin with those that are new."""
        async with self._assigning:
            topics = sorted(self.subscriptions)
            results = await asyncio.gather(*map(self._assign_topic, topics), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _assign_topic(self, topic: str) -> None:
        wanted = await self._ask_assignment(topic)
        mine = [place for place in self._queues if place[0] == topic]
        if mine and not wanted:
            _log.warning("consumer %s has no queue of topic %s any more", self.id, topic)
        for place in mine:
            if place not in wanted or self._queues[place].is_expired:
                await self._queues.pop(place).drop()
        for place in wanted.difference(self._queues):
            self._queues[place] = self._open(place)

    async def _ask_assignment(self, topic: str) -> set[AssignedQueue]:
        request = v2.QueryAssignmentRequest(
            topic=self.resource(topic), group=self.group_resource(), endpoints=self.access_point.to_wire()
        )
        transport = self.transport(self.access_point)
        response = await transport.call_checked("QueryAssignment", request, self.options.request_timeout)
        return {(topic, read_queue(each.message_queue)) for each in response.assignments}

    def _open(self, place: AssignedQueue) -> ProcessQueue:
        assert self._consume_service is not None
        topic, queue = place
        return ProcessQueue(
            self, topic, queue, self._consume_service, limits=self._share, polling=lambda: self._polling
        )

    def _share(self) -> CacheLimits:
        """The share of one queue of the cache."""
        count = max(len(self._queues), 1)
        return CacheLimits(max(self._cache.messages // count, 1), max(self._cache.bytes // count, 1))
