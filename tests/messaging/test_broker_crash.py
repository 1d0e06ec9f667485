"""A broker that is killed with ``kill -9`` again and again: nothing confirmed is lost, nothing done comes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from grpc.aio import AioRpcError

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker import admin
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.client.errors import TransportError
from millstream.messaging.client.signing import Signer
from millstream.messaging.client.transport import Transport
from millstream.messaging.errors import UnreachableError
from millstream.messaging.protocol import v2
from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.crashing_calls import CrashPoint
from suite.sizes import sized

pytestmark = pytest.mark.crash

GROUPS = ("a", "b", "c")


class Client:
    """Sends numbered messages, receives and acknowledges, and notes what was confirmed."""

    def __init__(self, transport: Transport, topic: str, *, ordered: bool) -> None:
        self._transport = transport
        self._topic = topic
        self._ordered = ordered
        self._numbers = itertools.count()
        self.confirmed: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.perhaps: set[bytes] = set()  # acknowledged, but the answer may have been lost
        self.first_seen: list[bytes] = []
        self.violations: list[str] = []
        self.broker_is_up = asyncio.Event()
        self.broker_is_up.set()
        self._progress = asyncio.Condition()

    async def send_all_the_time(self) -> None:
        while True:
            number = next(self._numbers)
            body = b"%s-%d" % (GROUPS[number % 3].encode(), number)
            while not await self._send(body):
                await self.broker_is_up.wait()
            self.confirmed.append(body)
            await self._tell()

    async def receive_all_the_time(self) -> None:
        while True:
            with contextlib.suppress(TransportError):
                for message in await self._receive():
                    self._look_at(message.body)
                    await self._ack(message)
            await self.broker_is_up.wait()

    async def until(self, reached: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until *reached*, however long that takes, if something is done within each *seconds*."""
        async with self._progress:
            while not reached():
                await asyncio.wait_for(self._progress.wait(), seconds)

    async def until_confirmed(self, count: int) -> None:
        await self.until(lambda: len(self.confirmed) >= count)

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _send(self, body: bytes) -> bool:
        request = v2.SendMessageRequest(messages=[v2.Message(body=body)])
        message = request.messages[0]
        message.topic.name = self._topic
        message.system_properties.message_id = body.decode()
        if self._ordered:
            message.system_properties.message_group = body.decode()[0]
        try:
            response = await self._transport.call("SendMessage", request, 2)
        except TransportError:
            return False
        return bool(response.status.code == v2.OK)

    async def _receive(self) -> list[v2.Message]:
        request = v2.ReceiveMessageRequest(batch_size=16)
        request.group.name, request.message_queue.topic.name = "group", self._topic
        request.invisible_duration.seconds = request.long_polling_timeout.seconds = 1
        frames = [frame async for frame in self._transport.stream("ReceiveMessage", request, 3)]
        return [frame.message for frame in frames if frame.HasField("message")]

    def _look_at(self, body: bytes) -> None:
        if body in self.acknowledged:
            self.violations.append(f"{body!r} came back although it was acknowledged")
        if body not in self.first_seen:
            self.first_seen.append(body)

    async def _ack(self, message: v2.Message) -> None:
        request = v2.AckMessageRequest()
        request.group.name, request.topic.name = "group", self._topic
        request.entries.add(receipt_handle=message.system_properties.receipt_handle)
        self.perhaps.add(message.body)
        await self._tell()
        response = await self._transport.call("AckMessage", request, 2)
        if response.status.code == v2.OK:
            self.acknowledged.add(message.body)


@contextlib.asynccontextmanager
async def transport(broker: BrokerProcess) -> AsyncIterator[Transport]:
    made = Transport([f"ipv4:{broker.place}"], Signer("crash-client", SystemClock()))
    try:
        yield made
    finally:
        await made.close()


async def wreck(broker: BrokerProcess, client: Client, rounds: int) -> None:
    tasks = [asyncio.ensure_future(work()) for work in (client.send_all_the_time, client.receive_all_the_time)]
    for number in range(rounds):
        await client.until_confirmed(len(client.confirmed) + 30 + 7 * number)
        client.broker_is_up.clear()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        client.broker_is_up.set()
    tasks[0].cancel()
    await client.until(lambda: client.perhaps.issuperset(client.confirmed))
    async with asyncio.timeout(30):
        while await asyncio.to_thread(_open_messages, broker):
            pass  # each question takes a call to the broker
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _open_messages(broker: BrokerProcess) -> int:
    (info,) = call_broker(broker.place, admin.GROUPS, "group")
    return info.lag + info.in_flight


@pytest.mark.smoke
@pytest.mark.parametrize(("kind", "ordered"), [("NORMAL", False), ("FIFO", True)])
def test_p2_p3_p4_a_killed_broker_loses_nothing_and_repeats_nothing_done(
    mortal_broker: BrokerProcess, kind: str, ordered: bool
) -> None:
    mortal_broker.create_topic("wreck", kind)

    async def run() -> Client:
        async with transport(mortal_broker) as calls:
            client = Client(calls, "wreck", ordered=ordered)
            await wreck(mortal_broker, client, sized(quick=2, ci=3, long=40))
            return client

    client = asyncio.run(run())
    assert not client.violations
    mortal_broker.kill()
    with open_store(mortal_broker.url) as store:
        stored = [message.body for batch in store.log(LogSpec("wreck")).read() for message in batch]
    assert len(stored) == len(set(stored))
    assert set(client.confirmed) <= set(stored)
    assert [body for body in stored if body in set(client.confirmed)] == client.confirmed
    if ordered:
        for group in GROUPS:
            seen = [body for body in client.first_seen if body.startswith(group.encode())]
            assert seen == sorted(seen, key=lambda body: int(body.split(b"-")[1]))


