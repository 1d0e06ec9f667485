"""Other ways to send and receive: RocketMQ's own client at our broker, bare gRPC, RabbitMQ, and NATS JetStream."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.bench.log.servers import Servers
from millstream.bench.messaging.task import MessagingTask
from millstream.bench.runner import Contender, Measurement
from millstream.core.errors import MillstreamError
from millstream_peers.messaging.grpc_floor import (
    receive_batches_floor,
    send_batches_floor,
    send_gathered_floor,
    send_singly_floor,
)
from millstream_peers.messaging.jetstream import (
    receive_batches_nats,
    receive_singly_nats,
    send_batches_nats,
    send_singly_nats,
)
from millstream_peers.messaging.official import run_official
from millstream_peers.messaging.rabbitmq import (
    receive_batches_rabbitmq,
    receive_singly_rabbitmq,
    send_batches_rabbitmq,
    send_singly_rabbitmq,
)

_RABBITMQ, _NATS = "RabbitMQ, aio-pika", "NATS JetStream, nats-py"
_SLOWER = 10  # RabbitMQ gets a share of the batches, for the sake of those who wait; rates do not depend on it

Run = Callable[[MessagingTask], Measurement]


class Peers:
    """The peers whose servers and clients are installed here."""

    def __init__(self, ours: MessagingTask, rabbitmq: MessagingTask | None, nats: MessagingTask | None) -> None:
        self._ours, self._rabbitmq, self._nats = ours, rabbitmq, nats

    def send_singly(self, count: int) -> Sequence[Contender]:
        """Messages that are sent 64 at a time."""
        return [
            *self._official("send", count),
            *self._floor(send_gathered_floor, count, ", sends that share calls"),
            *self._floor(send_singly_floor, count, ", a call per send"),
            *_contenders(_RABBITMQ, self._rabbitmq, send_singly_rabbitmq, count),
            *_contenders(_NATS, self._nats, send_singly_nats, count),
        ]

    def send_batches(self, count: int) -> Sequence[Contender]:
        """Messages that are published without waiting."""
        return [
            *self._floor(send_batches_floor, count),
            *_contenders(_RABBITMQ, self._rabbitmq, send_batches_rabbitmq, count // _SLOWER),
            *_contenders(_NATS, self._nats, send_batches_nats, count),
        ]

    def receive_singly(self, count: int) -> Sequence[Contender]:
        """Messages that are acknowledged one by one."""
        return [
            *self._official("receive", count),
            *_contenders(_RABBITMQ, self._rabbitmq, receive_singly_rabbitmq, count),
            *_contenders(_NATS, self._nats, receive_singly_nats, count),
        ]

    def receive_batches(self, count: int) -> Sequence[Contender]:
        """Messages that are acknowledged by the batch."""
        return [
            *self._floor(receive_batches_floor, count),
            *_contenders(_RABBITMQ, self._rabbitmq, receive_batches_rabbitmq, count // _SLOWER),
            *_contenders(_NATS, self._nats, receive_batches_nats, count),
        ]

    def _floor(self, run: Run, count: int, title: str = "") -> list[Contender]:
        return [Contender(f"minimal server, bare gRPC and a file{title}", lambda: run(self._ours.of(count)))]

    def _official(self, what: str, count: int) -> list[Contender]:
        if importlib.util.find_spec("rocketmq") is None:
            return []
        return [
            Contender("RocketMQ's Python client, Millstream's broker", lambda: run_official(self._ours.of(count), what))
        ]


def open_peers(stack: contextlib.ExitStack, folder: Path, ours: MessagingTask) -> Peers:
    """The peers; their servers are ended by *stack*. *ours* is our broker, for the official client."""
    return Peers(ours, _peer(stack, folder, "rabbitmq", "aio_pika"), _peer(stack, folder, "nats", "nats"))


def _contenders(name: str, work: MessagingTask | None, run: Run, count: int) -> list[Contender]:
    return [] if work is None else [Contender(name, lambda: run(work.of(count)))]


def _peer(stack: contextlib.ExitStack, folder: Path, server: str, package: str) -> MessagingTask | None:
    """The *server* with an empty place in it, where it and the *package* of its client are installed."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        started = stack.enter_context(Servers(folder)).get(server)
    except MillstreamError:
        return None
    return MessagingTask(started.url, folder, started.processes, lambda _name: None)
