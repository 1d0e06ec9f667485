"""Event-time batching: the order-free batcher against a replay of thin-edge's algorithm on the same records.

A fleet of sources reports nine readings each, together once a period, and every reading comes with a delay of its own.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching import BatchConfig, Batcher, Event, Mode
from millstream.batching.columns import cut_columns
from millstream.bench.frame import Comparison, Contender, Sample, Size
from millstream.core.clock import Clock, SystemClock

EVENTS: dict[Size, int] = {"small": 100_000, "full": 1_000_000}
SOURCES = (1, 3, 100, 20_000)

KEYS = 9
WINDOW = 50_000
MAX_DELAY = 20_000
PERIOD = 200_000
CHUNK = 8192


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:  # noqa: ARG001
    """One comparison for each number of sources."""
    clock = SystemClock()
    for sources in SOURCES:
        events = fleet(EVENTS[size], sources)
        yield Comparison(
            title=f"{sources:,} sources",
            unit="events/s",
            conditions=(
                f"{len(events):,} events with digests of 64 digits, on one core. Incremental: in order of receipt, "
                f"{CHUNK:,} a call, the clock advanced between calls, each batch under its SHA-256 identity. "
                "History: Arrow columns in, batches in Arrow columns out, no identities"
            ),
            contenders=[
                Contender("faithful replay, incremental", functools.partial(_feed, "faithful", events, clock)),
                Contender("order-free, incremental", functools.partial(_feed, "order-free", events, clock)),
                Contender("order-free, history", functools.partial(_cut, _table(events), clock)),
            ],
        )


def fleet(count: int, sources: int, seed: int = 1) -> list[Event]:
    """*count* events of *sources* devices in order of receipt; each device reports :data:`KEYS` keys a period."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        period, rest = divmod(number, sources * KEYS)
        source, key = divmod(rest, KEYS)
        time = period * PERIOD + source * PERIOD // sources + draw.randrange(WINDOW // 2)
        rows.append((time + draw.randrange(MAX_DELAY), time, source, key))
    rows.sort()
    return [
        Event(number, f"device-{source}", f"key-{key}", time, received_at, f"{draw.getrandbits(256):064x}")
        for number, (received_at, time, source, key) in enumerate(rows, start=1)
    ]


def _table(events: Sequence[Event]) -> pa.Table:
    names = ("id", "source", "key", "event_time", "received_at", "digest")
    return pa.table({name: [getattr(event, name) for event in events] for name in names})


def _feed(mode: Mode, events: Sequence[Event], clock: Clock) -> Sample:
    batcher, sizes = Batcher(WINDOW, MAX_DELAY, mode=mode), []
    begin = clock.monotonic()
    for first in range(0, len(events), CHUNK):
        chunk = events[first : first + CHUNK]
        for outcome in (batcher.advance(chunk[0].received_at), batcher.receive_many(chunk)):
            sizes += [len(batch.events) for batch in outcome.batches]
    sizes += [len(batch.events) for batch in batcher.flush().batches]
    return _sample(len(events), sizes, clock.monotonic() - begin)


def _cut(table: pa.Table, clock: Clock) -> Sample:
    begin = clock.monotonic()
    batches = cut_columns(table, BatchConfig(WINDOW, MAX_DELAY)).batches
    seconds = clock.monotonic() - begin
    return _sample(len(table), pc.list_value_length(batches["events"]).to_pylist(), seconds)


def _sample(count: int, sizes: list[int], seconds: float) -> Sample:
    """The rate, once every event is found to be in a batch (none is late or a copy)."""
    if sum(sizes) != count:
        raise AssertionError(f"{count - sum(sizes)} of {count} events are in no batch")
    return Sample(count / seconds, {"batches": len(sizes), "events a batch": count / len(sizes)})