@contextlib.asynccontextmanager
async def lively(broker: BrokerProcess, is_up: asyncio.Event) -> AsyncIterator[Transport]:
    """A push consumer whose heartbeats use its receiving connection; it reconnects once *is_up* is set."""

    async def live(calls: Transport) -> None:
        while True:
            with contextlib.suppress(TransportError, AioRpcError):
                stream = calls.telemetry()
                declared = v2.TelemetryCommand()
                declared.settings.client_type = v2.PUSH_CONSUMER
                declared.settings.subscription.group.name = "group"
                await stream.write(declared)
                while True:
                    await calls.call("Heartbeat", v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER), 2)
                    await asyncio.sleep(0.1)  # the interval of heartbeats
            await is_up.wait()

    async with transport(broker) as calls:
        task = asyncio.ensure_future(live(calls))
        try:
            yield calls
        finally:
            task.cancel()


async def push(calls: Transport, topic: str) -> list[v2.Message]:
    request = v2.ReceiveMessageRequest(batch_size=16, auto_renew=True)
    request.group.name, request.message_queue.topic.name = "group", topic
    request.long_polling_timeout.seconds = 1
    frames = [frame async for frame in calls.stream("ReceiveMessage", request, 3)]
    return [frame.message for frame in frames if frame.HasField("message")]


async def push_until_something_comes(calls: Transport, topic: str) -> v2.Message:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(TransportError):
                if messages := await push(calls, topic):
                    return messages[0]


@pytest.mark.parametrize("end", ["kill", "cut"])
@pytest.mark.parametrize("kind", ["NORMAL", "FIFO"])
def test_p4_a_message_on_its_way_to_a_living_client_comes_again_when_the_connection_ends(
    tmp_path: Path, kind: str, end: str
) -> None:
    limits = msgspec.structs.replace(IMPATIENT, renewed_for=2_000_000)
    broker = BrokerProcess(f"sqlite:///{tmp_path / 'log.db'}", limits)
    broker.start(CrashPoint("ReceiveMessage", "after") if end == "kill" else None)
    try:
        broker.create_topic("t", kind)

        async def run() -> None:
            is_up = asyncio.Event()
            is_up.set()
            async with lively(broker, is_up) as calls:
                assert await Client(calls, "t", ordered=kind == "FIFO")._send(b"a-0")
                if end == "kill":
                    is_up.clear()
                    with pytest.raises(TransportError):
                        await push(calls, "t")
                    await asyncio.to_thread(broker.wait)
                    await asyncio.to_thread(broker.start)
                    is_up.set()
                    again = await push_until_something_comes(calls, "t")
                else:
                    await push_until_something_comes(calls, "t")
            if end == "cut":
                async with lively(broker, is_up) as calls:
                    again = await push_until_something_comes(calls, "t")
            assert again.system_properties.delivery_attempt == 2

        asyncio.run(run())
    finally:
        broker.kill()


def test_p10_a_second_broker_on_a_store_is_refused(mortal_broker: BrokerProcess) -> None:
    async def run() -> None:
        with open_store(mortal_broker.url) as store, pytest.raises(WriterBusyError, match="is being written by"):
            BrokerCore(store, SystemClock())

    asyncio.run(run())


def test_calls_without_a_client_id_or_to_nowhere_are_told(mortal_broker: BrokerProcess) -> None:
    async def run() -> Any:
        async with transport(mortal_broker) as calls:
            lite = await calls.call("SyncLiteSubscription", v2.SyncLiteSubscriptionRequest(), 5)
            assert lite.status.code == v2.UNSUPPORTED
        nameless = Transport([f"ipv4:{mortal_broker.place}"], Signer("", SystemClock()))
        try:
            response = await nameless.call("QueryRoute", v2.QueryRouteRequest(), 5)
            assert response.status.code == v2.CLIENT_ID_REQUIRED
            stream = nameless.telemetry()
            assert (await stream.read()).status.code == v2.CLIENT_ID_REQUIRED
        finally:
            await nameless.close()

    asyncio.run(run())
    mortal_broker.kill()
    with pytest.raises(UnreachableError):
        mortal_broker.create_topic("t")


def test_a_consumer_may_receive_before_it_sends_settings_again(mortal_broker: BrokerProcess) -> None:
    mortal_broker.create_topic("t")

    async def run() -> None:
        async with transport(mortal_broker) as calls:
            client = Client(calls, "t", ordered=False)
            assert await client._send(b"a-0")
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(TransportError):
                        if [message.body for message in await client._receive()] == [b"a-0"]:
                            return

    asyncio.run(run())
