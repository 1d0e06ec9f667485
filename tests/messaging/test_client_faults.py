"""Clients that go on for as long as their broker dies at every step, its line is cut, it stalls, or clocks jump."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.messaging.client import (
    ClientError,
    Intervals,
    Message,
    Options,
    Producer,
    PushConsumer,
    Received,
    ResourceNotFoundError,
    SimpleConsumer,
    TransportError,
)
from millstream.messaging.client.endpoints import Endpoints
from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.crashing_calls import CrashPoint
from millstream.testing.waiting import until_async
from suite.sizes import sized
from support.cutting_proxy import CuttingProxy

OPTIONS = Options(
    request_timeout=5.0,
    startup_timeout=60.0,
    intervals=Intervals(
        first_heartbeat=0.1, heartbeat=0.2, reopen=0.1, retry=0.1, assignments=0.3, first_route=0.2, route=1.0
    ),
)
STEPS = (
    "SendMessage", "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue",
    "EndTransaction", "Telemetry",
)  # fmt: skip
MORE_STEPS = (*STEPS, "RecallMessage", "Heartbeat", "QueryAssignment", "QueryRoute")
TOPICS = {"plain": "NORMAL", "ordered": "FIFO", "halves": "TRANSACTION", "later": "DELAY"}


def run(test: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(limited())


class BeatingProducer(Producer):
    """A producer that notifies of the heartbeats that its server answers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._answered = asyncio.Event()

    def on_healthy(self, endpoints: Endpoints) -> None:
        super().on_healthy(endpoints)
        self._answered.set()

    async def next_beat(self) -> None:
        """Wait until the server answers a heartbeat: then it is there again."""
        self._answered.clear()
        await self._answered.wait()


