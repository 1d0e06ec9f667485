"""NATS JetStream by its own Python client, in a file, synced before it acknowledges where the version can do that."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.bench.frame import Sample
from millstream.bench.messaging.work import AT_ONCE, BATCH, BODY, Meter, Work


def send_singly_nats(work: Work) -> Sample:
    """Each message acknowledged before its sender goes on."""
    return asyncio.run(_send_singly(work))


def send_batches_nats(work: Work) -> Sample:
    """A thousand messages published, then a thousand acknowledgements awaited; four senders."""
    return asyncio.run(_send_batches(work))


def receive_nats(work: Work) -> Sample:
    """A thousand messages fetched at once, acknowledged with the last."""
    return asyncio.run(_receive(work))


async def _send_singly(work: Work) -> Sample:
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


async def _send_batches(work: Work) -> Sample:
    client, stream, topic = await _connect(work)
    meter = Meter(work.servers)
    await _fill(stream, topic, work.count)
    sample = meter.sample(work.count)
    await client.close()
    return sample


async def _receive(work: Work) -> Sample:
    from nats.js.api import AckPolicy, ConsumerConfig

    client, stream, topic = await _connect(work)
    await _fill(stream, topic, work.count)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * BATCH)
    subscription = await stream.pull_subscribe(topic, durable="bench", config=config)
    meter, got = Meter(work.servers), 0
    while got < work.count:
        messages = await subscription.fetch(BATCH, timeout=5)
        await messages[-1].ack_sync()
        got += len(messages)
    sample = meter.sample(work.count)
    await client.close()
    return sample


async def _fill(stream: Any, topic: str, count: int) -> None:
    turns = iter(range(0, count, BATCH))

    async def send() -> None:
        for begin in turns:
            futures = [await stream.publish_async(topic, BODY) for _ in range(min(BATCH, count - begin))]
            await asyncio.gather(*futures)

    await asyncio.gather(*(send() for _ in range(4)))


async def _connect(work: Work) -> tuple[Any, Any, str]:
    import nats

    client = await nats.connect(work.place)
    stream = client.jetstream(publish_async_max_pending=8 * BATCH)
    topic = work.topic()
    await stream.add_stream(name=topic, subjects=[topic])
    return client, stream, topic
