"""Event-time batching: by record, by columns, of whole logs, and on Spark; compared with thin-edge's algorithm.

In memory all take the same records of a fleet (``bench/fleet.py``) on one core. Spark reads them from a log.
"""

from __future__ import annotations

import functools
import importlib.util
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching import BatchConfig, Batcher, BatchingMode, Event
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.columns import cut_columns
from millstream.bench import batching_spark
from millstream.bench.fleet import MAX_DELAY, WINDOW, events_of, fleet, fleet_parts
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.amounts import counted
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError

EVENTS: dict[Size, int] = {"quick": 5000, "small": 100_000, "full": 1_000_000}
LENGTHS: dict[Size, tuple[int, ...]] = {
    "quick": (5000, 20_000),
    "small": (100_000, 1_000_000),
    "full": (100_000, 1_000_000, 10_000_000),
}
OPEN: dict[Size, tuple[int, ...]] = {"quick": (1000,), "small": (10_000, 100_000), "full": (10_000, 100_000, 1_000_000)}
SOURCES = (1, 100, 20_000)
MODES = ("core", "spark")

CHUNK = 8192
STEP = 32_768

RULES = BatchConfig(WINDOW, MAX_DELAY)
PATIENT = BatchConfig(WINDOW, 2**40)
"""Rules under which nothing is closed."""


def comparisons(size: Size, folder: Path, *, modes: str = ",".join(MODES), cores: str = "2") -> Iterator[Comparison]:
    """The core on one core, and both hosts on Spark on so many *cores* (*modes*; ``batching_spark.py``).

    Speed by the number of sources and by the number of events, memory by the number of open events. Raises
    :class:`InputError` where Spark is wanted and not installed.
    """
    wanted = _chosen(modes)
    if "core" in wanted:
        yield from _core(size)
    if "spark" in wanted:
        yield from batching_spark.comparisons(size, folder, cores=cores)


def _core(size: Size) -> Iterator[Comparison]:
    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        clock = SystemClock()
        yield from (_by_sources(EVENTS[size], sources, clock) for sources in SOURCES)
        yield _by_length(LENGTHS[size], clock)
        yield from (_memory(count) for count in OPEN[size])
    finally:
        pa.set_cpu_count(threads)


def _chosen(modes: str) -> tuple[str, ...]:
    wanted = tuple(modes.split(","))
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise InputError(f"--modes: unknown mode {', '.join(unknown)}; choose from {', '.join(MODES)}")
    if "spark" in wanted and importlib.util.find_spec("pyspark") is None:
        raise InputError(
            "Spark is not installed: pip install 'millstream[pipeline]', or run the benchmark without Spark (--modes "
            "core)"
        )
    return wanted


def _by_sources(count: int, sources: int, clock: Clock) -> Comparison:
    table = fleet(count, sources)
    events = events_of(table)
    return Comparison(
        title=counted(sources, "source"),
        unit="events/s",
        conditions=(
            f"One core batches {count:,} events with digests of 64 digits. The first row is the algorithm of "
            "thin-edge.io (`millstream batch --mode faithful`), whose batches depend on the order of arrival. The "
            "other rows are Millstream's algorithm (`--mode order-free`), so their batches differ. *Record by record*: "
            f"each call gets {CHUNK:,} events in order of receipt, and the clock advances between calls. *Columnar*: "
            f"each call gets an Arrow table of {STEP:,} events in order of receipt. In both cases, the id of a batch "
            "is its SHA-256. *Whole log*: one call gets one table with all events, and no batch ids are computed."
        ),
        contenders=[
            Contender(
                "thin-edge.io's algorithm, record by record", functools.partial(_feed, "faithful", events, clock)
            ),
            Contender("order-free, record by record", functools.partial(_feed, "order-free", events, clock)),
            Contender("order-free, columnar", functools.partial(_steps, table, clock)),
            Contender("order-free, whole log", functools.partial(_cut, table, clock)),
        ],
    )


def _by_length(lengths: Sequence[int], clock: Clock) -> Comparison:
    return Comparison(
        title="Growing number of events",
        unit="events/s",
        conditions=f"Columnar batching with batch ids; each call gets {STEP:,} events from 1,000 sources. The events "
        "are generated during the run.",
        contenders=[Contender(f"{count:,} events", functools.partial(_lazy_steps, count, clock)) for count in lengths],
    )


