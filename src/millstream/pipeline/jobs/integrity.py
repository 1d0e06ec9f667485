"""The job ``integrity``: read every copy, and write down what was seen.

inventory ⟗ manifest → plan of what is due → bins of equal bytes → one file of facts a bin. A bin is done when its file
is there, so a run that was killed continues with the bins that are left.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.mill.manifest import MANIFEST_SCHEMA
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs.inventory import Inventory, Unlisted, run_inventory
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.output.shared_output import driver_file, write_output
from millstream.pipeline.planning.binned_work import (
    BIN_BYTES,
    BinnedPlan,
    Bins,
    commit_plan,
    committed_plan,
    open_bins,
    place_heavy,
    plan_folder,
    work_off,
)
from millstream.pipeline.planning.due_items import (
    EVERYTHING,
    DeferredItems,
    DueRule,
    read_deferred,
    urgency,
    within_budget,
    write_deferred,
)
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
from millstream.pipeline.result_parts import discard_tables
from millstream.pipeline.schema import read_parquet
from millstream.pipeline.task_rates import task_urls
from millstream.pipeline.tasks.sweep_task import PLAN_SCHEMA, sweep_part

_KEY = ("store", "space", "content_id")
_SIGNS = ("listed_size", "recorded_size", "listed_modified", "verified_at", "outcome")
_CANDIDATE_SCHEMA = PLAN_SCHEMA.append(pa.field("urgency", pa.int64(), nullable=False))

ManifestRows: TypeAlias = pa.Table | Iterable[pa.RecordBatch]
"""The manifest (:data:`millstream.mill.manifest.MANIFEST_SCHEMA`), as a table or as it is read."""


class Sweep(msgspec.Struct, frozen=True):
    """A finished sweep: its record, the folder of its facts, and whether it had been done before.

    ``unlisted`` are the listings that broke off: what was not recorded there has not been looked at. ``left`` says what
    was not read because it was not due, or was over the budget.
    """

    record: JobRecord
    facts: Path
    reused: bool
    unlisted: tuple[Unlisted, ...] = ()
    left: tuple[DeferredItems, ...] = ()


class SweepInputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan of a sweep: its name, the URL of each store, the spaces (None: all), and the due items."""

    sweep: str
    stores: Mapping[str, str]
    spaces: tuple[str, ...] | None
    due: DueRule = EVERYTHING


def run_integrity(
    spark: SparkSession,
    jobs: Path,
    sweep: str,
    stores: Mapping[str, str],
    manifest: ManifestRows,
    *,
    spaces: Sequence[str] | None = None,
    due: DueRule = EVERYTHING,
    bin_bytes: int = BIN_BYTES,
    clock: Clock | None = None,
) -> Sweep:
    """Read what is due of what is listed in *stores* (id → URL) or recorded in *manifest*, into facts under *jobs*.

    *sweep* names the run: one of that name that was finished is not made again, one that was killed continues, with the
    inventory and the manifest it began with. *manifest* is read only where the run has no plan yet; *spaces* limits
    both sides; all of it is compared, and the items that are *due* when the run begins are read. Items that cannot be
    read, and stores that cannot be listed, are facts, not failures. Raises :class:`JobBusyError`, and
    :class:`PipelineError` where the figures do not add up.
    """
    clock = clock or SystemClock()
    inputs = SweepInputs(sweep, dict(stores), None if spaces is None else tuple(sorted(spaces)), _kept(due))
    folder = JobFolder(jobs, "integrity", msgspec.to_builtins(inputs))
    with folder.held():
        if record := folder.committed():
            unlisted = _inventory(spark, folder, inputs, clock).unlisted()
            return Sweep(record, folder.data, reused=True, unlisted=unlisted, left=_left_out(folder, due))
        began = clock.monotonic()
        plan = committed_plan(folder) or _plan(spark, folder, inputs, manifest, bin_bytes, clock=clock)
        bins = place_heavy(plan, _KEY)
        check = partial(
            sweep_part, stores=task_urls(spark, inputs.stores), facts=open_bins(spark, folder.data),
            filled=_filled_stores(plan),
        )  # fmt: skip
        read = work_off(read_parquet(spark, plan.data, PLAN_SCHEMA), bins, check, folder.data)
        record = _count(folder, bins, read, round(clock.monotonic() - began, 3))
        unlisted = _inventory(spark, folder, inputs, clock).unlisted()
        left = _left_out(folder, due)
        return Sweep(folder.commit(record), folder.data, reused=False, unlisted=unlisted, left=left)


def join_sides(inventory: DataFrame, manifest: DataFrame) -> DataFrame:
    """Everything that is listed or should be there: the full outer join of both, with the columns of
    :data:`PLAN_SCHEMA` and those that say what is due.

    A tombstone of something that is not listed is as it should be, and no item.
    """
    whole = ~F.col("deleted") & F.col("sha256").isNotNull()
    copies = F.count_if(whole).over(Window.partitionBy("space", "content_id", "sha256"))
    recorded = manifest.select(
        *_KEY,
        *("sha256", "deleted", "verified_at", "outcome"),
        F.col("size").alias("recorded_size"),
        (whole & (copies > 1)).alias("elsewhere"),
    )
    listed = inventory.where("error is null").select(
        *_KEY,
        F.col("size").alias("listed_size"),
        F.col("modified").alias("listed_modified"),
        F.lit(True).alias("listed"),
    )
    joined = listed.join(recorded, list(_KEY), "full_outer").where("listed or not deleted")
    return joined.select(
        *_KEY,
        F.col("sha256").alias("manifest"),
        *(F.coalesce(name, F.lit(False)).alias(name) for name in ("deleted", "elsewhere", "listed")),
        F.coalesce("listed_size", "recorded_size", F.lit(0)).alias("size"),
        *_SIGNS,
    )


