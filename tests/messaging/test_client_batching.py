"""Sends and acknowledgements that meet at our broker share calls by themselves: how many there are, in which order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from millstream.core.address import Address
from millstream.log import LogSpec, LogStore, open_store
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import (
    ClientError,
    Message,
    Producer,
    PushConsumer,
    Received,
    SimpleConsumer,
    TransportError,
)
from millstream.testing.waiting import until_async


class CountedCalls(grpc.aio.ServerInterceptor):
    """Counts calls by the last part of their method's path."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        self.counts[handler_call_details.method.rpartition("/")[2]] += 1
        return await continuation(handler_call_details)


@asynccontextmanager
async def counted_broker(store: LogStore) -> AsyncIterator[tuple[str, Counter[str]]]:
    """Where a broker on *store* with two topics is, and how often each method was called."""
    calls = CountedCalls()
    async with BrokerServer(store, Address("127.0.0.1", 0), interceptors=[calls]) as server:
        for spec in (TopicSpec("plain"), TopicSpec("ordered", "FIFO")):
            await server.supervisor.core.create_topic(spec)
        yield f"127.0.0.1:{server.port}", calls.counts


def stored(store: LogStore, topic: str) -> list[bytes]:
    return [message.body for batch in store.log(LogSpec(topic)).read(1) for message in batch]


async def send(producer: Producer, topic: str, count: int, message_group: str = "") -> list[int]:
    messages = [Message(topic, b"%d" % number, message_group=message_group) for number in range(count)]
    return [receipt.offset for receipt in await asyncio.gather(*map(producer.send, messages))]


def test_sends_that_meet_share_calls_and_each_has_its_own_receipt() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:
                offsets = await send(producer, "plain", 500)
                assert sorted(offsets) == list(range(500))
                found = stored(store, "plain")
                assert [found[offset] for offset in offsets] == [b"%d" % number for number in range(500)]
                assert calls["SendMessage"] + calls["Send"] < 10

    asyncio.run(test())


def test_a_send_that_meets_nobody_waits_for_nobody_and_one_may_ask_for_a_call_each() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls):
                async with Producer(at, ["plain"]) as producer:
                    for number in range(3):
                        await producer.send(Message("plain", b"%d" % number))
                    assert calls["SendMessage"] == 3
                async with Producer(at, ["plain"], batch=1) as producer:
                    await send(producer, "plain", 20)
                assert (calls["SendMessage"], calls["Send"]) == (23, 0)

    asyncio.run(test())


def test_sends_that_met_before_meet_again_in_one_call_and_a_later_one_alone_does_not_wait() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:
                for rounds in range(1, 4):
                    await send(producer, "plain", 20)
                    assert (calls["SendMessage"], calls["Send"]) == (1, rounds)
                for alone in (2, 3):
                    await send(producer, "plain", 1)
                    assert (calls["SendMessage"], calls["Send"]) == (alone, 3)

    asyncio.run(test())


def test_sends_that_were_refused_together_meet_again_in_one_call() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:
                await send(producer, "plain", 20)
                reserved = [Message("plain", b"x", properties={"KEYS": "x"})] * 20
                results = await asyncio.gather(*map(producer.send, reserved), return_exceptions=True)
                assert all(isinstance(result, ClientError) for result in results)
                before = calls["SendMessage"], calls["Send"]
                await send(producer, "plain", 20)
                assert (calls["SendMessage"], calls["Send"]) == (before[0], before[1] + 1)

    asyncio.run(test())


def test_p4_sends_of_a_message_group_that_meet_keep_their_order() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["ordered"]) as producer:
                assert await send(producer, "ordered", 200, "g") == list(range(200))
                assert stored(store, "ordered") == [b"%d" % number for number in range(200)]
                assert calls["SendMessage"] + calls["Send"] < 10

    asyncio.run(test())


def test_acknowledgements_that_meet_share_calls_and_each_has_its_own_result() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:
                await send(producer, "plain", 200)
                async with SimpleConsumer(at, "g", {"plain": "*"}, await_duration=0) as consumer:
                    messages = await consumer.receive(200, invisible=60)
                    assert len(messages) == 200
                    await consumer.ack(*messages[:50])
                    before = calls["Ack"]
                    results = await asyncio.gather(*map(consumer.ack, messages), return_exceptions=True)
                    assert calls["Ack"] - before < 10
                    assert all(isinstance(result, ClientError) for result in results[:50]), "done before"
                    assert results[50:] == [None] * 150
                    assert await consumer.receive(10, invisible=60) == []

    asyncio.run(test())


def test_acknowledgements_that_met_before_meet_again_in_one_call() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:
                await send(producer, "plain", 60)
                async with SimpleConsumer(at, "g", {"plain": "*"}, await_duration=0) as consumer:
                    messages = await consumer.receive(60, invisible=60)
                    await asyncio.gather(*map(consumer.ack, messages[:20]))
                    before = calls["Ack"] + calls["AckMessage"]
                    for begin in (20, 40):
                        await asyncio.gather(*map(consumer.ack, messages[begin : begin + 20]))
                    assert calls["Ack"] + calls["AckMessage"] - before == 2
                    assert await consumer.receive(10, invisible=60) == []

    asyncio.run(test())


def test_p3_a_push_consumer_acknowledges_many_in_few_calls_and_gets_none_again() -> None:
    async def test() -> None:
        got: list[bytes] = []
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, calls), Producer(at, ["plain"]) as producer:

                async def listen(message: Received) -> None:
                    got.append(message.body)

                await send(producer, "plain", 500)
                async with PushConsumer(at, "g", {"plain": "*"}, listen):
                    await until_async(lambda: len(got) == 500)
                assert calls["Ack"] + calls["AckMessage"] < 250
                async with SimpleConsumer(at, "g", {"plain": "*"}, await_duration=0) as consumer:
                    assert await consumer.receive(10, invisible=60) == []
                assert sorted(got) == sorted(b"%d" % number for number in range(500))

    asyncio.run(test())


def test_what_a_dead_broker_does_not_take_fails_for_every_sender() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            async with counted_broker(store) as (at, _):
                producer = Producer(at, ["plain"])
                await producer.start()
            messages = [Message("plain", b"x")] * 20
            results = await asyncio.gather(*map(producer.send, messages), return_exceptions=True)
            assert [type(result) for result in results] == [TransportError] * 20
            with pytest.raises(TransportError):
                await producer.send(messages[0])
            await producer.close()

    asyncio.run(test())
