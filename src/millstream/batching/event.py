"""Input and output of the batcher."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Reason = Literal["late", "future", "duplicate", "conflicting_duplicate", "tick", "time"]
"""The reasons why a record is rejected; a tick (``message_events.py``) is none, and only a job over a log names it."""

CutReason = Literal["window", "conflict", "size", "neighbour", "flush"]
"""The reasons why a batch ended: its window was over, a key repeated, a cap on its count or bytes was reached, the next
batch began there (faithful mode), or the end."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One record as the batcher sees it: who, when it happened, when it came, and the hash of what it says.

    Times are integers of one tick, whichever the stream uses (messages: microseconds since the epoch), and ``id`` is
    the caller's own number for the record; all three are signed 64-bit. Records of one ``source`` are batched
    together; ``key`` may appear once in a batch; ``digest`` tells a repeated record from a contradicting one. ``size``
    is the record's share of a batch's ``max_bytes``, zero or more; equal digests mean equal sizes.
    """

    id: int
    source: str
    key: str
    event_time: int
    received_at: int
    digest: str = ""
    size: int = 0


Kind = Literal["batch", "side", "amendment"]
"""What a batch is made of: punctual records, late ones alone, or all of a time whose batches came out too early."""


class EventBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records of one source that belong together by the time they happened.

    ``batch`` is the identity (see ``docs/formats/batch-id.md``); ``start`` and ``end`` are the first and the last event
    time inside; ``closed_at`` is the earliest clock at which the batch is known to be whole, None where the end of the
    stream closed it sooner; ``events`` holds the ids of the records by event time, then key. ``amends`` names the
    batches that an amendment replaces; ``kind`` and ``amends`` are left out of JSON where they say nothing.
    """

    batch: str
    source: str
    start: int
    end: int
    closed_at: int | None
    cut: CutReason
    events: tuple[int, ...]
    kind: Kind = "batch"
    amends: tuple[str, ...] = ()


class Reject(msgspec.Struct, frozen=True):
    """A record that is in no batch: its id and the reason."""

    rejected: int
    reason: Reason


class BatcherOutput(NamedTuple):
    """The result of a call: closed batches and rejected records."""

    batches: list[EventBatch]
    rejects: list[Reject]


Row = tuple[int, str, str, int, int, int]
"""An accepted record: event time, key, digest, received at, id, size. Rows sort in the order in which they are
decided."""
