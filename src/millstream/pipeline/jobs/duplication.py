"""The job ``duplication``: what differs between the copies of a space, by both listings and the manifest.

The looping producer asks of every item; here what is the same costs a row in some columns. The plan passes the
mill's change guard like any other, and is carried out by the mill's workers, through the queue and in the order of the
looping producer, or by Spark itself for bulk first copies.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.duplication.differences import EXAMPLES, DuplicationPlan, ItemDifference
from millstream.mill.duplication.planning import GROUP, put_items
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.pipeline.errors import PipelineError, UnlistedSpaceError
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.output.job_folder import (
    JobFolder,
    JobRecord,
    parquet_rows,
    read_inputs,
    read_record,
    unfinished,
)
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
from millstream.pipeline.schema import read_parquet
from millstream.pipeline.task_rates import task_urls
from millstream.pipeline.tasks.copy_comparison import DIFFERENCE_SCHEMA, RECORDED_SCHEMA, compare_copies
from millstream.pipeline.tasks.copy_task import LEFT, copy_part, decode_events
from millstream.queue.protocol import WorkQueue
from millstream.stores.audit import AuditOutbox

_KEY = ("content_id",)
_AUDITED_SCHEMA = pa.schema([pa.field("content_id", pa.string()), pa.field("audited", pa.string())])
_COPY_SCHEMA = _AUDITED_SCHEMA.append(pa.field("size", pa.int64()))
_GROUP_BATCHES = 64
"""Batches of some thousand rows of the manifest that make a row group."""

_ASKED = 1000
"""Items that the outbox is asked about together."""

_DELETION_SCHEMA = pa.schema([pa.field("content_id", pa.string()), pa.field("at", pa.int64())])


class PlannedDuplication(msgspec.Struct, frozen=True):
    """A finished plan: its record, its counts as the mill's own, and the folder of its rows."""

    record: JobRecord
    plan: DuplicationPlan
    data: Path
    folder: Path
    reused: bool

    def names(self, *kinds: ItemDifference) -> Iterator[str]:
        """The items that differ in one of *kinds*, in the order of the files."""
        wanted = pa.array([kind.value for kind in kinds])
        for part in parquet_rows(self.data, ["content_id", "kind"]):
            yield from part.filter(pc.is_in(part.column("kind"), wanted)).column("content_id").to_pylist()


class BulkCopyResult(msgspec.Struct, frozen=True):
    """A finished bulk copy: its record, the first items that failed, with the reasons, and the folder of its rows."""

    record: JobRecord
    failures: tuple[tuple[str, str], ...]
    data: Path

    def left(self) -> Iterator[str]:
        """The items that were left to the workers."""
        for part in parquet_rows(self.data, ["content_id", "summary"]):
            yield from part.filter(pc.equal(part.column("summary"), LEFT)).column("content_id").to_pylist()


def plan_duplication(
    spark: SparkSession,
    jobs: Path,
    run: str,
    stores: Mapping[str, str],
    manifest: Manifest,
    *,
    pair: Pair,
    space: str,
    clock: Clock | None = None,
    outbox: AuditOutbox | None = None,
) -> PlannedDuplication:
    """Compare *space* in the stores of *pair* (ids of *stores*, id → URL) into a folder under *jobs*.

    *run* names the plan; one of that name that was finished is not made again. A deletion at the source that waits in
    *outbox* counts as recorded. Raises :class:`JobBusyError`, and
    :class:`UnlistedSpaceError` where a store could not be listed whole: what is not listed would look deleted.
    """
    clock = clock or SystemClock()
    urls = {store: stores[store] for store in (pair.source, pair.destination)}
    inputs = {"run": run, "source": pair.source, "destination": pair.destination, "space": space, "stores": urls}
    folder = JobFolder(jobs, "duplication", inputs)
    with folder.held():
        if record := folder.committed():
            plan = _plan(folder.data, pair, space, record.counts["copied"])
            return PlannedDuplication(record, plan, folder.data, folder.path, reused=True)
        folder.begin()
        began = clock.monotonic()
        listed = run_inventory(
            spark, folder.path, run, urls, spaces=[space], clock=clock, has_items=manifest.has_items, complete=True
        )
        if unlisted := listed.unlisted():
            first = unlisted[0]
            raise UnlistedSpaceError(f"cannot list {first.store}/{space}, so nothing was planned: {first.error}")
        recorded = folder.path / "manifest.parquet"
        with driver_file(spark, recorded) as file, _waiting_deletions(outbox, pair.source, space) as deletions:
            _write_manifest(file, manifest, pair, space, deletions)
        write_output(compare_copies(spark, listed.data, recorded, pair), folder.data)
        copied = _count_copies(listed.data, pair.destination)
        plan = _plan(folder.data, pair, space, copied)
        counts = {
            "copied": copied, "copies": plan.copies, "changes": plan.changes, "deletes": plan.deletes,
            "same": plan.same, "held": plan.held, "replaced": plan.replaced,
        }  # fmt: skip
        seconds = round(clock.monotonic() - began, 3)
        record = folder.record(
            rows_in=listed.record.rows_out,
            rows_out=plan.tasks + plan.held,
            bytes=plan.bytes,
            seconds=seconds,
            counts=counts,
        )
        return PlannedDuplication(folder.commit(record), plan, folder.data, folder.path, reused=False)


