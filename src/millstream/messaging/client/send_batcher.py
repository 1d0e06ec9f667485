"""Single sends that share calls: a call costs about the same whether it brings one message or a thousand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from millstream.messaging.async_batcher import KeyedBatchers
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.client.errors import ClientError, call_failure
from millstream.messaging.client.message import Message, Receipt
from millstream.messaging.protocol import v2

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
        self._send = send
        self._limits = BatchingLimits(
            max_in_flight=MAX_CALLS_IN_FLIGHT,
            max_partial=MAX_PARTIAL,
            max_items=batching.messages,
            max_bytes=batching.bytes,
            lingers=True,
        )
        self._ordered_limits = msgspec.structs.replace(self._limits, max_in_flight=1)
        self._batchers: KeyedBatchers[Message, Receipt] = KeyedBatchers(
            self._results, failure=call_failure, linger=batching.linger, drops_cancelled=True
        )

    @property
    def had_company(self) -> bool:
        """Whether the last batch had several messages: see :class:`KeyedBatchers`."""
        return self._batchers.had_company

    async def send(self, message: Message) -> Receipt:
        """Send *message* with others. Raises :class:`ClientError`.

        A message whose sender is cancelled before it is in flight is not sent.
        """
        limits = self._ordered_limits if message.message_group else self._limits
        batcher = self._batchers.batcher((message.topic, message.message_group), limits)
        return await batcher.submit(message, size=_size(message))

    async def flush(self) -> None:
        """Send what waits without lingering, and return when all of it has its result."""
        await self._batchers.flush()

    async def _results(self, messages: Sequence[Message]) -> Results:
        """The result of each message; where the batch was too large for the server, each is tried by itself."""
        results = await self._send(messages)
        if len(messages) == 1 or not all(map(_is_too_large, results)):
            return results
        return [(await self._send([message]))[0] for message in messages]


def _is_too_large(result: Receipt | ClientError) -> bool:
    return isinstance(result, ClientError) and result.code == v2.PAYLOAD_TOO_LARGE


def _size(message: Message) -> int:
    """The bytes of the body, and the characters of what else a batch has of *message*."""
    size = len(message.body)
    if message.properties or message.keys or message.tag:
        size += len(message.tag) + sum(map(len, message.keys))
        size += sum(len(name) + len(value) for name, value in message.properties.items())
    return size
