"""The job behind ``millstream batch advise``: many rules tried on one history, in one pass over the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.batching import BatchConfig
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columns import FARTHEST
from millstream.batching.simulation import SimulationMetrics, simulate, total
from millstream.core.clock import Clock, SystemClock
from millstream.core.decoding import prepared
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.history import share_range
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.planning.hot_sources import SourceGaps
from millstream.pipeline.planning.log_range import LogRange, plan_range
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import events_of, read_share
from millstream.pipeline.spark_errors import spark_errors_explained

TRIED_SCHEMA = pa.schema(
    [pa.field("rules", pa.int32(), nullable=False), pa.field("figures", pa.binary(), nullable=False)]
)
"""One row a shard and set of rules: the place of the rules in the list, and the figures as MessagePack."""


class RuleTrial(msgspec.Struct, frozen=True):
    """The result of each set of rules for the messages *first_id* to *last_id* of *log*."""

    log: str
    first_id: int
    last_id: int
    figures: tuple[SimulationMetrics, ...]
    seconds: float


def try_rules(
    spark: SparkSession,
    store_url: str,
    log: str,
    choices: Sequence[BatchConfig],
    *,
    first_id: int | None = None,
    last_id: int | None = None,
    clock: Clock | None = None,
) -> RuleTrial:
    """The figures of *choices* over the messages of *log* from *first_id* to *last_id*, in one Spark job.

    A task holds the events of one shard, some hundred thousand. Raises :class:`PipelineInputError`, and what Spark
    raises as :class:`PipelineError`.
    """
    if not choices:
        raise PipelineInputError("no rules to compare: give at least one window and one delay")
    clock = clock or SystemClock()
    began = clock.monotonic()
    wanted = plan_range(store_url, log, first_id, last_id, clock)
    with spark_errors_explained("batch advise"):
        figures = _try(spark, store_url, wanted, choices)
    seconds = round(clock.monotonic() - began, 3)
    inputs = {"log": log, "first_id": wanted.first_id, "last_id": wanted.last_id}
    log_record(
        JobRecord(job="batch-advise", inputs=inputs, rows_in=wanted.count, rows_out=len(choices), seconds=seconds)
    )
    return RuleTrial(log, wanted.first_id, wanted.last_id, figures, seconds)


def _try(
    spark: SparkSession, store_url: str, wanted: LogRange, choices: Sequence[BatchConfig]
) -> tuple[SimulationMetrics, ...]:
    gaps = SourceGaps(max(config.window for config in choices), FARTHEST)
    shares, shards = share_range(spark, store_url, wanted, gaps, whole=False)
    tried = shares.repartitionById(shards, "shard").mapInArrow(
        partial(_try_part, choices=tuple(choices)), spark_schema(TRIED_SCHEMA)
    )
    found: list[list[SimulationMetrics]] = [[] for _ in choices]
    for row in tried.collect():
        found[row["rules"]].append(msgspec.msgpack.decode(bytes(row["figures"]), type=prepared(SimulationMetrics)))
    no_events = EVENT_SCHEMA.empty_table()
    return tuple(total([simulate(no_events, choices[place]), *parts]) for place, parts in enumerate(found))


def _try_part(parts: Iterable[pa.RecordBatch], choices: Sequence[BatchConfig]) -> Iterator[pa.RecordBatch]:
    """The figures of each of *choices* over the events of a shard."""
    shares = [events_of(map(read_share, part.column("share").to_pylist())) for part in parts if len(part)]
    if not shares:
        return
    events = pa.concat_tables(shares).combine_chunks()
    figures = [msgspec.msgpack.encode(simulate(events, config)) for config in choices]
    yield pa.RecordBatch.from_arrays(
        [pa.array(range(len(choices)), pa.int32()), pa.array(figures, pa.binary())], schema=TRIED_SCHEMA
    )