def _memory(count: int) -> Comparison:
    table = fleet(count, 1000)
    contenders: list[tuple[str, Callable[[], Batcher | ColumnBatcher]]] = [
        ("record by record", functools.partial(_open_records, table)),
        ("columnar", functools.partial(_open_columns, table)),
    ]
    return Comparison(
        title=f"{count:,} open events",
        unit="bytes/event",
        conditions="The second column is the memory (Python and Arrow) per event of a batcher with 1,000 sources while "
        "the events wait in open batches. A snapshot is the stored state of the batcher.",
        contenders=[Contender(name, functools.partial(_measure, count, hold)) for name, hold in contenders],
    )


def _feed(mode: BatchingMode, events: Sequence[Event], clock: Clock) -> Measurement:
    batcher, sizes = Batcher(WINDOW, MAX_DELAY, mode=mode), []
    begin = clock.monotonic()
    for first in range(0, len(events), CHUNK):
        chunk = events[first : first + CHUNK]
        for outcome in (batcher.advance(chunk[0].received_at), batcher.receive_many(chunk)):
            sizes += [len(batch.events) for batch in outcome.batches]
    sizes += [len(batch.events) for batch in batcher.flush().batches]
    return _sample(len(events), sizes, clock.monotonic() - begin)


def _steps(table: pa.Table, clock: Clock) -> Measurement:
    begin = clock.monotonic()
    batcher = ColumnBatcher(RULES)
    sizes = _step_through(batcher, table) + _sizes(batcher.flush().batches)
    return _sample(len(table), sizes, clock.monotonic() - begin)


def _lazy_steps(count: int, clock: Clock) -> Measurement:
    """As :func:`_steps`, without more than one part in memory; the time in which parts are made does not count."""
    batcher, sizes, seconds = ColumnBatcher(RULES), list[int](), 0.0
    for part in fleet_parts(count, 1000):
        begin = clock.monotonic()
        sizes += _step_through(batcher, part, slack=MAX_DELAY + WINDOW)
        seconds += clock.monotonic() - begin
    begin = clock.monotonic()
    sizes += _sizes(batcher.flush().batches)
    return _sample(count, sizes, seconds + clock.monotonic() - begin)


def _step_through(batcher: ColumnBatcher, table: pa.Table, slack: int = 0) -> list[int]:
    """Take *table* in steps; the clock stays *slack* ticks behind, for the next part begins a little before its end."""
    sizes: list[int] = []
    for first in range(0, len(table), STEP):
        chunk = table.slice(first, STEP)
        sizes += _sizes(batcher.step(chunk, chunk["received_at"][-1].as_py() - slack).batches)
    return sizes


def _cut(table: pa.Table, clock: Clock) -> Measurement:
    begin = clock.monotonic()
    batches = cut_columns(table, RULES).batches
    return _sample(len(table), _sizes(batches), clock.monotonic() - begin)


def _open_records(table: pa.Table) -> Batcher:
    batcher = Batcher.of(PATIENT)
    for first in range(0, len(table), CHUNK):
        batcher.receive_many(events_of(table.slice(first, CHUNK)))
    return batcher


def _open_columns(table: pa.Table) -> ColumnBatcher:
    batcher = ColumnBatcher(PATIENT)
    batcher.step(table.take(np.arange(len(table))), 0)  # a copy that nobody else holds on to
    return batcher


def _measure(count: int, hold: Callable[[], Batcher | ColumnBatcher]) -> Measurement:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
    batcher = hold()
    after = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
    tracemalloc.stop()
    return Measurement((after - before) / count, {"snapshot bytes/event": len(batcher.snapshot()) / count})


def _sizes(batches: pa.Table) -> list[int]:
    sizes: list[int] = pc.list_value_length(batches["events"]).to_pylist()
    return sizes


def _sample(count: int, sizes: list[int], seconds: float) -> Measurement:
    """The rate, once every event is found to be in a batch (none is late or a copy)."""
    if sum(sizes) != count:
        raise AssertionError(f"the batches contain {sum(sizes):,} events, expected {count:,}")
    return Measurement(count / seconds, {"batches": len(sizes), "events per batch": count / len(sizes)})