def _inventory(spark: SparkSession, folder: JobFolder, inputs: SweepInputs, clock: Clock) -> Inventory:
    """The listing that the sweep began with; it is made once."""
    return run_inventory(spark, folder.path, inputs.sweep, inputs.stores, spaces=inputs.spaces, clock=clock)


def _plan(
    spark: SparkSession, folder: JobFolder, inputs: SweepInputs, manifest: ManifestRows, bin_bytes: int, *, clock: Clock
) -> BinnedPlan:
    folder.begin()
    folder.data.mkdir()
    planned = plan_folder(folder)
    planned.begin()
    began = clock.monotonic()
    inventory = _inventory(spark, folder, inputs, clock)
    recorded = folder.path / "manifest.parquet"
    known = _write_manifest(spark, recorded, manifest, inputs)
    joined = join_sides(
        read_parquet(spark, inventory.data, INVENTORY_SCHEMA), read_parquet(spark, recorded, MANIFEST_SCHEMA)
    )
    _write_due(joined, inputs.due, planned, clock.now())
    counts = {"listed": inventory.record.rows_out, "recorded": known}
    record = JobRecord(
        job="plan",
        inputs={},
        rows_in=sum(counts.values()),
        rows_out=0,
        seconds=round(clock.monotonic() - began, 3),
        counts=counts,
    )
    return commit_plan(folder, record, bin_bytes=bin_bytes, least=2 * spark.sparkContext.defaultParallelism)


def _write_due(joined: DataFrame, due: DueRule, planned: JobFolder, now: int) -> None:
    """Write the items that are due at *now* as the plan, and what is left out beside it."""
    if due == EVERYTHING:
        write_output(joined.select(*PLAN_SCHEMA.names), planned.data)
        return
    candidates = planned.attempt / "candidates"
    write_output(joined.select(*PLAN_SCHEMA.names, urgency(due, now).alias("urgency")), candidates)
    items = read_parquet(joined.sparkSession, candidates, _CANDIDATE_SCHEMA)
    chosen = within_budget(items, due)
    write_output(items.where(chosen).select(*PLAN_SCHEMA.names), planned.data)
    write_deferred(_left(planned), items, chosen)
    discard_tables(candidates)
    shutil.rmtree(candidates)


def _kept(due: DueRule) -> DueRule:
    """*due*, so that a rule without conditions leaves no trace in the inputs."""
    return EVERYTHING if due == EVERYTHING else due


def _left_out(folder: JobFolder, due: DueRule) -> tuple[DeferredItems, ...]:
    """The *due* items that the sweep in *folder* leaves out."""
    return () if due == EVERYTHING else read_deferred(_left(plan_folder(folder)))


def _filled_stores(plan: BinnedPlan) -> frozenset[str]:
    """The stores that should have items of *plan*."""
    found = set[str]()
    for part in parquet_rows(plan.data, ["store", "manifest", "deleted"]):
        recorded = pc.and_(part.column("manifest").is_valid(), pc.invert(part.column("deleted")))
        found.update(part.filter(recorded).column("store").unique().to_pylist())
    return frozenset(found)


def _left(planned: JobFolder) -> Path:
    """The member of a plan with the items that it leaves out."""
    return planned.attempt / "left.parquet"


def _write_manifest(spark: SparkSession, path: Path, manifest: ManifestRows, inputs: SweepInputs) -> int:
    """Write the rows of *manifest* that the sweep is about, batch by batch; returns how many rows it has."""
    rows = 0
    with driver_file(spark, path) as file, pq.ParquetWriter(file, MANIFEST_SCHEMA) as writer:
        for batch in manifest.to_batches() if isinstance(manifest, pa.Table) else manifest:
            rows += batch.num_rows
            writer.write_batch(_narrow(batch, inputs))
    return rows


def _narrow(batch: pa.RecordBatch, inputs: SweepInputs) -> pa.RecordBatch:
    """The rows of *batch* that the sweep is about."""
    kept = pc.is_in(batch.column("store"), pa.array(sorted(inputs.stores), pa.string()))
    if inputs.spaces is not None:
        kept = pc.and_(kept, pc.is_in(batch.column("space"), pa.array(inputs.spaces, pa.string())))
    return batch.filter(kept)


def _count(folder: JobFolder, bins: Bins, read: int, seconds: float) -> JobRecord:
    facts = size = 0
    for part in parquet_rows(folder.data, ["read"]):
        facts += part.num_rows
        size += pc.sum(part.column("read")).as_py() or 0
    if facts != bins.items:
        raise PipelineError(
            f"the job in {folder.path} planned to check {bins.items:,} items, but checked {facts:,}: please report this"
        )
    counts = {"bins": bins.count, "hashed_now": read}
    return folder.record(rows_in=bins.items, rows_out=facts, bytes=size, seconds=seconds, counts=counts)
