"""The job ``batch``: the history of a log as event-time batches, ready to be anchored.

Messages are brought together by source and sorted by the time they were received, so that each task feeds the same
:class:`~millstream.batching.Batcher` that runs in process, and holds no more than the batches that are still open
(promise P5; reference batching §8). The output is Parquet in the order of start, source and batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)
from sqlalchemy.engine import make_url

from millstream.anchoring.records import BatchHeader, EncodedBatch
from millstream.batching import BatchConfig, Reject
from millstream.core.clock import Clock, SystemClock
from millstream.log import Log, LogInfo, LogSpec, open_store
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.feeding import BATCH_SCHEMA, batch_part
from millstream.pipeline.jobs.folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.source import SPARK_SCHEMA, read_log

_NAMES = BATCH_SCHEMA.names
_ORDER = ("start", "source", "batch", "ids")


class BatchInputs(msgspec.Struct, frozen=True):
    """What the result of a batch job depends on.

    ``received_from`` and ``received_to`` are the first and the last receive time in the log when the job was planned;
    ``flush`` closes what is still open at the end of the range.
    """

    store: str
    log: str
    first_id: int
    last_id: int
    received_from: int
    received_to: int
    config: BatchConfig
    flush: bool


class BatchJob(msgspec.Struct, frozen=True):
    """A finished batch job: its record, the folder of its rows, and whether it had been done before."""

    record: JobRecord
    data: Path
    reused: bool

    def batches(self) -> Iterator[EncodedBatch]:
        """The batches by start, source and id, a few at a time in memory."""
        return map(_encoded, self._rows("batch", _NAMES))

    def rejects(self) -> Iterator[Reject]:
        """The messages that are in no batch, by the time they were received, with the reason."""
        for row in self._rows("reason", ["ids", "reason"]):
            yield Reject(row["ids"][0], row["reason"])

    def _rows(self, present: str, columns: list[str]) -> Iterator[dict[str, Any]]:
        for part in parquet_rows(self.data, columns, rows=1024):
            yield from part.filter(part.column(present).is_valid()).to_pylist()


def run_batch(
    spark: SparkSession,
    jobs: Path,
    store_url: str,
    log: str,
    config: BatchConfig,
    *,
    last_id: int | None = None,
    flush: bool = True,
    clock: Clock | None = None,
) -> BatchJob:
    """Batch the messages of *log* up to *last_id* (None: the end as of now) into a folder under *jobs*.

    A job that was finished before with the same inputs is not run again; one that was killed is cleaned and run. With
    *flush* the end of the range closes every batch. Raises :class:`PipelineError` where the figures do not add up,
    :class:`JobBusyError`, :class:`PipelineInputError`, and the errors of the log.
    """
    clock = clock or SystemClock()
    inputs = _plan(store_url, log, config, last_id, flush=flush, clock=clock)
    folder = JobFolder(jobs, "batch", {**msgspec.to_builtins(inputs), "store": _public(store_url)})
    with folder.held():
        if record := folder.committed():
            return BatchJob(record, folder.data, reused=True)
        folder.clean()
        began = clock.monotonic()
        messages = read_log(spark, store_url, log, first_id=inputs.first_id, last_id=inputs.last_id)
        batches = batch_messages(messages, config, inputs.received_to, flush=flush)
        parts = spark.sparkContext.defaultParallelism
        in_order(batches, inputs.received_from, inputs.received_to, parts).write.parquet(str(folder.data))
        record = _count(folder, inputs)
        seconds = round(clock.monotonic() - began, 3)
        return BatchJob(folder.commit(msgspec.structs.replace(record, seconds=seconds)), folder.data, reused=False)


def batch_messages(messages: DataFrame, config: BatchConfig, bound: int, *, flush: bool = True) -> DataFrame:
    """*messages* (the columns of a log) as rows of :data:`BATCH_SCHEMA`, in no order.

    *bound* is a time after which none of them was received. There are several times as many parts as cores, so that
    a few sources fall into parts of their own and the cores take them as they become free.
    """
    parts = max(16, 4 * messages.sparkSession.sparkContext.defaultParallelism)
    return (
        messages.select(*SPARK_SCHEMA.names)
        .repartition(parts, "source")
        .sortWithinPartitions("source", "received_at", "id")
        .mapInArrow(partial(batch_part, config=config, bound=bound, flush=flush), spark_schema(BATCH_SCHEMA))
        .select(*_NAMES)
    )


def in_order(batches: DataFrame, received_from: int, received_to: int, parts: int) -> DataFrame:
    """*batches* in *parts* parts of equal spans of time, each sorted: one after the other they are in order.

    The spans come from the receive times, near which all batches start; a plain global sort would run the batching
    twice to sample where to cut.
    """
    width = max(1, -(-(received_to - received_from) // parts))
    span = F.floor((F.col("start") - F.lit(received_from)) / F.lit(width))
    part = F.greatest(F.lit(0), F.least(F.lit(parts - 1), span)).cast("int")
    return batches.repartitionById(parts, part).sortWithinPartitions(*_ORDER).select(*_NAMES)


def _plan(
    store_url: str, log: str, config: BatchConfig, last_id: int | None, *, flush: bool, clock: Clock
) -> BatchInputs:
    if config.policy != "reject":
        raise PipelineInputError(f"the job batch rejects late messages; late={config.policy} is for a Batcher alone")
    with open_store(store_url, clock=clock) as store:
        opened = store.log(LogSpec(log), create=False)
        info = opened.info()
        last_id = info.last_id if last_id is None else min(last_id, info.last_id)
        if last_id < info.first_id:
            raise PipelineInputError(f"log {log!r} has no messages up to {last_id}: append some first")
        received_from, received_to = _receive_times(opened, info, last_id)
    return BatchInputs(store_url, log, info.first_id, last_id, received_from, received_to, config, flush)


def _receive_times(log: Log, info: LogInfo, last_id: int) -> tuple[int, int]:
    """The first and the last receive time up to *last_id*: a function of the range, whatever came after it."""
    if last_id == info.last_id and info.min_received_at is not None and info.max_received_at is not None:
        return info.min_received_at, info.max_received_at
    batches = log.read(info.first_id, last_id, ["received_at"], gaps="none")
    found = (pc.min_max(batch.arrow.column("received_at")).as_py() for batch in batches)
    spans = [(span["min"], span["max"]) for span in found]
    return min(low for low, _ in spans), max(high for _, high in spans)


def _count(folder: JobFolder, inputs: BatchInputs) -> JobRecord:
    """The figures of the output, checked: every message is in exactly one batch or was refused (promise P6)."""
    rows_in = inputs.last_id - inputs.first_id + 1
    counts = {"batches": 0, "batched": 0, "rejected": 0}
    size = rows = 0
    for part in parquet_rows(folder.data, ["ids", "lines", "reason"], rows=1024):
        members = pc.sum(pc.list_value_length(part.column("ids"))).as_py() or 0
        refused = part.num_rows - part.column("reason").null_count
        counts["batches"] += part.num_rows - refused
        counts["rejected"] += refused
        counts["batched"] += members - refused
        for reason in pc.value_counts(part.column("reason").drop_null()).to_pylist():
            counts[reason["values"]] = counts.get(reason["values"], 0) + reason["counts"]
        size += pc.sum(pc.binary_length(part.column("lines"))).as_py() or 0
        rows += part.num_rows
    counts["open"] = rows_in - counts["batched"] - counts["rejected"]
    if counts["open"] < 0 or (inputs.flush and counts["open"]):
        raise PipelineError(f"{counts['open']} of {rows_in} messages are in no batch: please report this")
    return JobRecord("batch", folder.inputs, rows_in, rows, size, 0.0, counts)


def _encoded(row: dict[str, Any]) -> EncodedBatch:
    header = BatchHeader(
        batch=row["batch"],
        closed_at=row["closed_at"],
        count=len(row["ids"]),
        cut=row["cut"],
        end=row["end"],
        root=row["root"],
        source=row["source"],
        start=row["start"],
    )
    return EncodedBatch(header, row["lines"], tuple(row["ids"]))


def _public(store_url: str) -> str:
    """*store_url* without its password: job records are read by many."""
    return make_url(store_url).render_as_string(hide_password=True)
