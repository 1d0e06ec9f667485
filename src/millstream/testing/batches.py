"""Synthetic event batches, for tests of what comes after batching."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from millstream.anchoring.batch_records import EncodedBatch, encode_batch
from millstream.batching import EventBatch, Reject
from millstream.batching.event import CutReason
from millstream.core.message import Message

CONFIG = {"max_delay": 600, "window": 60}
"""A batching configuration to put into manifests."""

_SOURCES = ("EWR", "JFK", "LGA")
_KEYS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib", "snow", "ice")
_HOUR = 3_600_000_000
_EPOCH = 1_356_998_400_000_000  # 2013-01-01, microseconds


def make_batch(
    ids: Sequence[int], source: str = "JFK", hour: int = 0, name: str | None = None, *, cut: CutReason = "window"
) -> EncodedBatch:
    """A batch of messages with *ids*; *hour* sets its event times, *name* its id (default: a hash of what stands before
    it), *cut* says why it ended."""
    messages = [make_message(number, source, hour, place) for place, number in enumerate(ids)]
    batch = name or hashlib.sha256(repr((list(ids), source, hour)).encode()).hexdigest()
    start = _EPOCH + hour * _HOUR
    return encode_batch(
        EventBatch(
            batch=batch, source=source, start=start, end=start, closed_at=start + _HOUR, cut=cut, events=tuple(ids)
        ),
        messages,
    )


def make_message(number: int, source: str = "JFK", hour: int = 0, place: int = 0) -> Message:
    """The message with id *number*; the same arguments give the same message."""
    body = b'{"unit":"\xc2\xb0F","value":%d}' % (number * 7919 % 1000)
    time = _EPOCH + hour * _HOUR
    return Message(body, _KEYS[place % len(_KEYS)], source, time, time + number % 100, id=number)


def make_batches(count: int, seed: int = 0, first_id: int = 1) -> Iterator[EncodedBatch]:
    """*count* batches of 1 to 11 messages of three sources; ids from *first_id* on, shuffled among neighbours."""
    draw = random.Random(seed)
    for number in range(count):
        size = draw.randint(1, len(_KEYS))
        ids = list(range(first_id, first_id + size))
        draw.shuffle(ids)
        yield make_batch(ids, _SOURCES[number % 3], number // 3)
        first_id += size


def make_rejects(ids: Sequence[int]) -> list[Reject]:
    """Rejects of messages *ids*, late and duplicate by turns."""
    return [Reject(number, "late" if number % 2 else "duplicate") for number in ids]
