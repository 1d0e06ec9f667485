"""Handing messages to a listener, and telling the server what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from millstream.core import tracing
from millstream.messaging.client.backoff import Backoff
from millstream.messaging.client.consumer import Consumer
from millstream.messaging.client.errors import ClientError, InvalidHandleError
from millstream.messaging.client.message import Received

Listener = Callable[[Received], Awaitable[bool | None]]
Done = Callable[[Received], None]

_log = logging.getLogger(__name__)


class ConsumeService:
    """Runs *listener* on messages for *consumer*, at most *concurrency* at a time.

    A listener that raises, or returns False, has failed. Without order, a message that failed comes back after a
    pause; with it (:attr:`fifo`) it is handled again here, and those behind it in its message group wait.
    """

    def __init__(self, consumer: Consumer, listener: Listener, concurrency: int) -> None:
        self._consumer = consumer
        self._listener = listener
        self._slots = asyncio.Semaphore(concurrency)
        self._ending = asyncio.Event()
        self._running: set[asyncio.Future[None]] = set()
        self.fifo = False
        self.backoff = Backoff(17, pauses=(1.0,))

    def consume(self, messages: Sequence[Received], done: Done) -> None:
        """Handle *messages*; *done* is called with each when its life here is over."""
        if not self.fifo:
            for message in messages:
                self._spawn(self._consume_run([message], done))
            return
        runs: dict[str, list[Received]] = defaultdict(list)
        for message in messages:
            runs[message.message_group].append(message)
        for run in runs.values():
            self._spawn(self._consume_run(run, done))

    async def end(self) -> None:
        """Let listeners that run come to their end; what has not begun, or waits for another try, is given back."""
        self._ending.set()
        while running := list(self._running):
            await asyncio.gather(*running, return_exceptions=True)
            self._running.difference_update(running)  # gather may return before their callbacks have run

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _consume_run(self, run: Sequence[Received], done: Done) -> None:
        came, is_ours = self._consumer.clock.monotonic(), True
        for message in run:
            try:
                if not is_ours:  # another consumer has the message group: what is behind a lost message is its own too
                    await self._give_back(message, 0.0)
                elif self.fifo:
                    is_ours = await self._consume_in_order(message, came)
                else:
                    await self._consume_one(message, came)
            except Exception:
                _log.exception("message %s of %s could not be settled", message.message_id, message.topic)
            finally:
                done(message)

    async def _consume_one(self, message: Received, came: float) -> None:
        async with self._slots:
            self._measure_wait(message, came)
            if self._ending.is_set():
                await self._give_back(message, 0.0)
            elif not message.is_corrupted and await self._handle(message):
                await self._persist(message, partial(self._consumer.acknowledge, [message]))
            else:
                await self._give_back(message, self.backoff.delay(max(message.attempt, 1)))

    async def _consume_in_order(self, message: Received, came: float) -> bool:
        """Handle *message* until it is settled; False where it turned out to be another consumer's by then."""
        attempt = max(message.attempt, 1)
        while not self._ending.is_set():
            async with self._slots:
                self._measure_wait(message, came)
                if not message.is_corrupted and await self._handle(message):
                    return await self._persist(message, partial(self._consumer.acknowledge, [message]))
            if message.is_corrupted or attempt >= self.backoff.attempts:
                return await self._move_to_dead_letters(message, attempt)
            await self._pause(self.backoff.delay(attempt))
            attempt, came = attempt + 1, self._consumer.clock.monotonic()
            message = msgspec.structs.replace(message, attempt=attempt)
        await self._give_back(message, 0.0)
        return True

    async def _move_to_dead_letters(self, message: Received, attempt: int) -> bool:
        return await self._persist(
            message, partial(self._consumer.move_to_dead_letters, message, attempt, self.backoff.attempts)
        )

    async def _handle(self, message: Received) -> bool:
        begin = self._consumer.clock.monotonic()
        try:
            with tracing.span(
                "consume", parent=message.properties.get(tracing.HEADER), topic=message.topic,
                group=self._consumer.group, message=message.message_id, attempt=message.attempt,
            ):  # fmt: skip
                succeeded = await self._listener(message) is not False
        except Exception:
            _log.exception("the listener failed with message %s of %s", message.message_id, message.topic)
            succeeded = False
        if self._consumer.metrics is not None:
            seconds = self._consumer.clock.monotonic() - begin
            self._consumer.metrics.processed(message.topic, seconds, succeeded=succeeded)
        return succeeded

    def _measure_wait(self, message: Received, came: float) -> None:
        if self._consumer.metrics is not None:
            self._consumer.metrics.awaited(message.topic, self._consumer.clock.monotonic() - came)

    async def _give_back(self, message: Received, seconds: float) -> None:
        await self._persist(message, partial(self._consumer.hide, message, seconds))

    async def _persist(self, message: Received, call: Callable[[], Awaitable[object]]) -> bool:
        """Repeat *call* until it succeeds, or the handle is no good, which gives False, or the consumer ends."""
        while True:
            try:
                await call()
                return True
            except InvalidHandleError as error:
                _log.warning(
                    "message %s of topic %s no longer belongs to this consumer: %s",
                    message.message_id,
                    message.topic,
                    error,
                )
                return False
            except ClientError as error:
                _log.warning(
                    "cannot settle message %s of topic %s, and try again: %s", message.message_id, message.topic, error
                )
            if self._ending.is_set():
                return True
            await self._pause(self._consumer.options.intervals.retry)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
