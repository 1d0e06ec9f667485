"""Work on items in bins of about equal bytes: a task a bin, and a file or object of results a bin.

A bin is done when its file is there and whole, so that a run that was killed continues with the bins that are left.
What is to be done is written down first, as the rows of a *plan*, and with it into how many bins they go.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.durable import replacing
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.job_log import LOGGER
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, file_rows, parquet_rows
from millstream.pipeline.output.shared_output import require_rows, require_shared, rows_in
from millstream.pipeline.planning.equal_parts import ITEM_COST, assign_largest_first, count_bins, heavy_threshold
from millstream.pipeline.planning.row_groups import GROUP_BYTES
from millstream.pipeline.result_parts import (
    ResultPart,
    StoredTable,
    begin_table,
    commit_table,
    part_name,
    read_table,
    results_url,
)
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.task_rates import task_url

BIN_BYTES = 64 << 20
"""Bytes a bin aims at: what a killed run loses at most, for each core."""

MOST_BINS = 10_000

SUMMARY_SCHEMA = pa.schema(
    [
        pa.field("bin", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
    ]
)
"""One row a bin that a task has done: how many results, of how many bytes, and what their file or object is called."""

_DAMAGED = pa.schema([pa.field("bin", pa.int32(), nullable=False), pa.field("reason", pa.string(), nullable=False)])
_CHECKS_A_CORE = 4
_GROUP = 10_000

_logger = logging.getLogger(LOGGER)

Work = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
"""Processes some items of a bin, in order."""

BinTarget = Path | StoredTable
"""The location of the results of bins."""


class BinnedPlan(msgspec.Struct, frozen=True):
    """A written plan: its record, which says into how many bins it is cut, and the folder of its rows."""

    record: JobRecord
    data: Path

    @property
    def count(self) -> int:
        """The bins."""
        return self.record.counts["bins"]


class Bins(msgspec.Struct, frozen=True):
    """How ``items`` items lie in ``count`` bins: the ``heavy`` ones as placed, the others by the hash of their name."""

    count: int
    key: tuple[str, ...]
    heavy: pa.Table
    items: int


def plan_folder(folder: JobFolder) -> JobFolder:
    """The path of the plan of the job in *folder*."""
    return JobFolder(folder.path, "plan", {})


def committed_plan(folder: JobFolder) -> BinnedPlan | None:
    """The plan of a run that was killed after it was made: its bins must stay what they were."""
    planned = plan_folder(folder)
    record = planned.committed()
    return None if record is None else BinnedPlan(record, planned.data)


def commit_plan(folder: JobFolder, record: JobRecord, *, bin_bytes: int, least: int) -> BinnedPlan:
    """Cut the rows that were written for the job of *folder*, with the column ``size``, and commit them with *record*.

    A bin aims at *bin_bytes*; there are *least* bins, where there are as many items.
    """
    planned = plan_folder(folder)
    rows, size = measure(planned.data)
    counts = {"bins": count_bins(size, rows, target=bin_bytes, least=least, most=MOST_BINS), **record.counts}
    record = msgspec.structs.replace(record, rows_out=rows, bytes=size, counts=counts)
    return BinnedPlan(planned.commit(record), planned.data)


def place_heavy(plan: BinnedPlan, key: Sequence[str]) -> Bins:
    """Cut *plan*, whose items *key* names, into its bins; a function of the plan, so it can be made again."""
    items, total = measure(plan.data)
    threshold = heavy_threshold(total, items, plan.count)
    columns = [*key, "size"]
    parts = (part.filter(pc.greater_equal(part.column("size"), threshold)) for part in parquet_rows(plan.data, columns))
    schema = pa.schema([*((name, pa.string()) for name in key), ("size", pa.int64())])
    heavy = pa.Table.from_batches((part.cast(schema) for part in parts), schema).sort_by(
        [(name, "ascending") for name in key]
    )
    sizes = heavy.column("size").to_numpy().astype(np.int64)
    light = total - int(sizes.sum()) + (items - len(sizes)) * ITEM_COST  # in all bins alike
    placed = assign_largest_first(sizes, np.full(plan.count, light // plan.count, np.int64))
    heavy = heavy.drop_columns(["size"]).append_column("placed", pa.array(placed, pa.int32()))
    return Bins(plan.count, tuple(key), heavy, items)


def measure(data: Path) -> tuple[int, int]:
    """How many items the rows in *data* are, and how many bytes."""
    items = total = 0
    for part in parquet_rows(data, ["size"]):
        items += part.num_rows
        total += pc.sum(part.column("size")).as_py() or 0
    return items, total


def assign_bins(plan: DataFrame, bins: Bins) -> DataFrame:
    """*plan* with the column ``bin``: the heavy items as they were placed, the others by the hash of their name."""
    spread = F.pmod(F.xxhash64(*bins.key), F.lit(bins.count)).cast("int")
    if not bins.heavy.num_rows:
        return plan.withColumn("bin", spread)
    placed = F.broadcast(plan.sparkSession.createDataFrame(bins.heavy))
    joined = plan.join(placed, list(bins.key), "left")
    return joined.select(*plan.columns, F.coalesce("placed", spread).alias("bin"))


def work_off(
    plan: DataFrame, bins: Bins, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], data: Path
) -> int:
    """Let *task*, which ends in :func:`fill_bin`, do the bins of *plan* that have no file in *data* yet.

    Returns the bytes that were worked on.
    """
    done = bins_done(plan.sparkSession, data, bins.count)
    if len(done) == bins.count:
        return sum(row["bytes"] for row in finish_bins(data, []))
    binned = assign_bins(plan, bins)
    left = binned.where(~F.col("bin").isin(done)) if done else binned
    summaries = (
        left.repartitionById(bins.count, "bin")
        .sortWithinPartitions("size", *bins.key)  # nothing waits behind what is larger
        .mapInArrow(task, spark_schema(SUMMARY_SCHEMA))
    )
    return sum(row["bytes"] for row in finish_bins(data, summaries.collect()))


def open_bins(spark: SparkSession, data: Path) -> BinTarget:
    """Where tasks of *spark* write the bins of the result in *data*: this folder, or objects that it names.

    A run that was killed resumes. Raises :class:`PipelineInputError` where executors do not share the
    folder, or cannot reach the storage provider.
    """
    table, url = read_table(data), results_url(spark)
    if table is None and url and not any(data.glob("bin-*")):
        table = begin_table(data, url)
    if table is None:
        require_shared(spark, data)
        return data
    return table.at(task_url(spark, table.url))


def finish_bins(data: Path, finished: Sequence[Row]) -> Sequence[Row]:
    """Take the bins that tasks have *finished* (rows of :data:`SUMMARY_SCHEMA`), beside those done before.

    Raises :class:`PipelineError` where other rows are found than tasks have written.
    """
    table = read_table(data)
    if table is not None:
        stored = table.stored()
        chosen = _attempts(table, stored) | {row["bin"]: row["name"] for row in finished}
        commit_table(data, table, [ResultPart(name, stored.get(name, 0)) for name in chosen.values()])
    places = [str(data / row["name"]) if table is None else table.location(row["name"]) for row in finished]
    there = [place for place in places if table is not None or Path(place).exists()]
    found = dict(zip(there, rows_in(there), strict=True))
    for place, row in zip(places, finished, strict=True):
        require_rows(place, row["rows"], found.get(place, 0))
    return finished


def _attempts(table: StoredTable, stored: Mapping[str, int]) -> dict[int, str]:
    """The bins of which a whole object is among those *stored* of *table*, and one such object: all are alike."""
    sizes = {part.name: part.bytes for part in table.parts}
    whole = (name for name in sorted(stored, reverse=True) if sizes.get(name, stored[name]) == stored[name])
    return {int(name.split("-")[1]): name for name in whole}


def bins_done(spark: SparkSession, data: Path, count: int) -> list[int]:
    """Which of *count* bins have a whole file in *data*; damaged files are logged and removed, to be made again.

    Tasks read the files, so *data* must be a folder that executors share (:func:`open_bins`). Objects are not read:
    each is stored whole or not at all.
    """
    if (table := read_table(data)) is not None:
        return sorted(_attempts(table, table.stored()))
    there = [number for number in range(count) if (data / bin_name(number)).exists()]
    damaged = _damaged_bins(spark, data, there)
    for number, reason in damaged.items():
        _logger.warning("%s; this bin is done again", reason)
        (data / bin_name(number)).unlink()
    return [number for number in there if number not in damaged]


def _damaged_bins(spark: SparkSession, data: Path, numbers: Sequence[int]) -> dict[int, str]:
    """The bins among *numbers* whose files in *data* cannot be read, with the reasons; a few tasks a core read them."""
    if not numbers:
        return {}
    tasks = min(len(numbers), _CHECKS_A_CORE * spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(pa.table({"bin": pa.array(numbers, pa.int32())})).repartition(tasks)
    rows = frame.mapInArrow(partial(check_bins, data=data), spark_schema(_DAMAGED)).collect()
    return {row["bin"]: row["reason"] for row in sorted(rows)}


def check_bins(parts: Iterable[pa.RecordBatch], data: Path) -> Iterator[pa.RecordBatch]:
    """The bins in *parts* whose files in *data* cannot be read, with the reasons. A few rows are in memory."""
    for part in parts:
        damaged = []
        for number in part.column("bin").to_pylist():
            try:
                for _ in file_rows(data / bin_name(number)):
                    pass
            except PipelineError as error:
                damaged.append({"bin": number, "reason": str(error)})
        yield pa.RecordBatch.from_pylist(damaged, _DAMAGED)


def bin_name(number: int) -> str:
    """The name of the file with the results of a bin."""
    return f"bin-{number:05}.parquet"


def fill_bin(
    parts: Iterable[pa.RecordBatch], begin: Callable[[], Work], schema: pa.Schema, target: BinTarget, *, size: str
) -> Iterator[pa.RecordBatch]:
    """Do the work of one bin (its items are *parts*, with the column ``bin``); store its results, whole or not at all.

    *begin* gives what does it; results are of *schema*, whose column *size* counts bytes. The file's name in the folder
    *target* is that of the bin, so a task that runs twice writes one file; of objects each attempt has its own, and
    the driver takes one. Yields the row of :data:`SUMMARY_SCHEMA`; none for no items.
    """
    filled = (part for part in parts if part.num_rows)
    first = next(filled, None)
    if first is None:
        return
    number, work = first.column("bin")[0].as_py(), begin()
    rows = total = 0
    with (
        _bin_file(target, number) as (name, file),
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for found in _groups(work, _slices(first, filled), number, schema):
            writer.write_table(found)
            rows += found.num_rows
            total += pc.sum(found.column(size)).as_py() or 0
    summary = {"bin": number, "rows": rows, "bytes": total, "name": name}
    yield pa.RecordBatch.from_pylist([summary], SUMMARY_SCHEMA)


@contextlib.contextmanager
def _bin_file(target: BinTarget, number: int) -> Iterator[tuple[str, BinaryIO]]:
    """The name and the file of a bin's results, stored in *target* when the block is left."""
    if isinstance(target, Path):
        with replacing(target / bin_name(number)) as file:
            yield bin_name(number), file
        return
    context = TaskContext.get()
    name = part_name(f"bin-{number:05}", context.taskAttemptId() if context else 0)
    with tempfile.TemporaryFile() as temporary:
        yield name, temporary
        target.put(name, temporary)


def _groups(work: Work, parts: Iterable[pa.RecordBatch], number: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """What *work* makes of *parts*, which all are of bin *number*, in tables that are row groups of a good size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in parts:
        _check_bin(part, number)
        for found in work(part):
            waiting.append(found)
            size += found.nbytes
            if size >= GROUP_BYTES:
                yield pa.Table.from_batches(waiting, schema)
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _check_bin(part: pa.RecordBatch, number: int) -> None:
    if pc.any(pc.not_equal(part.column("bin"), number)).as_py():
        raise PipelineError(f"the Spark task for bin {number} received items of another bin: please report this")


def _slices(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All parts, in slices small enough to hold the results of one."""
    for part in itertools.chain([first], rest):
        for offset in range(0, part.num_rows, _GROUP):
            yield part.slice(offset, _GROUP)
