"""A broker without a network, on a virtual clock: for tests that ask what it answers, and what outlives a restart.

::

    def test_a_message_arrives() -> None:
        async def step(desk: BrokerHarness) -> None:
            await desk.send("plain", b"tea")
            assert bodies(await desk.receive("group", "plain")) == [b"tea"]

        with_harness(step)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from millstream.core.address import Address
from millstream.core.clock import VirtualClock
from millstream.log import LogStore, open_store
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.clients.sessions import ClientSession
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.broker_service import BrokerService
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.delayed_message_scheduler import DelayedMessageScheduler
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.protocol import v2
from millstream.testing.waiting import until_async

CALL = CallContext("client-1", "", lambda: None, connection="ipv4:10.0.0.1:50000", language="JAVA")
TOPICS = (
    TopicSpec("plain", "NORMAL", 4),
    TopicSpec("one", "NORMAL", 1),
    TopicSpec("ordered", "FIFO", 4),
    TopicSpec("later", "DELAY", 1),
    TopicSpec("halves", "TRANSACTION", 1),
)


class BrokerHarness:
    """A broker without a network: what a client would say to it, in one line each."""

    def __init__(self, store: LogStore, clock: VirtualClock, limits: Limits) -> None:
        self.clock = clock
        self.store = store
        self.core = BrokerCore(store, clock, limits)
        self.delayed_messages = DelayedMessageScheduler(self.core)
        self.service = BrokerService(
            self.core, self.delayed_messages, RouteEndpoints(address=Address("127.0.0.1", 8081))
        )

    def heard_of(self, call: CallContext = CALL) -> ClientSession:
        """The client of *call* sends a heartbeat by its connection; its session."""
        return self.core.sessions.touch(call.client_id, self.clock.now(), connection=call.connection)

    async def send(self, topic: str, *bodies: bytes, **system: Any) -> v2.SendMessageResponse:
        """Send *bodies* in one call; *system* is what :func:`fill` takes, and the ``message_id``."""
        request = v2.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(body=body)
            message.topic.name = topic
            message.system_properties.message_id = system.get("message_id") or hashlib.sha256(body).hexdigest()
            fill(message, **system)
        return await self.service.send_message(request, CALL)

    async def receive(self, group: str, topic: str, count: int = 32, **more: Any) -> list[v2.Message]:
        """Receive; *more* are ``auto_renew``, ``invisible`` and ``poll`` (seconds; None: not said), ``attempt_id``,
        ``filter`` and ``call``. With ``auto_renew`` a client without settings counts as one that began in order.

        The stream has to be one of the protocol: a status, then messages.
        """
        request = v2.ReceiveMessageRequest(batch_size=count, auto_renew=more.get("auto_renew", False))
        request.group.name, request.message_queue.topic.name = group, topic
        request.invisible_duration.seconds = more.get("invisible", 30)
        if more.get("poll", 0) is not None:
            request.long_polling_timeout.seconds = more.get("poll", 0)
        if "attempt_id" in more:
            request.attempt_id = more["attempt_id"]
        if "filter" in more:
            request.filter_expression.type, request.filter_expression.expression = more["filter"]
        call = more.get("call", CALL)
        if request.auto_renew:
            session = self.core.sessions.touch(call.client_id, self.clock.now())
            session.began_in_order = session.began_in_order is not False
        frames = [frame async for frame in self.service.receive_message(request, call)]
        assert frames[0].HasField("status")
        assert frames[0].status.code in (v2.OK, v2.MESSAGE_NOT_FOUND)
        return [frame.message for frame in frames if frame.HasField("message")]

    async def ack(self, group: str, topic: str, *messages: v2.Message) -> v2.AckMessageResponse:
        """Acknowledge *messages* in one call."""
        request = v2.AckMessageRequest()
        request.group.name, request.topic.name = group, topic
        for message in messages:
            handle = message.system_properties.receipt_handle
            request.entries.add(message_id=message.system_properties.message_id, receipt_handle=handle)
        return await self.service.ack_message(request, CALL)

    async def hide(self, group: str, topic: str, message: v2.Message, seconds: int) -> str:
        """Change the invisible duration of *message*; its new handle."""
        request = v2.ChangeInvisibleDurationRequest(receipt_handle=message.system_properties.receipt_handle)
        request.group.name, request.topic.name = group, topic
        request.invisible_duration.seconds = seconds
        return (await self.service.change_invisible_duration(request, CALL)).receipt_handle

    async def end(self, transaction_id: str, message_id: str, resolution: int) -> None:
        """End a transaction of the topic ``halves``."""
        kind: Any = resolution
        request = v2.EndTransactionRequest(transaction_id=transaction_id, message_id=message_id, resolution=kind)
        request.topic.name = "halves"
        await self.service.end_transaction(request, CALL)

    async def pull(self, topic: str, queue: int, offset: int) -> tuple[list[bytes], int]:
        """Pull at most 100 messages: their bodies, and the offset to go on from."""
        request = v2.PullMessageRequest(offset=offset, batch_size=100)
        request.message_queue.topic.name, request.message_queue.id = topic, queue
        frames = [frame async for frame in self.service.pull_message(request, CALL)]
        return [frame.message.body for frame in frames if frame.HasField("message")], frames[-1].next_offset


def fill(message: v2.Message, **system: Any) -> None:
    """Give *message* a ``tag``, ``message_group``, ``message_type``, ``born_host``, ``trace_context``, ``keys``,
    ``deliver_at``, ``properties``."""
    properties = message.system_properties
    for name in ("tag", "message_group", "message_type", "born_host", "trace_context"):
        if name in system:
            setattr(properties, name, system[name])
    properties.keys.extend(system.get("keys", ()))
    if "deliver_at" in system:
        properties.delivery_timestamp.FromMicroseconds(system["deliver_at"])
    for name, value in system.get("properties", {}).items():
        message.user_properties[name] = value


@contextlib.asynccontextmanager
async def open_harness(store: LogStore, clock: VirtualClock, limits: Limits) -> AsyncIterator[BrokerHarness]:
    """A broker on *store* with :data:`TOPICS`, at work while the block is open."""
    desk = BrokerHarness(store, clock, limits)
    work = asyncio.ensure_future(desk.delayed_messages.run())
    try:
        for spec in TOPICS:
            await desk.core.create_topic(spec)
        yield desk
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        desk.core.close()


def with_harness(*steps: Callable[[BrokerHarness], Coroutine[Any, Any, None]], limits: Limits | None = None) -> None:
    """Run *steps* one after the other, each on a broker started anew on the same store."""
    limits = limits or Limits(longest_poll=0)
    clock = VirtualClock()
    with open_store("memory://", clock) as store:

        async def one(step: Callable[[BrokerHarness], Coroutine[Any, Any, None]]) -> None:
            async with open_harness(store, clock, limits) as desk:
                await step(desk)

        for step in steps:
            asyncio.run(one(step))


async def settle(condition: Callable[[], bool]) -> None:
    """Let the broker's tasks and threads run until *condition* holds."""
    await until_async(condition, seconds=10)


def bodies(messages: list[v2.Message]) -> list[bytes]:
    """What *messages* say."""
    return [message.body for message in messages]
