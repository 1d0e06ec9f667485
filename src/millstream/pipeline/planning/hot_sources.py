"""Sources that are too much for one task, and where their records can be parted without changing a batch.

A gap in event time that no window spans separates batches (reference "batching", P8). So the records on either side of
it may go to different tasks, as if they were of two sources. Gaps are looked for among all records, those that will be
refused too: that finds too few of them, never too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from millstream.batching import Rulebook
from millstream.batching.message_events import TICK_SOURCE
from millstream.batching.window_boundaries import Integers
from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.planning.log_range import LogRange, sampled_ids
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import Cuts
from millstream.pipeline.source import read_log
from millstream.stores.tiers import open_log_store

HOT_ROWS = 100_000
"""Minimum number of records of a source that is split."""

_SAMPLES = 16
_SAMPLED = 4096
"""Places of a log that are examined, and messages at each."""

_MOST_SPANS = 2_000_000
_LEAST_SPANS = 64
"""About how many spans all tasks together tell of a source, each by its share of the records; but so many each at
least. Where a task has more, it forgets the narrowest gaps."""

SPAN_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)
"""One row a span of event time in which a task found no gap, and how many records lie in it."""

CUTS_SCHEMA = pa.schema(
    [pa.field("source", pa.string(), nullable=False), pa.field("cuts", pa.list_(pa.int64()), nullable=False)]
)
"""One row a hot source, with the event times at which it is parted."""


class SourceGaps(NamedTuple):
    """What parts records: a gap wider than ``window`` whose near side lies no later than ``settled_to``.

    What lies before such a gap is closed at the end of the range, so that its last batch ends as it does in one task.
    """

    window: int
    settled_to: int


def gaps_of(rules: Rulebook, received_to: int) -> SourceGaps | None:
    """The gaps that part batches under *rules* in a range received up to *received_to*.

    None for the mode ``faithful``, which depends on the order of all records.
    """
    if rules.default.mode == "faithful":
        return None
    return SourceGaps(max(config.window for config in rules.configs), received_to - rules.patience)


def find_cuts(spark: SparkSession, store_url: str, wanted: LogRange, shards: int, gaps: SourceGaps) -> Cuts:
    """The event times at which the hot sources of *wanted* are parted; nothing is read in full where there are none."""
    hot = _hot_sources(store_url, wanted, max(HOT_ROWS, 2 * wanted.count // shards))
    if not hot:
        return {}
    frame = read_log(
        spark,
        store_url,
        wanted.log,
        first_id=wanted.first_id,
        last_id=wanted.last_id,
        columns=["source", "event_time"],
    )
    find = partial(find_spans, hot=hot, window=gaps.window, count=wanted.count)
    share = max(1, wanted.count // shards)
    spans = frame.mapInArrow(find, spark_schema(SPAN_SCHEMA)).groupBy("source")
    found = spans.applyInArrow(  # Spark 4.3 fails on the annotations of a partial function
        lambda each: cut_source(each, gaps, share), spark_schema(CUTS_SCHEMA)
    ).toArrow()
    return dict(zip(found["source"].to_pylist(), found["cuts"].to_pylist(), strict=True))


def find_spans(
    parts: Iterable[pa.RecordBatch], hot: Sequence[str], window: int, count: int
) -> Iterator[pa.RecordBatch]:
    """The spans (:data:`SPAN_SCHEMA`) of each source in *hot* among the records of a task, of *count* in all tasks."""
    found: dict[str, list[Integers]] = {source: [] for source in hot}
    for part in parts:
        for source, times in found.items():
            mine = part.filter(pc.equal(part.column("source"), source))
            times.append(mine.column("event_time").to_numpy())
    for source, times in found.items():
        mine = np.sort(np.concatenate([*times, np.zeros(0, np.int64)]))
        yield from _spans(source, mine, window, max(_LEAST_SPANS, _MOST_SPANS * len(mine) // count))


def cut_source(spans: pa.Table, gaps: SourceGaps, share: int) -> pa.Table:
    """The positions at which one source is split (:data:`CUTS_SCHEMA`), by all of its *spans*: a task has those of one
    source."""
    cuts = choose_cuts(spans, gaps, share)
    return pa.table([spans["source"].slice(0, 1), pa.array([cuts], pa.list_(pa.int64()))], schema=CUTS_SCHEMA)


def choose_cuts(spans: pa.Table, gaps: SourceGaps, share: int) -> list[int]:
    """Some *gaps* between all *spans* of a source, about *share* records apart: the times of what follows on them."""
    ordered = spans.sort_by("start")
    start, rows = ordered["start"].to_numpy(), np.cumsum(ordered["rows"].to_numpy())
    end = np.maximum.accumulate(ordered["end"].to_numpy())
    parted = np.flatnonzero((start[1:] - end[:-1] > gaps.window) & (end[:-1] <= gaps.settled_to))
    if not len(parted):
        return []
    wanted = np.arange(share, rows[-1], share)
    chosen = parted[np.minimum(np.searchsorted(rows[parted], wanted), len(parted) - 1)]
    cuts: list[int] = start[np.unique(chosen) + 1].tolist()
    return cuts


def _spans(source: str, times: Integers, window: int, most: int) -> Iterator[pa.RecordBatch]:
    if not len(times):
        return
    widths = np.diff(times)
    gaps = np.flatnonzero(widths > window)
    if len(gaps) >= most:
        gaps = np.sort(gaps[np.argpartition(widths[gaps], -most)[-most:]])
    begins, ends = np.append(0, gaps + 1), np.append(gaps, len(times) - 1)
    names = pa.array([source]).take(pa.array(np.zeros(len(begins), np.int64)))
    columns = [names, pa.array(times[begins]), pa.array(times[ends]), pa.array(ends - begins + 1)]
    yield pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)


def _hot_sources(store_url: str, wanted: LogRange, least: int) -> list[str]:
    """The sources that seem to have at least *least* records, by a look at a fixed number of messages; no ticks."""
    with open_log_store(store_url, clock=SystemClock(), create=False) as store:
        log = store.log(LogSpec(wanted.log), create=False)
        names: list[str] = []
        for first_id, last_id in sampled_ids(wanted, range(_SAMPLES), _SAMPLES, _SAMPLED):
            for batch in log.read(first_id, last_id, ["source"], gaps="none"):
                names += batch.arrow.column("source").to_pylist()
    counts = pc.value_counts(pa.array(names, pa.string())).to_pylist()
    hot = {row["values"] for row in counts if row["counts"] * wanted.count >= least * len(names)}
    return sorted(hot - {TICK_SOURCE})
