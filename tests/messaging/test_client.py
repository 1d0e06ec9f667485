"""The client against the broker: every kind of message, every way to consume, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream.messaging.client import (
    BadRequestError,
    Filter,
    Intervals,
    InvalidHandleError,
    Message,
    NotRunningError,
    Options,
    PartialFailureError,
    PayloadError,
    Producer,
    PushConsumer,
    Received,
    ResourceNotFoundError,
    SimpleConsumer,
    StartupError,
    TransportError,
)
from millstream.testing.brokers import BrokerProcess

QUICK = Options(
    startup_timeout=5.0, intervals=Intervals(first_heartbeat=0.1, heartbeat=0.1, reopen=0.1, retry=0.1, assignments=0.3)
)
TYPES = {"plain": "NORMAL", "ordered": "FIFO", "later": "DELAY", "halves": "TRANSACTION"}


@pytest.fixture(scope="module")
def at(broker: BrokerProcess) -> str:
    """Where a broker with topics is."""
    for name in ("single", "batch", "filtered", "pushed", "failing", "async-for", "handles", "closing", "frames"):
        broker.make_topic(name)
    for name in ("ordered", "ordered-push"):
        broker.make_topic(name, "FIFO")
    broker.make_topic("later", "DELAY")
    broker.make_topic("halves", "TRANSACTION")
    return str(broker.place)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40):
            await test()

    asyncio.run(limited())


def consumer(at: str, group: str, topic: str, wanted: str | Filter = "*") -> SimpleConsumer:
    return SimpleConsumer(at, group, {topic: wanted}, await_duration=0.5, options=QUICK)


async def drain(source: SimpleConsumer, count: int, *, ack: bool = True) -> list[Received]:
    found: list[Received] = []
    while len(found) < count:
        messages = await source.receive(16, invisible=timedelta(seconds=20 if ack else 2))
        found += messages
        if ack and messages:
            await source.ack(*messages)
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_message_arrives_as_it_was_sent(at: str) -> None:
    async def test() -> None:
        async with Producer(at, ["single"], options=QUICK) as producer, consumer(at, "g", "single") as source:
            sent = Message("single", b"body", tag="t", keys=("k", "l"), properties={"a": "b"})
            receipt = await producer.send(sent)
            (got,) = await drain(source, 1)
            assert (got.body, got.tag, got.keys, dict(got.properties)) == (b"body", "t", ("k", "l"), {"a": "b"})
            assert (got.message_id, got.offset, got.attempt) == (receipt.message_id, receipt.offset, 1)
            assert not got.is_corrupted
            assert abs(got.born_at - datetime.now(UTC)) < timedelta(minutes=1)
            assert len(got.message_id) == 34

    run(test)


def test_a_batch_is_stored_at_once_and_each_message_has_its_result(at: str) -> None:
    async def test() -> None:
        async with Producer(at, options=QUICK) as producer, consumer(at, "g", "batch") as source:
            receipts = await producer.send_many([Message("batch", b"%d" % number) for number in range(50)])
            assert len({receipt.message_id for receipt in receipts}) == 50
            assert sorted(bodies(await drain(source, 50))) == sorted(b"%d" % number for number in range(50))
            with pytest.raises(PartialFailureError, match="1 of 2 messages were not stored") as failed:
                await producer.send_many([Message("batch", b"x"), Message("batch", b"y", properties={"KEYS": "k"})])
            stored, refused = failed.value.results
            assert stored.offset == 50
            assert isinstance(refused, BadRequestError)
            assert await producer.send_many([]) == []
            with pytest.raises(BadRequestError, match="one topic"):
                await producer.send_many([Message("batch", b"x"), Message("single", b"y")])

    run(test)


def test_p4_ordered_messages_come_in_order_past_failures(at: str) -> None:
    got: list[bytes] = []
    failed: Counter[bytes] = Counter()

    async def listen(message: Received) -> bool:
        got.append(message.body)
        failed[message.body] += message.body in (b"a-1", b"b-2")
        return failed[message.body] not in (1, 2)

    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            for number in range(4):
                for group in "ab":
                    await producer.send(Message("ordered-push", f"{group}-{number}".encode(), message_group=group))
        async with PushConsumer(at, "g", {"ordered-push": "*"}, listen, options=QUICK):
            await until(lambda: len(got) == 12)
        for group, repeated in ((b"a", 1), (b"b", 2)):
            expected = [b"%s-%d" % (group, n) for n in range(4) for _ in range(3 if n == repeated else 1)]
            assert [body for body in got if body.startswith(group)] == expected

    run(test)


def test_a_delayed_message_comes_in_time_and_can_be_recalled(at: str) -> None:
    async def test() -> None:
        async with Producer(at, ["later"], options=QUICK) as producer, consumer(at, "g", "later") as source:
            due = datetime.now(UTC) + timedelta(seconds=1)
            await producer.send(Message("later", b"soon", deliver_at=due))
            recalled = await producer.send(Message("later", b"never", deliver_at=due))
            assert await producer.recall("later", recalled.recall_handle) == recalled.message_id
            (got,) = await drain(source, 1)
            assert got.body == b"soon"
            assert datetime.now(UTC) >= due
            with pytest.raises(ResourceNotFoundError):
                await producer.recall("later", recalled.recall_handle)

    run(test)


def test_transactions_commit_roll_back_and_are_asked_about(at: str) -> None:
    asked: list[bytes] = []

    async def check(message: Received) -> Any:
        asked.append(message.body)
        return "commit" if message.body == b"orphan" else "unknown"

    async def test() -> None:
        async with (
            Producer(at, ["halves"], checker=check, options=QUICK) as producer,
            consumer(at, "g", "halves") as source,
        ):
            async with await producer.begin(Message("halves", b"committed")):
                pass
            with pytest.raises(ZeroDivisionError):
                async with await producer.begin(Message("halves", b"rolled back")):
                    raise ZeroDivisionError
            await producer.begin(Message("halves", b"orphan"))
            assert sorted(bodies(await drain(source, 2))) == [b"committed", b"orphan"]
            assert asked == [b"orphan"]
            with pytest.raises(BadRequestError):
                await producer.begin(Message("halves", b"x", message_group="g"))

    run(test)


def test_messages_are_filtered_by_tag_and_by_condition(at: str) -> None:
    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            for number, tag in enumerate("abc"):
                await producer.send(Message("filtered", tag.encode(), tag=tag, properties={"n": str(number)}))
        async with consumer(at, "tags", "filtered", "a || b") as by_tag:
            assert bodies(await drain(by_tag, 2)) == [b"a", b"b"]
        async with consumer(at, "sql", "filtered", Filter("n >= 1", "sql")) as by_condition:
            assert bodies(await drain(by_condition, 2)) == [b"b", b"c"]
        async with consumer(at, "bad", "filtered", Filter("n >=", "sql")) as wrong:
            with pytest.raises(BadRequestError, match="condition in SQL"):
                await wrong.receive()

    run(test)


def test_a_push_consumer_gets_every_message_and_failures_again(at: str) -> None:
    got: list[tuple[bytes, int]] = []

    async def listen(message: Received) -> None:
        got.append((message.body, message.attempt))
        if message.body == b"3" and message.attempt < 3:
            raise ValueError("not yet")

    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            await producer.send_many([Message("pushed", b"%d" % number) for number in range(6)])
        async with PushConsumer(at, "g", {"pushed": "*"}, listen, options=QUICK):
            await until(lambda: len(got) == 8)
        assert sorted(got) == sorted([(b"%d" % n, 1) for n in range(6)] + [(b"3", 2), (b"3", 3)])

    run(test)


def test_what_always_fails_becomes_a_dead_letter(at: str) -> None:
    attempts: list[int] = []

    async def listen(message: Received) -> bool:
        attempts.append(message.attempt)
        return False

    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            await producer.send(Message("failing", b"poison"))
        async with PushConsumer(at, "unlucky", {"failing": "*"}, listen, options=QUICK):
            await until(lambda: len(attempts) == 4)
            await asyncio.sleep(1.2)
        assert attempts == [1, 2, 3, 4]
        async with consumer(at, "undertaker", "%DLQ%unlucky") as dead:
            assert bodies(await drain(dead, 1)) == [b"poison"]

    run(test)


def test_closing_waits_for_listeners_and_gives_back_what_has_not_begun(at: str) -> None:
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def listen(message: Received) -> None:
        begun.append(message.body)
        await go_on.wait()

    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            await producer.send_many([Message("closing", b"%d" % number) for number in range(6)])
        push = PushConsumer(at, "g", {"closing": "*"}, listen, concurrency=2, options=QUICK)
        await push.start()
        await until(lambda: len(begun) == 2)
        closing = asyncio.ensure_future(push.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        go_on.set()
        await closing
        assert len(begun) == 2
        async with consumer(at, "g", "closing") as source:
            rest = bodies(await drain(source, 4))
        assert sorted(rest + begun) == [b"%d" % number for number in range(6)]

    run(test)


def test_a_handle_is_replaced_and_the_old_one_is_invalid(at: str) -> None:
    async def test() -> None:
        async with Producer(at, options=QUICK) as producer, consumer(at, "g", "handles") as source:
            await producer.send(Message("handles", b"x"))
            (got,) = await drain(source, 1, ack=False)
            changed = await source.change_invisible_duration(got, timedelta(seconds=60))
            with pytest.raises(InvalidHandleError) as refused:
                await source.ack(got)
            assert refused.value.code == 40013
            await source.ack(changed)

    run(test)


def test_a_consumer_can_be_iterated_and_subscriptions_change(at: str) -> None:
    async def test() -> None:
        async with Producer(at, options=QUICK) as producer:
            await producer.send_many([Message("async-for", b"%d" % number) for number in range(3)])
        async with SimpleConsumer(at, "g2", {}, await_duration=0.2, options=QUICK) as source:
            with pytest.raises(BadRequestError, match="no subscription"):
                await source.receive()
            with pytest.raises(ResourceNotFoundError):
                await source.subscribe("absent")
            await source.subscribe("async-for")
            got = []
            async for message in source:
                got.append(message.body)
                await source.ack(message)
                if len(got) == 3:
                    break
            assert sorted(got) == [b"0", b"1", b"2"]
            await source.unsubscribe("async-for")
            with pytest.raises(BadRequestError):
                await source.receive(0)

    run(test)


def test_starts_fail_with_the_topic_and_the_server(at: str) -> None:
    async def test() -> None:
        with pytest.raises(ResourceNotFoundError, match=f"topic absent could not be had from {at}") as refused:
            await Producer(at, ["absent"], options=QUICK).start()
        assert refused.value.code == 40402
        with pytest.raises(TransportError, match=r"topic single could not be had from 127\.0\.0\.1:9"):
            await Producer("127.0.0.1:9", ["single"], options=QUICK).start()
        impatient = Options(startup_timeout=0.0)
        with pytest.raises(StartupError, match="within 0 seconds"):
            await Producer(at, ["single"], options=impatient).start()
        async with Producer("127.0.0.1:9", options=QUICK) as producer:  # no topic: no network
            with pytest.raises(TransportError):
                await producer.send(Message("single", b"x"))

    run(test)


def test_clients_that_do_not_run_refuse(at: str) -> None:
    async def test() -> None:
        producer, source = Producer(at, options=QUICK), consumer(at, "g", "single")
        for call in (producer.send(Message("single", b"x")), source.receive(), source.subscribe("single")):
            with pytest.raises(NotRunningError):
                await call

    run(test)


def test_messages_that_no_topic_takes_fail_at_once(at: str) -> None:
    async def test() -> None:
        async with Producer(at, ["single", "ordered"], options=QUICK) as producer:
            with pytest.raises(BadRequestError, match="topic single takes NORMAL, not FIFO"):
                await producer.send(Message("single", b"x", message_group="g"))
            with pytest.raises(BadRequestError, match="topic ordered takes FIFO, not NORMAL"):
                await producer.send(Message("ordered", b"x"))
            with pytest.raises(PayloadError):
                await producer.send(Message("single", b"x" * (4 * 2**20 + 1)))
            assert not producer.isolated

    run(test)


def test_a_server_that_offers_no_batches_is_read_frame_by_frame(at: str) -> None:
    async def test() -> None:
        async with Producer(at, ["frames"], options=QUICK) as producer, consumer(at, "g", "frames") as source:
            await producer.send_many([Message("frames", b"%d" % number) for number in range(4)])
            assert source.batched
            (one,) = await source.receive(1, invisible=60)
            source.batched.clear()
            rest = await source.receive(3, invisible=60)
            assert bodies([one, *rest]) == [b"0", b"1", b"2", b"3"]
            assert await source.receive(1) == []
            with pytest.raises(BadRequestError, match="a message is hidden for"):
                await source.receive(1, invisible=0)

    run(test)


def test_clients_go_on_after_the_broker_was_killed(mortal_broker: BrokerProcess) -> None:
    mortal_broker.make_topic("t")
    at = str(mortal_broker.place)
    got: list[bytes] = []

    async def listen(message: Received) -> None:
        got.append(message.body)

    async def send(producer: Producer, body: bytes) -> None:
        while True:
            try:
                await producer.send(Message("t", body))
                return
            except TransportError:
                assert producer.isolated
                await asyncio.sleep(0.05)

    async def test() -> None:
        async with (
            Producer(at, ["t"], options=QUICK) as producer,
            PushConsumer(at, "g", {"t": "*"}, listen, options=QUICK),
        ):
            await send(producer, b"before")
            await until(lambda: got == [b"before"])
            await asyncio.to_thread(mortal_broker.kill)
            with pytest.raises(TransportError):
                await producer.send(Message("t", b"lost"))
            await asyncio.to_thread(mortal_broker.start)
            await send(producer, b"after")
            await until(lambda: b"after" in got)
            await until(lambda: not producer.isolated)

    run(test)