def enqueue(planned: PlannedDuplication, queue: WorkQueue, *, copied: BulkCopyResult | None = None) -> int:
    """Put a task for each item that differs on *queue*, all deletes before all copies; returns how many.

    Of the items that are missing at the destination and that Spark has *copied*, only those are put on it that it left.
    Tasks say nothing but the item's name, so a driver that dies half-way may begin again.
    """
    plan, count = planned.plan, 0
    later = (ItemDifference.CHANGE,) if copied else (ItemDifference.COPY, ItemDifference.CHANGE)
    left = copied.left() if copied else iter(())
    for names in (planned.names(ItemDifference.DELETE), itertools.chain(planned.names(*later), left)):
        while group := list(itertools.islice(names, GROUP)):
            put_items(plan.pair, plan.space, group, queue)
            count += len(group)
    return count


def copy_missing(
    spark: SparkSession,
    planned: PlannedDuplication,
    stores: Mapping[str, str],
    manifest: Manifest,
    *,
    bin_bytes: int = BIN_BYTES,
    clock: Clock | None = None,
    audit_lookup: AuditLookup | None = None,
) -> BulkCopyResult:
    """Copy the items that are missing at the destination, in bins of about *bin_bytes*, and record them in *manifest*.

    Only first copies: tasks that replace or delete a copy go on the queue. So do items that are at the destination by
    now with other bytes, and those whose source is not what *audit_lookup* knows: workers decide about them. An item
    that fails does not stop the others.
    An interrupted run continues with the remaining bins; items of these that it had copied are detected. Raises
    :class:`JobBusyError`, and :class:`PipelineError` where the figures do not add up.
    """
    clock = clock or SystemClock()
    pair, space = planned.plan.pair, planned.plan.space
    urls = {store: stores[store] for store in (pair.source, pair.destination)}
    source = JobFolder(planned.folder.parent, planned.record.job, planned.record.inputs)
    inputs = {"pair": [pair.source, pair.destination], "space": space}
    folder = JobFolder(planned.folder, "copies", inputs, sources=[source])

    def copy_items(plan: BinnedPlan) -> JobRecord:
        began = clock.monotonic()
        bins = place_heavy(plan, _KEY)
        copy = partial(
            copy_part, stores=task_urls(spark, urls), pair=pair, space=space, data=open_bins(spark, folder.data),
            filled=frozenset(store for store in urls if manifest.has_items(store)),
        )  # fmt: skip
        work_off(read_parquet(spark, plan.data, _COPY_SCHEMA), bins, copy, folder.data)
        record = _record_copies(folder, bins, manifest)
        return folder.commit(msgspec.structs.replace(record, seconds=round(clock.monotonic() - began, 3)))

    with folder.held():
        record = folder.committed()
        if record is None:
            begun = committed_plan(folder)
            if begun is not None and not folder.is_current():
                if read_record(folder.path / "job.json") is None:
                    copy_items(begun)  # the plan was made again since: what was copied by the earlier one is recorded
                begun = None
            record = copy_items(begun or _plan_copies(spark, folder, planned, bin_bytes, audit_lookup))
        return BulkCopyResult(record, tuple(itertools.islice(_failures(folder.data), EXAMPLES)), folder.data)


