"""Single sends gathered into batches: one call costs about the same whether it brings one message or a thousand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import msgspec

from millstream.messaging.client.errors import ClientError, is_definite
from millstream.messaging.client.message import Message, Receipt

Results = Sequence[Receipt | ClientError]
SendBatch = Callable[[Sequence[Message]], Awaitable[Results]]

MAX_CALLS_IN_FLIGHT = 4
"""How many batches of one topic are sent at the same time; of a message group it is one, for its order."""


class BatchLimits(msgspec.Struct, frozen=True):
    """A batch is sent when its first message has waited for ``linger`` seconds, or it has so many messages or bytes."""

    linger: float
    messages: int
    bytes: int


class SendBatcher:
    """Gathers messages by topic and message group and hands batches to *send*, as *batching* has it."""

    def __init__(self, batching: BatchLimits, send: SendBatch) -> None:
        self._batching = batching
        self._send = send
        self._lanes: dict[Hashable, _Lane] = {}

    async def send(self, message: Message) -> Receipt:
        """Send *message* with others. Raises :class:`ClientError`; whoever is cancelled early enough takes it back."""
        key = (message.topic, message.message_group)
        lane = self._lanes.get(key)
        if lane is None:
            most = 1 if message.message_group else MAX_CALLS_IN_FLIGHT
            lane = self._lanes[key] = _Lane(self._batching, self._send, most, lambda: self._lanes.pop(key, None))
        return await lane.add(message)

    async def flush(self) -> None:
        """Send what waits without lingering, and return when all of it has its result."""
        await asyncio.gather(*(lane.flush() for lane in list(self._lanes.values())))


class _Lane:
    """The messages of one topic and message group; *gone* is called when there are none left."""

    def __init__(self, batching: BatchLimits, send: SendBatch, most: int, gone: Callable[[], object]) -> None:
        self._batching = batching
        self._send = send
        self._most = most
        self._gone = gone
        self._waiting: deque[tuple[Message, asyncio.Future[Receipt]]] = deque()
        self._bytes = 0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Future[None]] = set()

    def add(self, message: Message) -> asyncio.Future[Receipt]:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.append((message, result))
        self._bytes += len(message.body)
        if len(self._waiting) >= self._batching.messages or self._bytes >= self._batching.bytes:
            self._go()
        elif self._timer is None and not self._is_due:
            self._timer = loop.call_later(self._batching.linger, self._fall_due)
        return result

    async def flush(self) -> None:
        results: list[asyncio.Future[Any]] = [result for _, result in self._waiting]
        self._fall_due()
        results += self._under_way
        if results:
            await asyncio.wait(results)

    def _fall_due(self) -> None:
        self._is_due = True
        self._go()

    def _go(self) -> None:
        """Send what may be sent now: full batches, and what has waited long enough."""
        while len(self._under_way) < self._most and self._waiting:
            full = len(self._waiting) >= self._batching.messages or self._bytes >= self._batching.bytes
            if not full and not self._is_due:
                break
            batch = self._take()
            if batch:
                task = asyncio.ensure_future(self._deliver(batch))
                self._under_way.add(task)
                task.add_done_callback(self._done)
        if not self._waiting:
            self._rest()

    def _take(self) -> list[tuple[Message, asyncio.Future[Receipt]]]:
        """The next batch, without the messages whose senders have gone."""
        batch: list[tuple[Message, asyncio.Future[Receipt]]] = []
        size = 0
        while self._waiting and len(batch) < self._batching.messages:
            message, result = self._waiting[0]
            if batch and size + len(message.body) > self._batching.bytes:
                break
            self._waiting.popleft()
            self._bytes -= len(message.body)
            if not result.cancelled():
                batch.append((message, result))
                size += len(message.body)
        return batch

    def _rest(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._under_way:
            self._gone()

    def _done(self, task: asyncio.Future[None]) -> None:
        self._under_way.discard(task)
        self._go()

    async def _deliver(self, batch: Sequence[tuple[Message, asyncio.Future[Receipt]]]) -> None:
        try:
            results = await self._results([message for message, _ in batch])
        except ClientError as error:
            results = [error] * len(batch)
        except BaseException as error:
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(ClientError(f"the batch was given up: {error!r}"))
            raise
        for (_, waiting), result in zip(batch, results, strict=True):
            if waiting.done():
                continue
            if isinstance(result, ClientError):
                waiting.set_exception(result)
            else:
                waiting.set_result(result)

    async def _results(self, messages: Sequence[Message]) -> Results:
        """Of each message, the result; where a server refused a whole batch, each is tried by itself.

        Apache RocketMQ refuses all for the sake of one.
        """
        results = await self._send(messages)
        if len(messages) == 1 or not all(isinstance(each, ClientError) and is_definite(each) for each in results):
            return results
        return [(await self._send([message]))[0] for message in messages]