class Traffic:
    """Clients that use every step of the workflow, and what was confirmed to them."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._number = 0
        self._stack = AsyncExitStack()
        self.confirmed: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.poison: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self.dead: set[bytes] = set()

    async def __aenter__(self) -> Traffic:
        async with AsyncExitStack() as stack:
            producer = BeatingProducer(self._at, TOPICS, checker=self._check, linger=0.0, options=OPTIONS)
            self._producer = await stack.enter_async_context(producer)
            for topics, group in ((("plain", "halves", "later"), "g"), (("ordered",), "h")):
                wanted = dict.fromkeys(topics, "*")
                consumer = PushConsumer(self._at, group, wanted, self._listen, options=OPTIONS)
                await stack.enter_async_context(consumer)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def go_round(self) -> None:
        """Do one of everything, each until it is confirmed."""
        self._number += 1
        number = self._number
        await asyncio.gather(
            self._send("plain", b"plain-%d" % number),
            self._send("plain", b"again-%d" % number),
            self._send("ordered", b"ordered-%06d" % number, message_group="one"),
            self._transact(b"commit-%d" % number),
            self._transact(b"rollback-%d" % number),
            self._recall(b"recalled-%d" % number),
        )

    async def poison_one(self) -> None:
        """Send a message that no listener handles."""
        self._number += 1
        body = b"poison-%d" % self._number
        self.poison.add(body)
        await self._send("ordered", body, message_group="bad")

    async def settle(self) -> None:
        """Wait until all that was confirmed was handled or is a dead letter, and what nobody handles is one.

        A message that was on its way at several faults has been delivered as often as it may be.
        """
        async with SimpleConsumer(self._at, "undertaker", {}, await_duration=0.2, options=OPTIONS) as graves:
            await self._patiently(lambda: graves.subscribe("%DLQ%h"), missing=True)
            try:
                async with asyncio.timeout(90):
                    while not (self.confirmed <= {*self.seen, *self.dead} and self.poison <= self.dead):
                        if len(graves.subscriptions) == 1:
                            with contextlib.suppress(ResourceNotFoundError):
                                await graves.subscribe("%DLQ%g")
                        for message in await graves.receive(invisible=10):
                            self.dead.add(message.body)
                            await graves.ack(message)
            except TimeoutError:
                raise AssertionError(f"lost: {sorted(self.confirmed - {*self.seen, *self.dead})}") from None

    def verify(self) -> None:
        """Nothing that must not be seen was seen, and order held."""
        for never in (self.rolled_back, self.recalled):
            assert not never & {*self.seen, *self.dead}
        assert not self.poison & set(self.seen)
        first = list(dict.fromkeys(body for body in self.order if body.startswith(b"ordered")))
        assert first == sorted(first)

    async def _check(self, _message: Received) -> Any:
        return "rollback"  # a half whose begin was not confirmed

    async def _listen(self, message: Received) -> bool:
        if message.topic == "ordered":
            self.order.append(message.body)
        if message.body.startswith(b"poison") or (message.body.startswith(b"again") and message.attempt == 1):
            return False
        self.seen[message.body] += 1
        return True

    async def _send(self, topic: str, body: bytes, **more: Any) -> None:
        await self._patiently(lambda: self._producer.send(Message(topic, body, **more)))
        self.confirmed.add(body)

    async def _transact(self, body: bytes) -> None:
        transaction = await self._patiently(lambda: self._producer.begin(Message("halves", body)))
        commits = body.startswith(b"commit")
        # Its end may have been told although the answer was lost: then the server knows nothing of it any more.
        await self._patiently(transaction.commit if commits else transaction.rollback, lost=True)
        (self.confirmed if commits else self.rolled_back).add(body)

    async def _recall(self, body: bytes) -> None:
        due = datetime.now(UTC) + timedelta(minutes=10)
        receipt = await self._patiently(lambda: self._producer.send(Message("later", body, deliver_at=due)))
        await self._patiently(lambda: self._producer.recall("later", receipt.recall_handle), lost=True)
        self.recalled.add(body)

    async def _patiently(self, work: Callable[[], Awaitable[Any]], *, lost: bool = False, missing: bool = False) -> Any:
        """Repeat *work* until it succeeds, each time after a heartbeat was answered.

        Its answer may be *lost*, or what it needs still be *missing*.
        """
        failed = False
        while True:
            try:
                return await work()
            except ResourceNotFoundError:
                if not missing:
                    if lost and failed:
                        return None
                    raise
            except ClientError as error:
                if lost and failed and not error.transient:
                    return None
                assert error.transient or not error.code, error
            failed = True
            await self._producer.next_beat()


@pytest.mark.crash
@pytest.mark.long
def test_p2_p3_p4_clients_go_on_past_the_death_of_their_broker_at_every_step(
    mortal_broker: BrokerProcess, size: str
) -> None:
    deaths = [CrashPoint(step, "after") for step in STEPS]
    if size == "long":
        deaths = [CrashPoint(step, when) for step in MORE_STEPS for when in ("before", "after")]
    for topic, kind in TOPICS.items():
        mortal_broker.create_topic(topic, kind)

    async def die(traffic: Traffic, death: CrashPoint) -> None:
        await asyncio.to_thread(mortal_broker.start, death)  # which revives it after the death before
        dying = asyncio.ensure_future(asyncio.to_thread(mortal_broker.wait))
        if death.method == "ForwardMessageToDeadLetterQueue":
            for _ in range(death.number):
                await traffic.poison_one()
        going = asyncio.ensure_future(_for_ever(traffic.go_round))
        try:
            done, _ = await asyncio.wait([dying, going], timeout=150, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"nobody asked for {death.method} in 150 seconds"
            assert dying in done, going.exception()
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            await asyncio.to_thread(mortal_broker.kill)  # the thread that waits for its death must end as well

    async def test() -> None:
        async with Traffic(str(mortal_broker.place)) as traffic:
            await traffic.go_round()
            for death in deaths:
                await die(traffic, death)
            await asyncio.to_thread(mortal_broker.start)
            await traffic.go_round()
            await traffic.settle()
        traffic.verify()

    run(test, sized(ci=280, long=1200))


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


@pytest.fixture
def line(mortal_broker: BrokerProcess) -> Iterator[CuttingProxy]:
    """A line to a broker of the test's own, to be cut."""
    for topic, kind in TOPICS.items():
        mortal_broker.create_topic(topic, kind)
    with CuttingProxy("127.0.0.1", mortal_broker.port) as line:
        yield line


