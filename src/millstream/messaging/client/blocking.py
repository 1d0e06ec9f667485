"""The clients for programs without an event loop: the same names, methods that block.

Generated from the asynchronous clients by `make proto`; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from millstream.core.clock import Clock
from millstream.messaging.client import producer
from millstream.messaging.client import simple_consumer
from millstream.messaging.client import push_consumer
from millstream.messaging.client.loop_thread import Blocking, BlockingTransaction, in_threads
from millstream.messaging.client.message import Message, Receipt, Received
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.producer import Resolution
from millstream.messaging.client.subscription import Filter

Checker = Callable[[Received], Resolution]
Listener = Callable[[Received], bool | None]


class Producer(Blocking[producer.Producer]):
    """:class:`millstream.messaging.client.Producer`, blocking."""

    def __init__(self, endpoints: str, topics: Iterable[str] = (), *, checker: Checker | None = None, linger: float | timedelta | None = None, batch: int = 1000, batch_bytes: int = 1048576, options: Options = DEFAULTS, clock: Clock | None = None) -> None:
        super().__init__(producer.Producer(endpoints, topics, checker=None if checker is None else in_threads(checker), linger=linger, batch=batch, batch_bytes=batch_bytes, options=options, clock=clock))

    def send(self, message: Message) -> Receipt:
        """Send *message*, and try again as the workflow has it. Raises :class:`ClientError`."""
        return self._loop.run(self._client.send(message))

    def send_many(self, messages: Sequence[Message]) -> list[Receipt]:
        """Send *messages*, all of one topic and type and one message group at most, in one call.

        Raises :class:`PartialFailureError` where some were not stored, which has the result of each, else the
        :class:`ClientError` that all share."""
        return self._loop.run(self._client.send_many(messages))

    def flush(self) -> None:
        """Send what lingers at once, and return when all of it has its result."""
        self._loop.run(self._client.flush())

    def begin(self, message: Message) -> BlockingTransaction:
        """Send *message* as the half of a transaction: no consumer gets it before :meth:`Transaction.commit`.

        Never retried: one that failed may have been stored. Raises :class:`ClientError`."""
        return BlockingTransaction(self._loop, self._loop.run(self._client.begin(message)))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message before its time; its message id. Raises :class:`ClientError`."""
        return self._loop.run(self._client.recall(topic, recall_handle))


class SimpleConsumer(Blocking[simple_consumer.SimpleConsumer]):
    """:class:`millstream.messaging.client.SimpleConsumer`, blocking."""

    def __init__(self, endpoints: str, group: str, subscriptions: Mapping[str, str | Filter], *, await_duration: float | timedelta = 20.0, options: Options = DEFAULTS, clock: Clock | None = None) -> None:
        super().__init__(simple_consumer.SimpleConsumer(endpoints, group, subscriptions, await_duration=await_duration, options=options, clock=clock))

    def receive(self, count: int = 32, *, invisible: float | timedelta = 30.0, topic: str | None = None) -> list[Received]:
        """At most *count* messages of one topic, hidden from the group's others for *invisible*; none is no error.

        Unless it is *topic*, the topics take turns; so do their queues. Raises :class:`ClientError`."""
        return self._loop.run(self._client.receive(count, invisible=invisible, topic=topic))

    def ack(self, *messages: Received) -> None:
        """*messages* are done. Raises :class:`ClientError`, of the first call that failed."""
        self._loop.run(self._client.ack(*messages))

    def change_invisible_duration(self, message: Received, invisible: float | timedelta) -> Received:
        """Let *message* come back when *invisible* is over; the message with the handle that is valid from now on."""
        return self._loop.run(self._client.change_invisible_duration(message, invisible))

    def subscribe(self, topic: str, wanted: str | Filter = '*') -> None:
        """Receive from *topic* as well. Raises :class:`ClientError` if its route is unavailable."""
        self._loop.run(self._client.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Receive no more from *topic*."""
        self._loop.run(self._client.unsubscribe(topic))

    def __iter__(self) -> Iterator[Received]:
        """Messages one by one, for ever; each is to be acknowledged within 30 seconds."""
        while True:
            yield from self.receive()


class PushConsumer(Blocking[push_consumer.PushConsumer]):
    """:class:`millstream.messaging.client.PushConsumer`, blocking."""

    def __init__(self, endpoints: str, group: str, subscriptions: Mapping[str, str | Filter], listener: Listener, *, concurrency: int = 20, cache: int = 4096, cache_bytes: int = 67108864, options: Options = DEFAULTS, clock: Clock | None = None) -> None:
        super().__init__(push_consumer.PushConsumer(endpoints, group, subscriptions, in_threads(listener), concurrency=concurrency, cache=cache, cache_bytes=cache_bytes, options=options, clock=clock))
