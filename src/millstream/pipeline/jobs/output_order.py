"""The order of a batch job's output: parts that follow each other in time, each of about as many messages.

How many parts there are follows from the number of messages, and where one ends from a sample of their times, which
tasks take at evenly spaced places of the log. Neither depends on how many executors have joined, and the batches, in
their order, are the same for any number of parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.batching import Rulebook
from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.jobs.log_range import LogRange, sampled_ids
from millstream.pipeline.jobs.shard_task import BATCH_SCHEMA
from millstream.pipeline.schema import spark_schema
from millstream.stores.tiers import open_log_store

PART_ROWS = 250_000
"""About how many messages a part of a large log holds."""

_LEAST_ROWS = 5_000
"""A part of fewer is not worth a task of its own."""

_MOST_PARTS = 4096

PLACES_A_PART = 8
_PLACE_ROWS = 256
_PLACE_TIMES = 16
"""A sample is taken at so many places for each part: some messages in a row, and of them so many times."""

_PLACES_A_TASK = 64

_ORDER = ("start", "source", "batch", "ids")

PARTED_SCHEMA = BATCH_SCHEMA.append(pa.field("part", pa.int32(), nullable=False))
"""Rows of a batch job, each with the part of the output that it belongs to."""

TIMES_SCHEMA = pa.schema([pa.field("time", pa.int64(), nullable=False)])

Times = npt.NDArray[np.int64]


def part_count(rows: int, cores: int) -> int:
    """The number of parts for *rows* messages: a part a core, if *cores* are known, and more where there are many."""
    wanted = min(_MOST_PARTS, max(cores, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows // _LEAST_ROWS))


def find_bounds(spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook) -> list[int]:
    """The times, ascending, at which each part but the first begins; tasks read a sample of *wanted* for them."""
    parts = part_count(wanted.count, spark.sparkContext.defaultParallelism)
    if parts == 1:
        return []
    places = parts * PLACES_A_PART
    sample = partial(sample_part, store_url=store_url, wanted=wanted, rules=rules, places=places)
    numbers = spark.range(places, numPartitions=-(-places // _PLACES_A_TASK))
    times = numbers.mapInArrow(sample, spark_schema(TIMES_SCHEMA)).toArrow()["time"].to_numpy()
    bounds: list[int] = np.quantile(times, np.arange(1, parts) / parts).astype(np.int64).tolist()
    return bounds


def sample_part(
    numbers: Iterable[pa.RecordBatch], store_url: str, wanted: LogRange, rules: Rulebook, places: int
) -> Iterator[pa.RecordBatch]:
    """Some times (:data:`TIMES_SCHEMA`) of messages at the places *numbers* (``id``) of as many as *places*."""
    with open_log_store(store_url, clock=SystemClock()) as store:
        log = store.log(LogSpec(wanted.log), create=False)
        for part in numbers:
            for first, last in sampled_ids(wanted, part.column("id").to_pylist(), places, _PLACE_ROWS):
                read = log.read(first, last, ["event_time", "received_at"], gaps="none")
                times = np.sort(np.concatenate([order_times(batch.arrow, rules) for batch in read]))
                some = times[:: max(1, len(times) // _PLACE_TIMES)]
                yield pa.RecordBatch.from_arrays([pa.array(some)], schema=TIMES_SCHEMA)


def order_times(messages: pa.RecordBatch, rules: Rulebook) -> Times:
    """About where each of *messages* comes in the output: at its event time, or where refused when it was received."""
    event, received = (messages.column(name).to_numpy() for name in ("event_time", "received_at"))
    lead = max(config.lead for config in rules.configs)
    accepted = (event >= received - rules.patience) & (event <= received + lead)
    times: Times = np.where(accepted, event, received)
    return times


def with_part(rows: Iterable[pa.RecordBatch], bounds: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """*rows* of ``BATCH_SCHEMA`` as rows of :data:`PARTED_SCHEMA`."""
    for batch in rows:
        part = np.searchsorted(bounds, batch.column("start").to_numpy(), "right").astype(np.int32)
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(part)], schema=PARTED_SCHEMA)


def in_order(batches: DataFrame, parts: int) -> DataFrame:
    """*batches* (:data:`PARTED_SCHEMA`) in *parts* sorted parts: one after the other, these are in order.

    A plain global sort would run the batching twice, to sample where to cut.
    """
    return batches.repartitionById(parts, "part").sortWithinPartitions(*_ORDER).select(*BATCH_SCHEMA.names)