@pytest.mark.long
def test_p2_p3_p4_clients_go_on_past_cuts_of_their_line(line: CuttingProxy) -> None:
    chance = random.Random(5)

    async def test() -> None:
        async with Traffic(f"127.0.0.1:{line.port}") as traffic:
            for number in range(sized(ci=8, long=100)):
                if number == 1:
                    await traffic.poison_one()
                before = line.cuts
                line.cut(chance.choice(("client", "server")), chance.randrange(4000))
                going = asyncio.ensure_future(_for_ever(traffic.go_round))
                await until_async(lambda before=before: line.cuts > before, seconds=60)  # type: ignore[misc]
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
            await traffic.go_round()
            await traffic.settle()
        traffic.verify()

    run(test, sized(ci=120, long=600))


def test_clients_go_on_after_their_broker_hung(mortal_broker: BrokerProcess) -> None:
    hasty = Options(request_timeout=0.5, startup_timeout=30.0, intervals=OPTIONS.intervals)
    mortal_broker.create_topic("plain")
    got: set[bytes] = set()

    async def listen(message: Received) -> None:
        got.add(message.body)

    async def test() -> None:
        at = str(mortal_broker.place)
        async with (
            Producer(at, ["plain"], options=hasty) as producer,
            PushConsumer(at, "g", {"plain": "*"}, listen, options=hasty),
        ):
            await producer.send(Message("plain", b"before"))
            os.kill(mortal_broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(TransportError):
                    await producer.send(Message("plain", b"meanwhile"))
                assert producer.isolated
            finally:
                os.kill(mortal_broker.pid, signal.SIGCONT)
            await until_async(lambda: not producer.isolated, seconds=60)
            await producer.send(Message("plain", b"after"))
            await until_async(lambda: {b"before", b"after"} <= got, seconds=60)

    run(test, 90)


class JumpingClock(SystemClock):
    """The machine's clock, as somebody sets it again and again."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset


def test_a_clock_that_jumps_by_days_harms_neither_sends_nor_receives(broker: BrokerProcess) -> None:
    broker.create_topic("jumps")
    clock = JumpingClock()
    got: list[bytes] = []

    async def listen(message: Received) -> bool:
        got.append(message.body)
        return message.attempt > 1

    async def test() -> None:
        at = str(broker.place)
        async with (
            Producer(at, ["jumps"], options=OPTIONS, clock=clock) as producer,
            PushConsumer(at, "g", {"jumps": "*"}, listen, options=OPTIONS, clock=clock),
        ):
            ids = set()
            for days in (0, 400, -400, 1, -1, 0):
                clock.offset = days * 86_400 * MICROSECONDS
                ids.add((await producer.send(Message("jumps", b"%d" % days))).message_id)
            assert len(ids) == 6
            await until_async(lambda: len(got) == 12, seconds=60)

    run(test, 60)


def test_memory_stays_flat_however_many_messages_pass(tmp_path: Path) -> None:
    """A million messages at the long size; what counts is what the system says that the process holds."""
    count = sized(ci=10_000, long=1_000_000)
    process = BrokerProcess(f"segments:///{tmp_path / 'log'}", IMPATIENT)

    async def pass_on(producer: Producer, consumer: SimpleConsumer, messages: int) -> None:
        for _ in range(messages // 1000):
            await producer.send_many([Message("many", b"x" * 100) for _ in range(1000)])
            left = 1000
            while left:
                received = await consumer.receive(1000, invisible=30)
                await consumer.ack(*received)
                left -= len(received)

    async def test() -> None:
        at = str(process.place)
        async with (
            Producer(at, ["many"], options=OPTIONS) as producer,
            SimpleConsumer(at, "g", {"many": "*"}, await_duration=1, options=OPTIONS) as consumer,
        ):
            await pass_on(producer, consumer, 5_000)
            before = _resident()
            await pass_on(producer, consumer, count)
            assert _resident() - before < 8 << 20

    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        process.start()
        process.create_topic("many")
        run(test, sized(ci=120, long=3000))


def _resident() -> int:
    """The bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
