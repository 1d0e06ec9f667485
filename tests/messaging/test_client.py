"""The client and what our broker does beyond others: a result for each message, batched receives, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import TOPICS
from millstream.messaging.client import (
    BadRequestError,
    Intervals,
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
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE
from millstream.testing.brokers import BrokerProcess
from millstream.testing.waiting import until_async

QUICK = Options(
    startup_timeout=5.0, intervals=Intervals(first_heartbeat=0.1, heartbeat=0.1, reopen=0.1, retry=0.1, assignments=0.3)
)


@pytest.fixture(scope="module")
def at(broker: BrokerProcess) -> str:
    """Where a broker with topics is."""
    for name in ("single", "batch", "failing", "async-for", "frames", "twins"):
        broker.create_topic(name)
    broker.create_topic("ordered", "FIFO")
    return str(broker.place)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40):
            await test()

    asyncio.run(limited())


def consumer(at: str, group: str, topic: str) -> SimpleConsumer:
    return SimpleConsumer(at, group, {topic: "*"}, await_duration=0.5, options=QUICK)


def test_p6_two_producers_of_one_process_lose_nothing_to_each_other(at: str) -> None:
    """The broker stores a message once however often it is sent, and tells that by its id."""

    async def test() -> None:
        async with Producer(at, ["twins"], options=QUICK) as one, Producer(at, ["twins"], options=QUICK) as two:
            receipts = [await producer.send(Message("twins", b"x")) for producer in (one, two)]
        assert [receipt.offset for receipt in receipts] == [0, 1]

    run(test)


async def drain(source: SimpleConsumer, count: int) -> list[Received]:
    found: list[Received] = []
    while len(found) < count:
        messages = await source.receive(16, invisible=timedelta(seconds=20))
        found += messages
        if messages:
            await source.ack(*messages)
    return found


def topics(broker: BrokerProcess) -> set[str]:
    return {topic.name for topic in call_broker(broker.place, TOPICS, "")}


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_batch_is_stored_at_once_and_each_message_has_its_result(at: str) -> None:
    async def test() -> None:
        async with Producer(at, options=QUICK) as producer, consumer(at, "g", "batch") as source:
            receipts = await producer.send_many([Message("batch", b"%d" % number) for number in range(50)])
            assert len({receipt.message_id for receipt in receipts}) == 50
            assert sorted(bodies(await drain(source, 50))) == sorted(b"%d" % number for number in range(50))
            with pytest.raises(PartialFailureError, match="1 of 2 messages were not confirmed as stored") as failed:
                await producer.send_many([Message("batch", b"x"), Message("batch", b"y", properties={"KEYS": "k"})])
            stored, refused = failed.value.results
            assert stored.offset == 50
            assert isinstance(refused, BadRequestError)
            assert await producer.send_many([]) == []
            with pytest.raises(BadRequestError, match="one topic"):
                await producer.send_many([Message("batch", b"x"), Message("single", b"y")])

    run(test)


def test_what_always_fails_becomes_a_dead_letter(at: str, broker: BrokerProcess) -> None:
    attempts: list[tuple[bytes, int]] = []

    async def listen(message: Received) -> bool:
        attempts.append((message.body, message.attempt))
        return message.body != b"poison"

    async def test() -> None:
        poison = [(b"poison", number) for number in range(1, 5)]
        async with Producer(at, options=QUICK) as producer:
            await producer.send(Message("failing", b"poison"))
            async with PushConsumer(at, "unlucky", {"failing": "*"}, listen, options=QUICK):
                await until_async(lambda: len(attempts) == 4)
                await until_async(lambda: "%DLQ%unlucky" in topics(broker))
                async with consumer(at, "undertaker", "%DLQ%unlucky") as dead:
                    assert bodies(await drain(dead, 1)) == [b"poison"]
                await producer.send(Message("failing", b"later"))  # what is due before it comes before it
                await until_async(lambda: (b"later", 1) in attempts)
        assert attempts == [*poison, (b"later", 1)]

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
        with pytest.raises(ResourceNotFoundError, match=f"topic absent could not be fetched from {at}") as refused:
            await Producer(at, ["absent"], options=QUICK).start()
        assert refused.value.code == 40402
        with pytest.raises(TransportError, match=r"topic single could not be fetched from 127\.0\.0\.1:9"):
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
            with pytest.raises(BadRequestError, match="takes FIFO, not NORMAL: give each message a message group"):
                await producer.send(Message("ordered", b"x"))
            with pytest.raises(PayloadError):
                await producer.send(Message("single", b"x" * (4 * 2**20 + 1)))
            assert not producer.isolated

    run(test)


def test_a_server_that_offers_no_batches_is_read_frame_by_frame(at: str) -> None:
    async def test() -> None:
        async with Producer(at, ["frames"], options=QUICK) as producer, consumer(at, "g", "frames") as source:
            await producer.send_many([Message("frames", b"%d" % number) for number in range(4)])
            assert source.batch_servers
            (one,) = await source.receive(1, invisible=60)
            source.batch_servers.clear()
            rest = await source.receive(3, invisible=60)
            assert bodies([one, *rest]) == [b"0", b"1", b"2", b"3"]
            assert await source.receive(1) == []
            with pytest.raises(BadRequestError, match="the invisible duration must be"):
                await source.receive(1, invisible=0)

    run(test)


def test_a_server_that_offers_another_version_of_batches_is_read_frame_by_frame(at: str) -> None:
    async def test() -> None:
        async with consumer(at, "g", "frames") as source:
            (server,) = source.batch_servers
            settings = source._settings()
            settings.user_agent.platform = "millstream batches-1"
            source._keep_settings(server, settings)
            assert not source.batch_servers

    run(test)


@pytest.mark.parametrize(
    ("path", "read", "problem"),
    [
        ("/millstream.broker.v1.Batches/Receive", RECEIVE.read_answer, "unimplemented"),
        (RECEIVE.path, ACK.read_answer, "the answer cannot be read"),
    ],
)
def test_a_client_reads_frame_by_frame_after_a_call_in_another_format(
    broker: BrokerProcess, path: str, read: Any, problem: str
) -> None:
    topic = f"another-format-{problem.count(' ')}"
    broker.create_topic(topic)

    async def test() -> None:
        at = str(broker.place)
        async with Producer(at, [topic], options=QUICK) as producer, consumer(at, "g", topic) as source:
            await producer.send_many([Message(topic, b"0"), Message(topic, b"1")])
            (server,) = source.batch_servers
            transport = source.transport(server)
            transport._batches["Receive"] = transport._channel.unary_unary(path, RECEIVE.write_request, read)
            with pytest.raises(TransportError, match=problem):
                await source.receive(1, invisible=60)
            assert not source.batch_servers
            received = bodies(await source.receive(2, invisible=60))
            assert received == ([b"0", b"1"] if problem == "unimplemented" else [b"1"])

    run(test)
