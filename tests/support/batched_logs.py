"""Messages to be batched, what must come of them, and what came."""

from __future__ import annotations

import json
import random
from typing import TypeAlias

from millstream.batching import BatchConfig, Batcher
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.core.message import Message
from millstream.log import Log

RULES = BatchConfig(50, 20)

Outcome: TypeAlias = tuple[list[str], list[tuple[int, str]]]
"""The identities of batches, and the ids of rejected messages with the reasons; both sorted."""


def traffic(seed: int, count: int) -> list[Message]:
    """Messages of three sources, some of them late, repeated or in conflict, in the order of their receipt."""
    draw, now, messages = random.Random(seed), 0, []
    for _ in range(count):
        now += draw.randint(0, 6)
        source, key, delay = draw.choice("pqr"), draw.choice(["a", "b", "c", ""]), draw.randint(-5, 28)
        messages.append(Message(b"%d" % draw.randrange(3), key, source, now - delay, now))
    return messages


def expected(log: Log, rules: BatchConfig = RULES) -> Outcome:
    """The outcome that a batcher gives for the messages of *log* up to its last receive time."""
    messages = [message for batch in log.read() for message in batch]
    batcher = Batcher.of(rules)
    events = [event_from_message(message) for message in messages if message.source != TICK_SOURCE]
    outcomes = [batcher.receive_many(events), batcher.advance(max(message.received_at or 0 for message in messages))]
    batches = [batch.batch for outcome in outcomes for batch in outcome.batches]
    rejects = [(reject.rejected, str(reject.reason)) for outcome in outcomes for reject in outcome.rejects]
    return sorted(batches), sorted(rejects)


def given(log: Log) -> Outcome:
    """The outcome in the log of batches *log*."""
    items = [json.loads(message.body) for batch in log.read() for message in batch]
    batches = [item["batch"] for item in items if "batch" in item]
    return sorted(batches), sorted((item["rejected"], item["reason"]) for item in items if "rejected" in item)
