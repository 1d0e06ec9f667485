"""How messages are shown to the batcher, the same in this process and on every executor; and the ticks among them."""

from __future__ import annotations

import hashlib

from millstream.batching.event import Event
from millstream.core.message import TICK_SOURCE, Message

__all__ = ["TICK_SOURCE", "event_from_message", "make_tick"]


def event_from_message(message: Message) -> Event:
    """The batcher's view of *message*, whose times are set: two messages say the same if their bodies are equal.

    Its size, for the cap on bytes, is that of the body. One without a key repeats no other but its own copies: what it
    says and when stand for its key, so that it ends no batch and contradicts nothing.
    """
    assert message.event_time is not None
    assert message.received_at is not None
    digest = hashlib.sha256(message.body).hexdigest()
    return Event(
        message.id,
        message.source,
        message.key or f"{digest}@{message.event_time}",
        message.event_time,
        message.received_at,
        digest,
        len(message.body),
    )


def make_tick() -> Message:
    """A tick for the end of a log; the log gives it its time."""
    return Message(b"", source=TICK_SOURCE)
