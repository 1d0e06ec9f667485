"""A range of a log batched as history, each shard by one task: what several jobs share."""

from __future__ import annotations

from functools import partial

import msgspec
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.batching import Rulebook
from millstream.core.clock import Clock
from millstream.log import Log, LogInfo, LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.feeding import BATCH_SCHEMA, batch_part
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shards import NAME, register
from millstream.pipeline.source import check_reachable
from millstream.stores.tiers import open_store

SHARD_ROWS = 500_000
"""About how many messages a shard of a large log holds."""

_MOST_SHARDS = 4096


class LogRange(msgspec.Struct, frozen=True):
    """Messages *first_id* to *last_id* of *log*, received between *received_from* and *received_to*."""

    log: str
    first_id: int
    last_id: int
    received_from: int
    received_to: int

    @property
    def count(self) -> int:
        """How many messages that are."""
        return self.last_id - self.first_id + 1


def plan_range(store_url: str, log: str, first_id: int | None, last_id: int | None, clock: Clock) -> LogRange:
    """The messages of *log* from *first_id* to *last_id* (None: what it has). Raises :class:`PipelineInputError`."""
    with open_store(store_url, clock=clock) as store:
        opened = store.log(LogSpec(log), create=False)
        info = opened.info()
        last_id = info.last_id if last_id is None else min(last_id, info.last_id)
        begin = info.first_id if first_id is None else first_id
        if begin < info.first_id:
            raise PipelineInputError(f"log {log!r} was trimmed and begins at id {info.first_id}: begin there or later")
        if last_id < begin:
            what = f"up to {last_id}" if first_id is None else f"from {begin} to {last_id}"
            raise PipelineInputError(f"log {log!r} has no messages {what}: append some first")
        return LogRange(log, begin, last_id, *_receive_times(opened, info, begin, last_id))


def batch_range(
    spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook, *, flush: bool, whole: bool
) -> DataFrame:
    """The messages of *wanted* as rows of ``BATCH_SCHEMA``, in no order; only with *whole* with lines and roots.

    There are several times as many shards as cores, so that the cores take them as they become free, and as many that
    one holds some hundred thousand messages. Raises :class:`PipelineInputError` where executors cannot open the store.
    """
    shares, shards = share_range(spark, store_url, wanted, whole=whole)
    batch = partial(batch_part, rules=rules, bound=wanted.received_to, flush=flush, whole=whole)
    return (
        shares.repartitionById(shards, "shard")
        .sortWithinPartitions("shard", "received_from", "first_id")
        .mapInArrow(batch, spark_schema(BATCH_SCHEMA))
    )


def share_range(spark: SparkSession, store_url: str, wanted: LogRange, *, whole: bool) -> tuple[DataFrame, int]:
    """The shares of *wanted* (some columns of ``SHARD_SCHEMA``), and the number of shards."""
    check_reachable(spark, store_url)
    register(spark)
    shards = max(4 * spark.sparkContext.defaultParallelism, min(_MOST_SHARDS, wanted.count // SHARD_ROWS))
    reader = spark.read.format(NAME).option("store", store_url).option("log", wanted.log)
    reader = reader.option("from", str(wanted.first_id)).option("to", str(wanted.last_id))
    reader = reader.option("shards", str(shards)).option("whole", str(whole).lower())
    return reader.load().select("shard", "received_from", "first_id", "share"), shards


def _receive_times(log: Log, info: LogInfo, first_id: int, last_id: int) -> tuple[int, int]:
    """The first and the last receive time of the range: a function of it alone, whatever came after it."""
    known = info.min_received_at is not None and info.max_received_at is not None
    if known and (first_id, last_id) == (info.first_id, info.last_id):
        assert info.min_received_at is not None
        assert info.max_received_at is not None
        return info.min_received_at, info.max_received_at
    batches = log.read(first_id, last_id, ["received_at"], gaps="none")
    found = (pc.min_max(batch.arrow.column("received_at")).as_py() for batch in batches)
    spans = [(span["min"], span["max"]) for span in found]
    return min(low for low, _ in spans), max(high for _, high in spans)
