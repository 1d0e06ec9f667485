"""The job ``statistics``: what each space holds, by a listing, and how it has changed since an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.jobs.changes import ADDED, CHANGED, REMOVED, compare_listings, listed_items
from millstream.pipeline.jobs.inventory import Inventory
from millstream.pipeline.output.job_folder import JobRecord, latest_attempt, log_record, read_record
from millstream.pipeline.spark_errors import spark_errors_explained


class SpaceStatistics(msgspec.Struct, frozen=True):
    """The size of a space of a store: items, bytes, and the bytes of the largest item.

    ``added``, ``removed`` and ``changed`` items (another size or time) are since the earlier listing, None without one;
    ``grown`` are bytes.
    """

    store: str
    space: str
    items: int
    bytes: int
    largest: int
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    grown: int | None = None


def space_statistics(
    spark: SparkSession, now: Inventory, before: Inventory | None = None, *, clock: Clock | None = None
) -> list[SpaceStatistics]:
    """The figures of every space in *now*, or in *before*, sorted; listings that broke off count as far as they go."""
    clock = clock or SystemClock()
    began = clock.monotonic()
    with spark_errors_explained("statistics"):
        rows = _totals(listed_items(spark, now)) if before is None else _compared(compare_listings(spark, now, before))
        found = [SpaceStatistics(**row.asDict()) for row in rows.orderBy("store", "space").collect()]
    inputs = {"now": now.record.inputs, "before": None if before is None else before.record.inputs}
    items, size = sum(space.items for space in found), sum(space.bytes for space in found)
    log_record(
        JobRecord(
            job="statistics",
            inputs=inputs,
            rows_in=items,
            rows_out=len(found),
            bytes=size,
            seconds=round(clock.monotonic() - began, 3),
        )
    )
    return found


def latest_before(jobs: Path, record: JobRecord) -> Inventory | None:
    """The last finished listing under *jobs* of the same stores and spaces whose name is before that of *record*."""
    found: Mapping[str, Inventory] = {
        each.inputs["snapshot"]: Inventory(each, latest_attempt(path.parent) / "data", reused=True)
        for path in sorted(jobs.glob("inventory-*/job.json"))
        if (each := read_record(path)) and {**each.inputs, "snapshot": ""} == {**record.inputs, "snapshot": ""}
    }
    earlier = [name for name in found if name < record.inputs["snapshot"]]
    return found[max(earlier)] if earlier else None


def _totals(listed: DataFrame, *more: Column) -> DataFrame:
    return listed.groupBy("store", "space").agg(
        F.count("size").alias("items"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        F.coalesce(F.max("size"), F.lit(0)).alias("largest"),
        *more,
    )


def _compared(changes: DataFrame) -> DataFrame:
    kinds = [F.count_if(F.col("kind") == kind).alias(kind) for kind in (ADDED, REMOVED, CHANGED)]
    grown = F.sum(F.coalesce("size", F.lit(0)) - F.coalesce("old_size", F.lit(0))).alias("grown")
    return _totals(changes, *kinds, grown)
