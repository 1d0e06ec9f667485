"""The log ``weather`` of a node that serves, and what is batched and anchored of it."""

from __future__ import annotations

import json

from millstream.batching import Batcher
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node


def append(node: Node, count: int) -> None:
    """Append *count* messages of now to the log ``weather``."""
    with node.logs.store.log(LogSpec("weather")).writer("test") as writer:
        writer.append([Message(b"%d" % n, f"key {n}", "s") for n in range(count)])


def anchored(node: Node) -> int:
    """How many messages are anchored, in batches or as rejected."""
    totals = node.anchoring.observer.index.totals()
    return totals.messages + totals.rejects


def given(node: Node) -> tuple[list[str], list[int]]:
    """The ids of the batches that came out, and of the messages that were refused."""
    messages = [message for batch in node.logs.store.log(LogSpec("weather.batches")).read() for message in batch]
    items = [json.loads(message.body) for message in messages]
    return sorted(one["batch"] for one in items if "batch" in one), sorted(
        one.get("rejected") for one in items if "rejected" in one
    )


def expected(node: Node) -> tuple[list[str], list[int]]:
    """The same, as the rules give them for the log, with their changes."""
    messages = [message for batch in node.logs.store.log(LogSpec("weather")).read() for message in batch]
    batcher = Batcher.of(node.batching.rules_of("weather.batches"))
    events = [event_from_message(message) for message in messages if message.source != TICK_SOURCE]
    outcomes = [batcher.receive_many(events), batcher.advance(max(message.received_at for message in messages))]
    batches = [batch.batch for outcome in outcomes for batch in outcome.batches]
    return sorted(batches), sorted(one.rejected for outcome in outcomes for one in outcome.rejects)
