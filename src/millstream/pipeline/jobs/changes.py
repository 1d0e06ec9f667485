"""The job ``changes``: what was added, removed or changed between two listings of the same stores and spaces.

A reader of the changes does work in proportion to them, and not to the stored items. A space of which a listing broke
off is left out: what was not listed would look removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.jobs.inventory import Inventory, Unlisted
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.output.shared_output import write_output
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
from millstream.pipeline.schema import read_parquet

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"

CHANGE_COLUMNS = ("store", "space", "content_id", "kind", "size", "modified", "old_size", "old_modified")
"""One row an item that is not the same in both listings; sizes in bytes, times in microseconds since the epoch, null
where the item is not in that listing."""

_KEY = ["store", "space", "content_id"]


class Changes(msgspec.Struct, frozen=True):
    """A finished comparison: its record, which counts by kind, the folder of its rows, and whether it was there."""

    record: JobRecord
    data: Path
    reused: bool


def find_changes(
    spark: SparkSession, jobs: Path, now: Inventory, before: Inventory, *, clock: Clock | None = None
) -> Changes:
    """Compare the listing *now* with the one *before* into a folder under *jobs*; once for two listings.

    Raises :class:`JobBusyError`.
    """
    clock = clock or SystemClock()
    sources = [JobFolder(jobs, one.record.job, one.record.inputs) for one in (now, before)]
    inputs = {"now": now.record.inputs, "before": before.record.inputs}
    folder = JobFolder(jobs, "changes", inputs, sources=sources)
    with folder.held():
        if record := folder.committed():
            return Changes(record, folder.data, reused=True)
        folder.begin()
        began = clock.monotonic()
        unlisted = {*now.unlisted(), *before.unlisted()}
        compared = compare_listings(spark, now, before).where(~_concerned(unlisted))
        write_output(compared.where(F.col("kind") != SAME), folder.data)
        record = _count(folder, now.record.rows_out + before.record.rows_out, len(unlisted))
        seconds = round(clock.monotonic() - began, 3)
        return Changes(folder.commit(msgspec.structs.replace(record, seconds=seconds)), folder.data, reused=False)


def compare_listings(spark: SparkSession, now: Inventory, before: Inventory) -> DataFrame:
    """One row an item that either listing has, with :data:`CHANGE_COLUMNS`; what is the same is there as well."""
    earlier = listed_items(spark, before).select(
        *_KEY, F.col("size").alias("old_size"), F.col("modified").alias("old_modified")
    )
    same = F.col("size").eqNullSafe(F.col("old_size")) & F.col("modified").eqNullSafe(F.col("old_modified"))
    kind = (
        F.when(F.col("old_size").isNull(), ADDED)
        .when(F.col("size").isNull(), REMOVED)
        .otherwise(F.when(same, SAME).otherwise(CHANGED))
    )
    joined = listed_items(spark, now).join(earlier, _KEY, "full_outer")
    return joined.withColumn("kind", kind).select(*CHANGE_COLUMNS)


def listed_items(spark: SparkSession, inventory: Inventory) -> DataFrame:
    """The items of *inventory*, without the rows that say that a listing broke off."""
    rows = read_parquet(spark, inventory.data, INVENTORY_SCHEMA).where("error is null")
    return rows.select(*_KEY, "size", "modified")


def _concerned(unlisted: Iterable[Unlisted]) -> Column:
    """Whether an item lies in a space, or a store, of which a listing broke off."""
    found = F.lit(False)
    for each in unlisted:
        place = F.col("store") == each.store
        found |= (place & (F.col("space") == each.space)) if each.space else place
    return found


def _count(folder: JobFolder, rows_in: int, unlisted: int) -> JobRecord:
    counts = {ADDED: 0, REMOVED: 0, CHANGED: 0}
    size = 0
    for part in parquet_rows(folder.data, ["kind", "size"]):
        for kind in pc.value_counts(part.column("kind")).to_pylist():
            counts[kind["values"]] += kind["counts"]
        size += pc.sum(part.column("size")).as_py() or 0
    rows = sum(counts.values())
    return folder.record(rows_in=rows_in, rows_out=rows, bytes=size, counts={**counts, "unlisted": unlisted})
