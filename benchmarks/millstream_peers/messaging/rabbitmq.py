"""RabbitMQ by aio-pika: a durable queue, persistent messages, publishes confirmed by the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from millstream.bench.messaging.task import AT_ONCE, BATCH, BODY, ConsumerMeter, MessagingTask, Meter
from millstream.bench.runner import Measurement


def send_singly_rabbitmq(work: MessagingTask) -> Measurement:
    """Each message confirmed before its sender goes on."""
    return asyncio.run(_send_singly(work))


def send_batches_rabbitmq(work: MessagingTask) -> Measurement:
    """A thousand messages published, then a thousand confirmations awaited; four senders."""
    return asyncio.run(_send_batches(work))


def receive_singly_rabbitmq(work: MessagingTask) -> Measurement:
    """Delivered as they come, two thousand ahead; each acknowledged by itself."""
    return asyncio.run(_receive(work, singly=True))


def receive_batches_rabbitmq(work: MessagingTask) -> Measurement:
    """Delivered as they come, two thousand ahead; a thousand acknowledged with the last."""
    return asyncio.run(_receive(work, singly=False))


async def _send_singly(work: MessagingTask) -> Measurement:
    async with _channel(work) as (channel, queue):
        turns, delays, meter = iter(range(work.count)), list[float](), Meter(work.servers)

        async def send() -> None:
            for _ in turns:
                begin = meter.now()
                await _publish(channel, queue)
                delays.append(meter.now() - begin)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return meter.sample(work.count, delays)


async def _send_batches(work: MessagingTask) -> Measurement:
    async with _channel(work) as (channel, queue):
        meter = Meter(work.servers)
        delays = await _fill(channel, queue, work.count)
        return meter.sample(work.count, delays)


async def _receive(work: MessagingTask, *, singly: bool) -> Measurement:
    async with _channel(work) as (channel, queue):
        await _fill(channel, queue, work.count)
        await channel.set_qos(prefetch_count=2 * BATCH)
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        calls, got = ConsumerMeter(work.servers), 0
        await queue.consume(arrived.put)
        while got < work.count:
            messages = await calls.receive(_next(arrived, min(BATCH, work.count - got)))
            if singly:  # the server does not answer: one after the other is fastest
                await calls.ack_singly((message.ack() for message in messages), at_once=1)
            else:
                await calls.ack(messages[-1].ack(multiple=True))
            got += len(messages)
        return calls.sample(work.count)


async def _next(arrived: asyncio.Queue[Any], count: int) -> Sequence[Any]:
    return [await arrived.get() for _ in range(count)]


async def _fill(channel: Any, queue: Any, count: int) -> list[float]:
    turns = iter(range(0, count, BATCH))
    meter, delays = Meter(()), list[float]()

    async def send() -> None:
        for begin in turns:
            started = meter.now()
            await asyncio.gather(*(_publish(channel, queue) for _ in range(min(BATCH, count - begin))))
            delays.append(meter.now() - started)

    await asyncio.gather(*(send() for _ in range(4)))
    return delays


async def _publish(channel: Any, queue: Any) -> None:
    from aio_pika import DeliveryMode, Message

    message = Message(BODY, delivery_mode=DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, routing_key=queue.name)


@contextlib.asynccontextmanager
async def _channel(work: MessagingTask) -> AsyncIterator[tuple[Any, Any]]:
    """A channel that confirms, and a new durable queue; both are gone afterwards."""
    import aio_pika

    async with await aio_pika.connect(work.place) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(work.topic(), durable=True)
        yield channel, queue
        await queue.delete(if_unused=False, if_empty=False)
