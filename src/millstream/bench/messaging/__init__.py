"""Sending and receiving through brokers: ours by our client and by the official one, RabbitMQ, and NATS JetStream.

Single sends are 64 at a time, each confirmed when it is durable; our client gathers those of the same moment, unless
it is told to make a call of each. Batches are 1,000 messages: one call of our client,
and what the clients of RabbitMQ and NATS publish without waiting. What is received is acknowledged, each message by
itself (64 at a time where the client can wait for that) or a batch at once; either is timed. RabbitMQ's queue is
durable, its messages are persistent, publishes are confirmed by the server and acknowledgements are not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.bench.log.servers import Servers
from millstream.bench.messaging.jetstream import (
    receive_batches_nats,
    receive_singly_nats,
    send_batches_nats,
    send_singly_nats,
)
from millstream.bench.messaging.official import run_official
from millstream.bench.messaging.ours import (
    receive_batches_ours,
    receive_singly_ours,
    send_batches_ours,
    send_gathered_ours,
    send_singly_ours,
)
from millstream.bench.messaging.rabbitmq import (
    receive_batches_rabbitmq,
    receive_singly_rabbitmq,
    send_batches_rabbitmq,
    send_singly_rabbitmq,
)
from millstream.bench.messaging.task import BODY, MessagingTask
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.errors import MillstreamError
from millstream.messaging.broker.limits import Limits
from millstream.testing.brokers import BrokerProcess

_COUNTS = {"quick": (100, 1_000), "small": (4_000, 60_000), "full": (20_000, 1_000_000)}  # singly, in batches

_RABBITMQ, _NATS = "RabbitMQ, aio-pika", "NATS JetStream, nats-py"
_SLOWER = 10  # RabbitMQ gets a share of the batches, for the sake of those who wait; rates do not depend on it

Run = Callable[[MessagingTask], Measurement]


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """Single sends, batched sends, and receiving; see the module's docstring."""
    singly, batched = _COUNTS[size]
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(dir=folder))
        broker = BrokerProcess(f"segments:///{place / 'broker'}", Limits())
        stack.callback(broker.kill)
        broker.start()
        ours = MessagingTask(str(broker.place), folder, (broker.pid,), broker.create_topic)
        rabbit, nats = _peer(stack, folder, "rabbitmq", "aio_pika"), _peer(stack, folder, "nats", "nats")
        body = f"{len(BODY)} bytes a message, durable by fsync where the server can"
        yield Comparison(
            "Single sends", "messages/s", f"64 at a time, {body}",
            [
                *_contenders("our client, our broker", ours, send_gathered_ours, singly),
                *_contenders("our client with a call each, our broker", ours, send_singly_ours, singly),
                *_official(ours, "send", singly),
                *_contenders(_RABBITMQ, rabbit, send_singly_rabbitmq, singly),
                *_contenders(_NATS, nats, send_singly_nats, singly),
            ],
        )  # fmt: skip
        yield Comparison(
            "Batched sends", "messages/s", f"1,000 a batch, {body}",
            [
                *_contenders("our client, our broker", ours, send_batches_ours, batched),
                *_contenders(_RABBITMQ, rabbit, send_batches_rabbitmq, batched // _SLOWER),
                *_contenders(_NATS, nats, send_batches_nats, batched),
            ],
        )  # fmt: skip
        yield Comparison(
            "Receiving, and acknowledging singly", "received/s", f"every message acknowledged by itself, {body}",
            [
                *_contenders("our client, our broker", ours, receive_singly_ours, singly),
                *_official(ours, "receive", singly),
                *_contenders(_RABBITMQ, rabbit, receive_singly_rabbitmq, singly),
                *_contenders(_NATS, nats, receive_singly_nats, singly),
            ],
        )  # fmt: skip
        yield Comparison(
            "Receiving and acknowledging batches", "received/s", f"about 1,000 a batch, {body}",
            [
                *_contenders("our client, our broker", ours, receive_batches_ours, batched // 2),
                *_contenders(_RABBITMQ, rabbit, receive_batches_rabbitmq, batched // 2 // _SLOWER),
                *_contenders(_NATS, nats, receive_batches_nats, batched // 2),
            ],
        )  # fmt: skip


def _contenders(name: str, work: MessagingTask | None, run: Run, count: int) -> list[Contender]:
    return [] if work is None else [Contender(name, lambda: run(work.of(count)))]


def _official(work: MessagingTask, what: str, count: int) -> list[Contender]:
    if importlib.util.find_spec("rocketmq") is None:
        return []
    return [Contender("official Python client, our broker", lambda: run_official(work.of(count), what))]


def _peer(stack: contextlib.ExitStack, folder: Path, server: str, package: str) -> MessagingTask | None:
    """The *server* with an empty place in it, where it and the *package* of its client are installed."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        started = stack.enter_context(Servers(folder)).get(server)
    except MillstreamError:
        return None
    return MessagingTask(started.url, folder, started.processes, lambda _name: None)
