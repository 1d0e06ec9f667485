"""Sending and receiving messages, in a source checkout also with RocketMQ's client, RabbitMQ and NATS JetStream.

Single sends are 64 at a time, each confirmed when it is durable; our client gathers those of the same moment, unless
it is told to make a call of each; so with acknowledgements. Batches are 1,000 messages: one call of our client, and
what the clients of RabbitMQ and NATS publish without waiting. What is received is acknowledged, each message by itself
(64 at a time where the client can wait for that) or a batch at once; either is timed. RabbitMQ's queue is durable, its
messages are persistent, publishes are confirmed by the server and acknowledgements are not.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from millstream.bench.messaging.ours import (
    receive_batches_ours,
    receive_gathered_ours,
    receive_singly_ours,
    send_batches_ours,
    send_gathered_ours,
    send_singly_ours,
)
from millstream.bench.messaging.task import BODY, MessagingTask
from millstream.bench.peers import load_peers
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.messaging.broker.limits import Limits
from millstream.testing.brokers import BrokerProcess

_COUNTS = {"quick": (100, 1_000), "small": (4_000, 60_000), "full": (20_000, 1_000_000)}  # singly, in batches

Run = Callable[[MessagingTask], Measurement]

_BOTH = "Millstream's client and broker"
_UNBATCHED = "Millstream's client without batching, Millstream's broker"
_ALTERNATELY = (
    "The consumer acknowledges each message by itself. It receives and acknowledges alternately: `received/s` counts "
    "only the time of receive calls, `acknowledged/s` only that of acknowledgements. `p50 ms` and `p99 ms` are times "
    "of a receive call, and `ack p50 ms` and `ack p99 ms` those of an acknowledgement."
)


class MessagingPeers(Protocol):
    """The peers in each comparison, with this many messages."""

    def send_singly(self, count: int) -> Sequence[Contender]: ...

    def send_batches(self, count: int) -> Sequence[Contender]: ...

    def receive_singly(self, count: int) -> Sequence[Contender]: ...

    def receive_batches(self, count: int) -> Sequence[Contender]: ...


class _NoPeers:
    def send_singly(self, count: int) -> Sequence[Contender]:  # noqa: ARG002
        return ()

    send_batches = receive_singly = receive_batches = send_singly


class MessagingPeersModule(Protocol):
    """What the module of the peers has for this benchmark."""

    def open_peers(self, stack: contextlib.ExitStack, folder: Path, ours: MessagingTask) -> MessagingPeers:
        """The peers; their servers are ended by *stack*. *ours* is our broker, for other clients of it."""
        ...


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """Single sends, batched sends, and receiving; see the module's docstring."""
    singly, batched = _COUNTS[size]
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(dir=folder))
        broker = BrokerProcess(f"segments:///{place / 'broker'}", Limits())
        stack.callback(broker.kill)
        broker.start()
        ours = MessagingTask(str(broker.place), folder, (broker.pid,), broker.create_topic)
        module = cast(MessagingPeersModule | None, load_peers("messaging"))
        peers = _NoPeers() if module is None else module.open_peers(stack, folder, ours)
        body = f"Bodies have {len(BODY)} bytes. Servers that can sync to the disk do so before they confirm."
        yield Comparison(
            "Single sends", "messages/s", f"64 sends run at the same time. {body}",
            [
                _contender(_BOTH, ours, send_gathered_ours, singly),
                _contender(_UNBATCHED, ours, send_singly_ours, singly),
                *peers.send_singly(singly),
            ],
        )  # fmt: skip
        yield Comparison(
            "Batched sends", "messages/s", f"A batch has 1,000 messages. {body}",
            [_contender(_BOTH, ours, send_batches_ours, batched), *peers.send_batches(batched)],
        )  # fmt: skip
        yield Comparison(
            "Receiving, with single acknowledgements", "received/s", f"{_ALTERNATELY} {body}",
            [
                _contender(_BOTH, ours, receive_gathered_ours, singly),
                _contender(_UNBATCHED, ours, receive_singly_ours, singly),
                *peers.receive_singly(singly),
            ],
        )  # fmt: skip
        half = batched // 2
        yield Comparison(
            "Receiving, with batched acknowledgements", "received/s",
            f"Messages are acknowledged in batches of about 1,000. {body}",
            [_contender(_BOTH, ours, receive_batches_ours, half), *peers.receive_batches(half)],
        )  # fmt: skip


def _contender(name: str, work: MessagingTask, run: Run, count: int) -> Contender:
    return Contender(name, lambda: run(work.of(count)))
