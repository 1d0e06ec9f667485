"""Single sends that share calls: a call costs about the same whether it brings one message or a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence

import msgspec

from millstream.messaging.async_batcher import AsyncBatcher
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.client.errors import ClientError, call_failure, is_definite
from millstream.messaging.client.message import Message, Receipt

Results = Sequence[Receipt | ClientError]
SendBatch = Callable[[Sequence[Message]], Awaitable[Results]]

MAX_CALLS_IN_FLIGHT = 4
"""How many batches of one topic are sent at the same time; of a message group it is one, for its order."""

MAX_PARTIAL = 2
"""How many of them may be in flight when one goes that is not full.

One is on its way while the broker stores the other. With more, messages are spread over smaller batches, each of which
costs the broker a call.
"""


class Batching(msgspec.Struct, frozen=True):
    """A batch is sent when its first message has waited for ``linger`` seconds, or it has so many messages or bytes."""

    linger: float
    messages: int
    bytes: int


class SendBatcher:
    """Batches messages by topic and message group and hands the batches to *send*, as *batching* says."""

    def __init__(self, batching: Batching, send: SendBatch) -> None:
        self._batching = batching
        self._send = send
        self._batchers: dict[Hashable, AsyncBatcher[Message, Receipt]] = {}

    async def send(self, message: Message) -> Receipt:
        """Send *message* with others. Raises :class:`ClientError`.

        A message whose sender is cancelled before it is in flight is not sent.
        """
        key = (message.topic, message.message_group)
        batcher = self._batchers.get(key)
        if batcher is None:
            batcher = self._batchers[key] = self._new_batcher(key, 1 if message.message_group else MAX_CALLS_IN_FLIGHT)
        return await batcher.submit(message, size=len(message.body))

    async def flush(self) -> None:
        """Send what waits without lingering, and return when all of it has its result."""
        await asyncio.gather(*(batcher.flush() for batcher in list(self._batchers.values())))

    def _new_batcher(self, key: Hashable, max_in_flight: int) -> AsyncBatcher[Message, Receipt]:
        limits = BatchingLimits(
            max_in_flight=max_in_flight,
            max_partial=MAX_PARTIAL,
            max_items=self._batching.messages,
            max_bytes=self._batching.bytes,
            lingers=True,
        )
        return AsyncBatcher(
            self._results,
            limits,
            failure=call_failure,
            linger=self._batching.linger,
            drops_cancelled=True,
            on_idle=lambda: self._batchers.pop(key, None),
        )

    async def _results(self, messages: Sequence[Message]) -> Results:
        """The result of each message; where a server refused a whole batch, each is tried by itself.

        Apache RocketMQ refuses a whole batch because of one message.
        """
        results = await self._send(messages)
        if len(messages) == 1 or not all(isinstance(each, ClientError) and is_definite(each) for each in results):
            return results
        return [(await self._send([message]))[0] for message in messages]
