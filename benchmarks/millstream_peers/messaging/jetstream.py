"""NATS JetStream by its own Python client, in a file, synced before it acknowledges where the version can do that."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.bench.messaging.task import AT_ONCE, BATCH, BODY, ConsumerMeter, MessagingTask, Meter
from millstream.bench.runner import Measurement


def send_singly_nats(work: MessagingTask) -> Measurement:
    """Each message acknowledged before its sender goes on."""
    return asyncio.run(_send_singly(work))


def send_batches_nats(work: MessagingTask) -> Measurement:
    """A thousand messages published, then a thousand acknowledgements awaited; four senders."""
    return asyncio.run(_send_batches(work))


def receive_singly_nats(work: MessagingTask) -> Measurement:
    """A thousand messages fetched at once; each acknowledged by itself, and the server's word waited for."""
    return asyncio.run(_receive(work, singly=True))


def receive_batches_nats(work: MessagingTask) -> Measurement:
    """A thousand messages fetched at once, acknowledged with the last."""
    return asyncio.run(_receive(work, singly=False))


async def _send_singly(work: MessagingTask) -> Measurement:
    client, stream, topic = await _connect(work)
    turns, delays, meter = iter(range(work.count)), list[float](), Meter(work.servers)

    async def send() -> None:
        for _ in turns:
            begin = meter.now()
            await stream.publish(topic, BODY)
            delays.append(meter.now() - begin)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    sample = meter.sample(work.count, delays)
    await client.close()
    return sample


async def _send_batches(work: MessagingTask) -> Measurement:
    client, stream, topic = await _connect(work)
    meter = Meter(work.servers)
    delays = await _fill(stream, topic, work.count)
    sample = meter.sample(work.count, delays)
    await client.close()
    return sample


async def _receive(work: MessagingTask, *, singly: bool) -> Measurement:
    from nats.js.api import AckPolicy, ConsumerConfig

    client, stream, topic = await _connect(work)
    await _fill(stream, topic, work.count)
    policy = AckPolicy.EXPLICIT if singly else AckPolicy.ALL
    config = ConsumerConfig(ack_policy=policy, max_ack_pending=10 * BATCH)
    subscription = await stream.pull_subscribe(topic, durable="bench", config=config)
    calls, got = ConsumerMeter(work.servers), 0
    while got < work.count:
        messages = await calls.receive(subscription.fetch(BATCH, timeout=5))
        if singly:
            await calls.ack_singly(message.ack_sync() for message in messages)
        else:
            await calls.ack(messages[-1].ack_sync())
        got += len(messages)
    sample = calls.sample(work.count)
    await client.close()
    return sample


async def _fill(stream: Any, topic: str, count: int) -> list[float]:
    turns = iter(range(0, count, BATCH))
    meter, delays = Meter(()), list[float]()

    async def send() -> None:
        for begin in turns:
            started = meter.now()
            futures = [await stream.publish_async(topic, BODY) for _ in range(min(BATCH, count - begin))]
            await asyncio.gather(*futures)
            delays.append(meter.now() - started)

    await asyncio.gather(*(send() for _ in range(4)))
    return delays


async def _connect(work: MessagingTask) -> tuple[Any, Any, str]:
    import nats

    client = await nats.connect(work.place)
    stream = client.jetstream(publish_async_max_pending=8 * BATCH)
    topic = work.topic()
    await stream.add_stream(name=topic, subjects=[topic])
    return client, stream, topic
