"""Our client against our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from millstream.bench.messaging.task import AT_ONCE, BATCH, BODY, ConsumerMeter, MessagingTask, Meter
from millstream.bench.runner import Measurement
from millstream.messaging.client import Message, Producer, SimpleConsumer


def send_singly_ours(work: MessagingTask) -> Measurement:
    """Each message in a call of its own."""
    return asyncio.run(_send_singly(work, batch=1))


def send_gathered_ours(work: MessagingTask) -> Measurement:
    """Each message in a send of its own, which the client gathers: those of the same moment go in one call."""
    return asyncio.run(_send_singly(work, batch=BATCH))


def send_batches_ours(work: MessagingTask) -> Measurement:
    """A thousand messages a call, four calls under way."""
    return asyncio.run(_send_batches(work))


def receive_singly_ours(work: MessagingTask) -> Measurement:
    """A frame for each message, as every server of the protocol sends them, and a call for each acknowledgement."""
    return asyncio.run(_receive(work, frames=True, singly=True))


def receive_gathered_ours(work: MessagingTask) -> Measurement:
    """Each message acknowledged by itself; the client gathers the acknowledgements of the same moment in one call."""
    return asyncio.run(_receive(work, frames=False, singly=True))


def receive_batches_ours(work: MessagingTask) -> Measurement:
    """About a thousand messages a call, acknowledged together."""
    return asyncio.run(_receive(work, frames=False, singly=False))


async def _send_singly(work: MessagingTask, batch: int) -> Measurement:
    topic = work.topic()
    async with Producer(work.place, [topic], batch=batch) as producer:
        turns, delays, meter = iter(range(work.count)), list[float](), Meter(work.servers)

        async def send() -> None:
            for _ in turns:
                begin = meter.now()
                await producer.send(Message(topic, BODY))
                delays.append(meter.now() - begin)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return meter.sample(work.count, delays)


async def _send_batches(work: MessagingTask) -> Measurement:
    topic = work.topic()
    async with Producer(work.place, [topic]) as producer:
        meter = Meter(work.servers)
        delays = await _fill(producer, topic, work.count)
        return meter.sample(work.count, delays)


async def _receive(work: MessagingTask, *, frames: bool, singly: bool) -> Measurement:
    topic = work.topic()
    async with Producer(work.place, [topic]) as producer:
        await _fill(producer, topic, work.count)
    async with SimpleConsumer(work.place, "bench", {topic: "*"}) as consumer:
        if frames:
            consumer.batch_servers.clear()  # what a server that offers no batches amounts to
        calls, got = ConsumerMeter(work.servers), 0
        while got < work.count:
            messages = await calls.receive(consumer.receive(1024, invisible=60))
            if singly:
                await calls.ack_singly(map(consumer.ack, messages))
            else:
                await calls.ack(consumer.ack(*messages))
            got += len(messages)
        return calls.sample(work.count)


async def _fill(producer: Producer, topic: str, count: int) -> list[float]:
    """Send *count* messages in batches; how long each call took (seconds)."""
    turns: Iterator[int] = iter(range(0, count, BATCH))
    meter, delays = Meter(()), list[float]()

    async def send() -> None:
        for begin in turns:
            started = meter.now()
            await producer.send_many([Message(topic, BODY) for _ in range(min(BATCH, count - begin))])
            delays.append(meter.now() - started)

    await asyncio.gather(*(send() for _ in range(4)))
    return delays
