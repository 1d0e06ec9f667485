"""A range of a log batched as history, each shard by one task: what several jobs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.batching import Rulebook
from millstream.pipeline.output.shared_output import write_made, write_output
from millstream.pipeline.planning.hot_sources import SourceGaps, find_cuts, gaps_of
from millstream.pipeline.planning.log_range import LogRange
from millstream.pipeline.reachable import check_reachable
from millstream.pipeline.result_parts import ParquetLayout, TaskWork
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_source import ShardReadOptions, read_shares
from millstream.pipeline.tasks.output_order import (
    PARTED_SCHEMA,
    PartBounds,
    by_part,
    find_bounds,
    order_part,
    with_part,
)
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA, batch_part, count_rows

SHARD_ROWS = 500_000
"""About how many messages a shard of a large log holds."""

_MOST_SHARDS = 4096

_GROUP_BYTES = 16 << 20
"""Row groups of batches are this large at most, before compression: a reader of the output holds one of them, and the
batches of a cut, which are about as much, lie in one or two."""

_DISTINCT = ("batch", "start", "end", "closed_at", "root", "lines", "ids.list.element")
"""Columns of which hardly a value comes twice: Parquet would fill a dictionary with them, and then throw it away."""

_LAYOUT = ParquetLayout(_GROUP_BYTES, _DISTINCT)


def batch_range(
    spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook, *, flush: bool, whole: bool
) -> DataFrame:
    """The messages of *wanted* as rows of ``BATCH_SCHEMA``, in no order; only with *whole* with lines and roots.

    There are several times as many shards as cores, so that the cores take them as they become free, and as many that
    one holds some hundred thousand messages; a source that has more is parted at gaps. Raises
    :class:`PipelineInputError` where executors cannot open the store.
    """
    batch = partial(batch_part, rules=rules, bound=wanted.received_to, flush=flush, whole=whole)
    shares = _shares_in_turn(spark, store_url, wanted, rules, whole=whole)
    return shares.mapInArrow(batch, spark_schema(BATCH_SCHEMA))


def write_range(
    spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook, folder: Path, *, flush: bool
) -> Counter[str]:
    """Write what :func:`batch_range` gives with lines and roots to *folder*, in the order of start, source and batch.

    As Parquet, as :func:`write_batches` does; returns what tasks counted (:func:`count_rows`), and ``rows``.
    """
    bounds = find_bounds(spark, store_url, wanted, rules)
    batch = partial(_parted, rules=rules, bound=wanted.received_to, flush=flush, bounds=bounds)
    shares = _shares_in_turn(spark, store_url, wanted, rules, whole=True)
    parts = by_part(shares.mapInArrow(batch, spark_schema(PARTED_SCHEMA)), bounds.parts)
    return write_made(parts, folder, _LAYOUT, TaskWork(order_part, count_rows))


def share_range(
    spark: SparkSession, store_url: str, wanted: LogRange, gaps: SourceGaps | None, *, whole: bool
) -> tuple[DataFrame, int]:
    """The shares of *wanted* (some columns of ``SHARD_SCHEMA``), and the number of shards.

    All messages of a source go to one shard, unless it has a great many and *gaps* between them.
    """
    check_reachable(spark, store_url)
    shards = max(4 * spark.sparkContext.defaultParallelism, min(_MOST_SHARDS, wanted.count // SHARD_ROWS))
    options = {"store": store_url, "log": wanted.log, "from": str(wanted.first_id), "to": str(wanted.last_id)}
    options |= {"shards": str(shards), "whole": str(whole).lower()}
    if gaps is not None and (cuts := find_cuts(spark, store_url, wanted, shards, gaps)):
        options["cuts"] = msgspec.json.encode(cuts).decode()
    shares = read_shares(spark, ShardReadOptions(options))
    return shares.select("shard", "received_from", "first_id", "share"), shards


def write_batches(batches: DataFrame, folder: Path) -> None:
    """Write *batches*, rows of ``BATCH_SCHEMA``, as Parquet into *folder*, which must not exist, or to a URL."""
    write_output(batches, folder, _LAYOUT)


def _shares_in_turn(
    spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook, *, whole: bool
) -> DataFrame:
    """The shares of each shard in one task, by the time at which they were received."""
    shares, shards = share_range(spark, store_url, wanted, gaps_of(rules, wanted.received_to), whole=whole)
    return shares.repartitionById(shards, "shard").sortWithinPartitions("shard", "received_from", "first_id")


def _parted(
    parts: Iterable[pa.RecordBatch], rules: Rulebook, bound: int, *, flush: bool, bounds: PartBounds
) -> Iterator[pa.RecordBatch]:
    return with_part(batch_part(parts, rules, bound, flush=flush, whole=True), bounds)