def copies_cut_short(jobs: Path, pair: Pair, space: str) -> str | None:
    """The last run under *jobs* whose copies of *space* were begun and not finished; None where there is none."""
    wanted = {"source": pair.source, "destination": pair.destination, "space": space}
    found = []
    for folder in jobs.glob("duplication-*"):
        if any(unfinished(folder, "copies")):
            found += [str(inputs["run"]) for inputs in read_inputs(folder) if inputs.items() >= wanted.items()]
    return max(found, default=None)


def _plan_copies(
    spark: SparkSession,
    folder: JobFolder,
    planned: PlannedDuplication,
    bin_bytes: int,
    audit_lookup: AuditLookup | None,
) -> BinnedPlan:
    """Write down what is to be copied, with the checksum that *audit_lookup* knows."""
    folder.begin()
    folder.data.mkdir()
    planned_copies = plan_folder(folder)
    planned_copies.begin()
    rows = read_parquet(spark, planned.data, DIFFERENCE_SCHEMA).where(F.col("kind") == ItemDifference.COPY.value)
    source, space = planned.plan.pair.source, planned.plan.space
    sums = folder.path / "audited.parquet"
    with driver_file(spark, sums) as file, pq.ParquetWriter(file, _AUDITED_SCHEMA) as writer:
        for run in audit_lookup.scan_sums(source, space) if audit_lookup is not None else ():
            writer.write_batch(pa.record_batch([run.keys, *run.columns], schema=_AUDITED_SCHEMA))
    rows = rows.join(read_parquet(spark, sums, _AUDITED_SCHEMA), "content_id", "left")
    write_output(rows.select(*_COPY_SCHEMA.names), planned_copies.data)
    record = JobRecord(job="plan", inputs={}, rows_in=planned.plan.tasks + planned.plan.held, rows_out=0, seconds=0.0)
    return commit_plan(folder, record, bin_bytes=bin_bytes, least=2 * spark.sparkContext.defaultParallelism)


def _record_copies(folder: JobFolder, bins: Bins, manifest: Manifest) -> JobRecord:
    rows = failed = left = size = 0
    for part in parquet_rows(folder.data, ["summary", "events", "bytes", "error"], rows=1000):
        manifest.writer.record(event for data in part.column("events").to_pylist() for event in decode_events(data))
        rows += part.num_rows
        failed += part.num_rows - part.column("error").null_count
        left += pc.sum(pc.equal(part.column("summary"), LEFT)).as_py() or 0
        size += pc.sum(part.column("bytes")).as_py() or 0
    if rows != bins.items:
        raise PipelineError(
            f"the job in {folder.path} planned {bins.items:,} copies, but tried {rows:,}: please report this"
        )
    counts = {"bins": bins.count, "failed": failed, "left": left}
    return folder.record(rows_in=rows, rows_out=rows - failed - left, bytes=size, counts=counts)


def _failures(data: Path) -> Iterator[tuple[str, str]]:
    for part in parquet_rows(data, ["content_id", "error"]):
        for row in part.filter(part.column("error").is_valid()).to_pylist():
            yield row["content_id"], row["error"]


def _write_manifest(file: BinaryIO, manifest: Manifest, pair: Pair, space: str, deletions: _Deletions) -> None:
    """The records of both ends, each in the order of the ids, with one row group in memory.

    *deletions* are taken for recorded at the source; those of unknown items are row groups of their own.
    """
    with pq.ParquetWriter(file, RECORDED_SCHEMA) as writer:
        for store in (pair.source, pair.destination):
            batches = manifest.batches(store, space, columns=RECORDED_SCHEMA.names)
            while group := list(itertools.islice(batches, _GROUP_BATCHES)):
                rows = pa.Table.from_batches(group, RECORDED_SCHEMA).combine_chunks()
                if store == pair.source:
                    names = rows["content_id"].combine_chunks()
                    for some in deletions.upto(names[-1].as_py()):
                        rows = _deleted(rows, some)
                        _write_deletions(writer, some.filter(pc.invert(pc.is_in(some["content_id"], names))), store)
                writer.write_table(rows)
            if store == pair.source:
                for some in deletions.upto(None):
                    _write_deletions(writer, some, store)


