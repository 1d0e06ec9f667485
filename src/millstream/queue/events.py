"""The events of a work queue, as messages of a log. The key of a message is the kind of event. A ``put`` is the task
itself: its body is the message's body, its id the message's id. All other bodies are JSON, so that the history of a
queue can be read with ``millstream log read``.
"""

from __future__ import annotations

import msgspec

from millstream.core.decoding import prepared
from millstream.core.message import Message
from millstream.queue.protocol import QueueError


class DamagedQueueError(QueueError):
    """A message of the queue's log is not one that a queue writes."""


class TaskEvent(msgspec.Struct, frozen=True, tag_field="did"):
    """Something happened to the tasks ``ids``."""

    ids: list[int]


class Leased(TaskEvent, frozen=True, tag="lease"):
    """They were leased until ``until`` (microseconds); the message's id is the token of the leases."""

    until: int


class Extended(TaskEvent, frozen=True, tag="extend"):
    """Their leases now run out at ``until`` (microseconds)."""

    until: int


class Acked(TaskEvent, frozen=True, tag="ack"):
    """They are done."""


class Nacked(TaskEvent, frozen=True, tag="nack", omit_defaults=True):
    """They were given back, to be leased no sooner than ``ready_at`` (microseconds).

    With ``untried`` their last lease is none of their attempts.
    """

    ready_at: int
    untried: bool = False


class Died(TaskEvent, frozen=True, tag="dead-letter"):
    """They were set aside at ``at`` (microseconds) because of ``cause``."""

    at: int
    cause: str


class Redriven(TaskEvent, frozen=True, tag="redrive"):
    """They were dead and are ready again, at ``ready_at`` (microseconds; 0: at once), as if they were new."""

    ready_at: int = 0


class Amended(TaskEvent, frozen=True, tag="amend"):
    """They are dead, and have another body."""

    body: bytes


class TaskSnapshot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A task in a snapshot. ``due`` is when a delay or a lease ends, or when the task died (microseconds)."""

    id: int
    body: bytes
    state: str
    attempts: int = 0
    due: int = 0
    token: int = 0
    cause: str = ""


class Snapshot(msgspec.Struct, frozen=True, tag_field="did", tag="snapshot"):
    """Part ``part`` (1 …) of ``parts`` of all tasks that are not done, those that are ready in their order."""

    part: int
    parts: int
    tasks: list[TaskSnapshot]


Event = Leased | Extended | Acked | Nacked | Died | Redriven | Amended | Snapshot

PUT = "put"
_READY_AT = "ready_at"
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(prepared(Event))


def put_message(body: bytes, ready_at: int | None, now: int) -> Message:
    """The message that puts a task *now*, to be leased no sooner than *ready_at* (microseconds; None: at once)."""
    headers = () if ready_at is None else ((_READY_AT, str(ready_at).encode("ascii")),)
    return Message(body, key=PUT, headers=headers, event_time=now)


def ready_at(message: Message) -> int | None:
    """The time from which the task of a ``put`` message may be leased (None: at once)."""
    for name, value in message.headers:
        if name == _READY_AT and value.isdigit():
            return int(value)
    return None


def event_message(event: Event) -> Message:
    """The message that records *event*."""
    return Message(_encoder.encode(event), key=str(event.__struct_config__.tag))


def read_event(message: Message) -> Event:
    """The event of any message but a ``put``. Raises :class:`DamagedQueueError`."""
    try:
        return _decoder.decode(message.body)
    except msgspec.DecodeError as error:
        raise DamagedQueueError(
            f"message {message.id} is not an event that this release knows ({error}); check whether a newer release or "
            "another program wrote to this log"
        ) from error
