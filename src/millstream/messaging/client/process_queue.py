"""One assigned queue of a push consumer: receives into a bounded cache, for as long as it is assigned."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

import msgspec

from millstream.messaging.client.consume_service import ConsumeService
from millstream.messaging.client.consumer import Consumer
from millstream.messaging.client.errors import ClientError, ThrottledError
from millstream.messaging.client.message import Received
from millstream.messaging.client.route import Queue, write_queue
from millstream.messaging.protocol import v2

_log = logging.getLogger(__name__)


class CacheLimits(msgspec.Struct, frozen=True):
    """How much may be cached: this many messages, this many bytes of bodies."""

    messages: int
    bytes: int


class Polling(msgspec.Struct, frozen=True):
    """The server's settings for requests: messages at a time, and seconds to wait."""

    batch: int = 32
    seconds: float = 20.0


class ProcessQueue:
    """Receives *queue* of *topic* for *consumer* and hands messages to *consumption*.

    *limits* says how much may be cached now, *polling* how to ask.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        queue: Queue,
        consumption: ConsumeService,
        *,
        limits: Callable[[], CacheLimits],
        polling: Callable[[], Polling],
    ) -> None:
        self._consumer = consumer
        self._queue = queue
        self._consume_service = consumption
        self._limits = limits
        self._polling = polling
        self._attempt = str(uuid.uuid4())
        self._active = consumer.clock.monotonic()
        self.topic = topic
        self.cached = 0
        self.cached_bytes = 0
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_full(self) -> bool:
        """Whether the cache takes no more."""
        limits = self._limits()
        return self.cached >= limits.messages or self.cached_bytes >= limits.bytes

    @property
    def is_expired(self) -> bool:
        """Whether it has not received for so long that something is wrong with it; a full cache is nothing wrong."""
        longest = self._polling().seconds + self._consumer.options.request_timeout
        return self._consumer.clock.monotonic() - self._active > 3 * longest

    async def drop(self) -> None:
        """Receive no more; what is cached is still consumed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pauses = self._consumer.options.intervals
        while True:
            self._active = self._consumer.clock.monotonic()
            if self.is_full:
                await asyncio.sleep(pauses.retry)
                continue
            try:
                await self._receive()
            except ThrottledError:
                await asyncio.sleep(pauses.throttled)
            except ClientError as error:
                _log.warning("receiving from %s failed and is tried again: %s", self.topic, error)
                await asyncio.sleep(pauses.retry)
            except Exception:  # what a server sends must not silence the queue, nor come again and again
                _log.exception("receiving from %s failed and is tried again", self.topic)
                self._attempt = str(uuid.uuid4())
                await asyncio.sleep(pauses.retry)

    async def _receive(self) -> None:
        polling = self._polling()
        request = v2.ReceiveMessageRequest(
            group=self._consumer.group_resource(),
            message_queue=write_queue(self._queue, self.topic, self._consumer.options.namespace),
            filter_expression=self._consumer.subscriptions[self.topic].to_wire(),
            batch_size=min(polling.batch, max(1, self._limits().messages - self.cached)),
            auto_renew=True,
            attempt_id=self._attempt,
        )
        request.long_polling_timeout.FromMilliseconds(round(polling.seconds * 1000))
        messages = await self._consumer.receive_from(self._queue.endpoints, request, polling.seconds)
        if messages:
            self._attempt = str(uuid.uuid4())
            self.cached += len(messages)
            self.cached_bytes += sum(len(message.body) for message in messages)
            self._consume_service.consume(messages, self._evict)

    def _evict(self, message: Received) -> None:
        self.cached -= 1
        self.cached_bytes -= len(message.body)
