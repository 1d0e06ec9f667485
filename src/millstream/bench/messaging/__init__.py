"""Sending and receiving through brokers: ours by our client and by the official one, and NATS JetStream.

Single sends are 64 at a time, each confirmed when it is durable. Batches are 1,000 messages: one call of our client,
and what NATS's client publishes without waiting. What is received is acknowledged.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.bench.frame import Comparison, Contender, Sample, Size
from millstream.bench.log.servers import Servers
from millstream.bench.messaging.official import run_official
from millstream.bench.messaging.ours import (
    receive_ours,
    send_batches_ours,
    send_gathered_ours,
    send_singly_ours,
)
from millstream.bench.messaging.peer import receive_nats, send_batches_nats, send_singly_nats
from millstream.bench.messaging.work import BODY, Work
from millstream.core.errors import MillstreamError
from millstream.messaging.broker.checks import Limits
from millstream.testing.brokers import BrokerProcess

_COUNTS = {"quick": (200, 2_000), "small": (4_000, 60_000), "full": (20_000, 1_000_000)}  # singly, in batches

Run = Callable[[Work], Sample]


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """Single sends, batched sends, and receiving; see the module's docstring."""
    singly, batched = _COUNTS[size]
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(dir=folder))
        broker = BrokerProcess(f"segments:///{place / 'broker'}", Limits())
        stack.callback(broker.kill)
        broker.start()
        ours = Work(str(broker.place), folder, (broker.pid,), broker.make_topic)
        peers = {"NATS JetStream": peer} if (peer := _nats(stack, folder)) else {}
        body = f"{len(BODY)} bytes a message, durable by fsync where the server can"
        yield Comparison(
            "Single sends", "messages/s", f"64 at a time, {body}",
            [
                *_contenders({"our client, our broker": ours}, send_singly_ours, singly),
                *_contenders({"our client that gathers, our broker": ours}, send_gathered_ours, singly),
                *_official(ours, "send", singly),
                *_contenders(peers, send_singly_nats, singly),
            ],
        )  # fmt: skip
        yield Comparison(
            "Batched sends", "messages/s", f"1,000 a batch, {body}",
            [
                *_contenders({"our client, our broker": ours}, send_batches_ours, batched),
                *_contenders(peers, send_batches_nats, batched),
            ],
        )  # fmt: skip
        yield Comparison(
            "Receiving and acknowledging", "messages/s", body,
            [
                *_contenders({"our client, our broker": ours}, receive_ours, batched // 2),
                *_official(ours, "receive", singly),
                *_contenders(peers, receive_nats, batched // 2),
            ],
        )  # fmt: skip


def _contenders(places: dict[str, Work], run: Run, count: int) -> list[Contender]:
    return [Contender(name, lambda work=work: run(work.of(count))) for name, work in places.items()]  # type: ignore[misc]


def _official(work: Work, what: str, count: int) -> list[Contender]:
    if importlib.util.find_spec("rocketmq") is None:
        return []
    return [Contender("official Python client, our broker", lambda: run_official(work.of(count), what))]


def _nats(stack: contextlib.ExitStack, folder: Path) -> Work | None:
    if importlib.util.find_spec("nats") is None:
        return None
    try:
        started = stack.enter_context(Servers(folder)).get("nats")
    except MillstreamError:
        return None
    return Work(started.url, folder, started.processes, lambda _name: None)
