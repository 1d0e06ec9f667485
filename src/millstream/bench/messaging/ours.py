"""Our client against our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from millstream.bench.frame import Sample
from millstream.bench.messaging.work import AT_ONCE, BATCH, BODY, Meter, Work
from millstream.messaging.client import Message, Producer, SimpleConsumer


def send_singly_ours(work: Work) -> Sample:
    """Each message in a call of its own."""
    return asyncio.run(_send_singly(work))


def send_gathered_ours(work: Work) -> Sample:
    """Each message in a send of its own, those of the same moment in one call."""
    return asyncio.run(_send_singly(work, linger=0.0))


def send_batches_ours(work: Work) -> Sample:
    """A thousand messages a call, four calls under way."""
    return asyncio.run(_send_batches(work))


def receive_ours(work: Work) -> Sample:
    """About a thousand messages a call, acknowledged together."""
    return asyncio.run(_receive(work))


async def _send_singly(work: Work, linger: float | None = None) -> Sample:
    topic = work.topic()
    async with Producer(work.place, [topic], linger=linger) as producer:
        turns, delays, meter = iter(range(work.count)), list[float](), Meter(work.servers)

        async def send() -> None:
            for _ in turns:
                begin = meter.now()
                await producer.send(Message(topic, BODY))
                delays.append(meter.now() - begin)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return meter.sample(work.count, delays)


async def _send_batches(work: Work) -> Sample:
    topic = work.topic()
    async with Producer(work.place, [topic]) as producer:
        meter = Meter(work.servers)
        await _fill(producer, topic, work.count)
        return meter.sample(work.count)


async def _receive(work: Work) -> Sample:
    topic = work.topic()
    async with Producer(work.place, [topic]) as producer:
        await _fill(producer, topic, work.count)
    async with SimpleConsumer(work.place, "bench", {topic: "*"}) as consumer:
        meter, got = Meter(work.servers), 0
        while got < work.count:
            messages = await consumer.receive(1024, invisible=60)
            await consumer.ack(*messages)
            got += len(messages)
        return meter.sample(work.count)


async def _fill(producer: Producer, topic: str, count: int) -> None:
    turns: Iterator[int] = iter(range(0, count, BATCH))

    async def send() -> None:
        for begin in turns:
            await producer.send_many([Message(topic, BODY) for _ in range(min(BATCH, count - begin))])

    await asyncio.gather(*(send() for _ in range(4)))