class _Deletions:
    """Deletions in the order of the ids (:data:`_DELETION_SCHEMA`), read once, some at a time."""

    def __init__(self, parts: Iterable[pa.RecordBatch]) -> None:
        self._parts = iter(parts)
        self._ahead: pa.RecordBatch | None = next(self._parts, None)

    def upto(self, last: str | None) -> Iterator[pa.RecordBatch]:
        """Those that were not given yet, up to the item *last* (None: all)."""
        while self._ahead is not None:
            names = self._ahead.column("content_id").to_pylist()
            count = len(names) if last is None else bisect_right(names, last)
            found, rest = self._ahead.slice(0, count), self._ahead.slice(count)
            self._ahead = rest if len(rest) else next(self._parts, None)
            if len(found):
                yield found
            if len(rest):
                return


@contextlib.contextmanager
def _waiting_deletions(outbox: AuditOutbox | None, source: str, space: str) -> Iterator[_Deletions]:
    """When items of *space* were deleted, by what waits in *outbox* now: it is put into a temporary file first.

    An event that is processed while the manifest is read leaves the outbox, and its row may have been read before.
    """
    with tempfile.TemporaryFile() as file:
        with pa.ipc.new_stream(file, _DELETION_SCHEMA) as writer:
            for names in outbox.pending_in_order(source, space, _ASKED) if outbox is not None else ():
                found = outbox.deletions(source, space, names) if outbox is not None else {}
                times = [found[name] for name in sorted(found)]
                writer.write_batch(pa.record_batch([sorted(found), times], schema=_DELETION_SCHEMA))
        file.seek(0)
        with pa.ipc.open_stream(file) as parts:
            yield _Deletions(part for part in parts if len(part))


def _deleted(rows: pa.Table, deletions: pa.RecordBatch) -> pa.Table:
    """*rows* with those deleted that *deletions* name.

    A deletion before the last change in the row says nothing of what was added later.
    """
    names, times, deleted = (rows[name].combine_chunks() for name in ("content_id", "modified", "deleted"))
    at = deletions["at"].take(pc.index_in(names, deletions["content_id"]))
    later = pc.and_not(pc.fill_null(pc.greater_equal(at, times), False), deleted)
    for name, column in (("deleted", pc.or_(deleted, later)), ("modified", pc.if_else(later, at, times))):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), column)
    return rows


def _write_deletions(writer: pq.ParquetWriter, deletions: pa.RecordBatch, store: str) -> None:
    """Write *deletions* as tombstones of *store*, a row group."""
    if count := len(deletions):
        columns = [
            [store] * count,
            deletions["content_id"],
            pa.nulls(count, pa.string()),
            deletions["at"],
            [True] * count,
        ]
        writer.write_table(pa.table(columns, schema=RECORDED_SCHEMA))


def _count_copies(listed: Path, destination: str) -> int:
    parts = parquet_rows(listed, ["store", "error"], rows=1 << 17)
    return sum(
        pc.sum(pc.and_(pc.equal(part.column("store"), destination), part.column("error").is_null())).as_py() or 0
        for part in parts
    )


def _plan(data: Path, pair: Pair, space: str, copied: int) -> DuplicationPlan:
    """The rows of a plan, counted. Items that the destination lists and the plan does not contain are the same."""
    counts = dict.fromkeys(ItemDifference, 0)
    size = replaced = 0
    examples: list[str] = []
    for part in parquet_rows(data, DIFFERENCE_SCHEMA.names):
        for row in pc.value_counts(part.column("kind")).to_pylist():
            counts[ItemDifference(row["values"])] += row["counts"]
        size += pc.sum(part.column("size")).as_py() or 0
        replaced += pc.sum(part.column("replaces")).as_py() or 0
        held = part.filter(pc.equal(part.column("kind"), ItemDifference.HELD.value)).column("content_id")
        examples += held.slice(0, EXAMPLES - len(examples)).to_pylist()
    differing = counts[ItemDifference.CHANGE] + counts[ItemDifference.DELETE] + counts[ItemDifference.HELD]
    return DuplicationPlan(
        pair,
        space,
        copies=counts[ItemDifference.COPY],
        changes=counts[ItemDifference.CHANGE],
        deletes=counts[ItemDifference.DELETE],
        same=copied - differing,
        held=counts[ItemDifference.HELD],
        held_examples=tuple(examples),
        bytes=size,
        replaced=replaced,
        copied=copied,
    )
