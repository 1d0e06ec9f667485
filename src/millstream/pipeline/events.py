"""How a message is shown to the batcher, the same in this process and on every executor."""

from __future__ import annotations

import hashlib

from millstream.batching import Event
from millstream.core.message import Message


def event_of(message: Message) -> Event:
    """The batcher's view of *message*, whose times are set: two messages say the same if their bodies are equal.

    Its size, for the cap on bytes, is that of the body.
    """
    assert message.event_time is not None
    assert message.received_at is not None
    return Event(
        message.id,
        message.source,
        message.key,
        message.event_time,
        message.received_at,
        hashlib.sha256(message.body).hexdigest(),
        len(message.body),
    )
