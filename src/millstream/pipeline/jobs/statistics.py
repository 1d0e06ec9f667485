"""The job ``statistics``: what each space holds, by a listing, and how it has changed since an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.pipeline.failures import explained
from millstream.pipeline.jobs.folder import JobRecord
from millstream.pipeline.jobs.inventory import INVENTORY_SCHEMA, Inventory
from millstream.pipeline.schema import read_parquet

_KEY = ["store", "space", "content_id"]


class SpaceFigures(msgspec.Struct, frozen=True):
    """What a space of a store holds: items, bytes, and the bytes of the largest item.

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


def space_figures(spark: SparkSession, now: Inventory, before: Inventory | None = None) -> list[SpaceFigures]:
    """The figures of every space in *now*, or in *before*, sorted; listings that broke off count as far as they go."""
    with explained("statistics"):
        listed = _items(spark, now)
        if before is None:
            rows = listed.groupBy("store", "space").agg(*_totals("size")).orderBy("store", "space").collect()
            return [SpaceFigures(**row.asDict()) for row in rows]
        return _compared(listed, _items(spark, before))


def latest_before(jobs: Path, record: JobRecord) -> Inventory | None:
    """The last finished listing under *jobs* of the same stores and spaces whose name is before that of *record*."""
    found: Mapping[str, Inventory] = {
        each.inputs["snapshot"]: Inventory(each, path.parent / "data", reused=True)
        for path in sorted(jobs.glob("inventory-*/job.json"))
        for each in [msgspec.json.decode(path.read_bytes(), type=JobRecord)]
        if {**each.inputs, "snapshot": ""} == {**record.inputs, "snapshot": ""}
    }
    earlier = [name for name in found if name < record.inputs["snapshot"]]
    return found[max(earlier)] if earlier else None


def _items(spark: SparkSession, inventory: Inventory) -> DataFrame:
    return (
        read_parquet(spark, inventory.data, INVENTORY_SCHEMA).where("error is null").select(*_KEY, "size", "modified")
    )


def _totals(size: str) -> Sequence[object]:
    return [
        F.count(size).alias("items"),
        F.coalesce(F.sum(size), F.lit(0)).alias("bytes"),
        F.coalesce(F.max(size), F.lit(0)).alias("largest"),
    ]


def _compared(now: DataFrame, before: DataFrame) -> list[SpaceFigures]:
    earlier = before.select(*_KEY, F.col("size").alias("old_size"), F.col("modified").alias("old_modified"))
    joined = now.join(earlier, _KEY, "full_outer")
    same = F.col("size").eqNullSafe(F.col("old_size")) & F.col("modified").eqNullSafe(F.col("old_modified"))
    both = F.col("size").isNotNull() & F.col("old_size").isNotNull()
    rows = (
        joined.groupBy("store", "space")
        .agg(
            *_totals("size"),
            F.count_if(F.col("old_size").isNull()).alias("added"),
            F.count_if(F.col("size").isNull()).alias("removed"),
            F.count_if(both & ~same).alias("changed"),
            F.sum(F.coalesce("size", F.lit(0)) - F.coalesce("old_size", F.lit(0))).alias("grown"),
        )
        .orderBy("store", "space")
    )
    return [SpaceFigures(**row.asDict()) for row in rows.collect()]
