"""The job ``batch``: the history of a log as event-time batches, ready to be anchored.

Tasks that read the log deal its messages out to shards by their source (``pipeline/shard_shares.py``); tasks that batch
feed the shares of a shard, by the time they were received, to the batcher, and hold no more than a step of them and
the batches that are still open (promise P5). The output is Parquet in the order of start, source and batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from millstream.anchoring.batch_records import EncodedBatch
from millstream.batching import BatchConfig, Reject, Rulebook
from millstream.batching.batch_log_origin import BatchLogOrigin, write_origin
from millstream.batching.event import Reason
from millstream.batching.output_end import NOTHING, read_end
from millstream.batching.service_state import ServiceState, write_state
from millstream.batching.snapshot_split import join_snapshots
from millstream.core.clock import Clock, SystemClock
from millstream.core.documents import Document
from millstream.log import Log
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.history import write_range
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, file_rows, parquet_rows
from millstream.pipeline.planning.cut_plans import ENCODED, NamedBatches, encoded_batches
from millstream.pipeline.planning.log_range import plan_range
from millstream.pipeline.result_parts import locations
from millstream.pipeline.tasks.replaced_batches import ReplacedBatches, replaced_ids, write_replaced


class BatchInputs(msgspec.Struct, frozen=True):
    """The inputs of a batch job.

    ``received_from`` and ``received_to`` are the first and the last receive time in the log when the job was planned;
    ``flush`` closes what is still open at the end of the range.
    """

    store: str
    log: str
    first_id: int
    last_id: int
    received_from: int
    received_to: int
    rules: Rulebook
    flush: bool

    @property
    def plain(self) -> dict[str, Any]:
        """The inputs as JSON data, without the password of the store: job records are read by many."""
        public = make_url(self.store).render_as_string(hide_password=True)
        return {**msgspec.to_builtins(self), "store": public, "rules": self.rules.plain}


class BatchJob(msgspec.Struct, frozen=True):
    """A finished batch job: its record, the folder of its rows, and whether it had been done before.

    Batches that end after ``final_to`` may still be amended by messages after the range; None where none may.
    """

    record: JobRecord
    data: Path
    reused: bool
    final_to: int | None = None

    def batches(self, *, final: bool = True) -> Iterator[EncodedBatch]:
        """The batches by start, source and id, a few at a time in memory.

        Those that an amendment replaced or may still replace are left out, so that no message is ever in two of them,
        unless *final* is False.
        """
        standing = _StandingBatches(self, final=final)
        for part in parquet_rows(self.data, list(ENCODED), rows=1024):
            yield from encoded_batches(part.filter(standing.mask(part)))
        standing.check()

    def named(self) -> Iterator[NamedBatches]:
        """The locations of the batches of :meth:`batches`, in the same order."""
        standing = _StandingBatches(self, final=True)
        for path in locations(self.data):
            first = 0
            for part in file_rows(path, ["batch", "start", "end", "kind", "root"]):
                mask = standing.mask(part)
                found = part.filter(mask)
                rows = first + np.flatnonzero(mask)
                yield NamedBatches(path, rows, found.column("batch").to_pylist(), found.column("root").to_pylist())
                first += len(part)
        standing.check()

    def rejects(self) -> Iterator[Reject]:
        """The messages that are in no batch, by the time they were received, with the reason."""
        for row in self._rows("reason", ["ids", "reason"]):
            yield Reject(row["ids"][0], row["reason"])

    def snapshot(self) -> bytes:
        """The open records at the end of the range, as the snapshot of one batcher from which another host continues.

        Raises :class:`PipelineError` where the job closed everything.
        """
        found = [row["snapshot"] for row in self._rows("snapshot", ["snapshot"])]
        if not found:
            raise PipelineError(
                f"the job in {self.data} closed every batch at the end of its range, so no open batches can be handed "
                "over: run the job without --flush (flush=False)"
            )
        return join_snapshots(found)

    def _rows(self, present: str, columns: list[str]) -> Iterator[dict[str, Any]]:
        for part in parquet_rows(self.data, columns, rows=1024):
            yield from part.filter(part.column(present).is_valid()).to_pylist()


class _StandingBatches:
    """Which rows of the output of *job* are batches, and with *final* such as nothing replaces.

    It is for one reading of the output, from its beginning.
    """

    def __init__(self, job: BatchJob, *, final: bool) -> None:
        self._data, self._final_to = job.data, job.final_to if final else None
        self._replaced = job.record.counts.get("replaced", 0) if final else 0
        self._ids = replaced_ids(job.data, self._replaced)
        self._left_out = 0

    def mask(self, part: pa.RecordBatch) -> Any:
        """Which of the rows of *part* stand."""
        mask = part.column("batch").is_valid()
        if self._replaced and len(gone := self._ids(part.filter(mask))):
            replaced = pc.is_in(part.column("batch"), gone)  # null is in none
            self._left_out += pc.sum(replaced).as_py()
            mask = pc.and_(mask, pc.invert(replaced))
        if self._final_to is not None:
            settled = pc.or_(
                pc.not_equal(part.column("kind"), "batch"), pc.less_equal(part.column("end"), self._final_to)
            )
            mask = pc.and_(mask, pc.fill_null(settled, False))
        return mask

    def check(self) -> None:
        """Raise :class:`PipelineError` at the end of the output where a replaced batch was not left out."""
        if self._left_out != self._replaced:
            raise PipelineError(
                f"the job in {self._data} counted {self._replaced:,} replaced batches, but {self._left_out:,} were "
                "found in its output: please report this"
            )


def run_batch(
    spark: SparkSession,
    jobs: Path,
    store_url: str,
    log: str,
    rules: BatchConfig | Rulebook,
    *,
    last_id: int | None = None,
    flush: bool = True,
    clock: Clock | None = None,
) -> BatchJob:
    """Batch the messages of *log* up to *last_id* (None: the end as of now) by *rules* into a folder under *jobs*.

    A job that was finished before with the same inputs is not run again; one that was killed is cleaned and run. With
    *flush* the end of the range closes every batch. Raises :class:`PipelineError` where the figures do not add up,
    :class:`JobBusyError`, :class:`PipelineInputError`, and the errors of the log.
    """
    clock = clock or SystemClock()
    if isinstance(rules, BatchConfig):
        rules = Rulebook(rules)
    wanted = plan_range(store_url, log, None, last_id, clock)
    span = wanted.first_id, wanted.last_id, wanted.received_from, wanted.received_to
    inputs = BatchInputs(store_url, log, *span, rules, flush)
    folder = JobFolder(jobs, "batch", inputs.plain)
    final_to = None if flush or not rules.amends else wanted.received_to - rules.patience
    with folder.held():
        if record := folder.committed():
            return BatchJob(record, folder.data, True, final_to)
        folder.begin()
        began = clock.monotonic()
        figures = write_range(spark, store_url, wanted, rules, folder.data, flush=flush)
        replaced = write_replaced(spark, folder.data) if rules.amends else ReplacedBatches()
        record = _record(folder, inputs, figures, replaced)
        seconds = round(clock.monotonic() - began, 3)
        return BatchJob(folder.commit(msgspec.structs.replace(record, seconds=seconds)), folder.data, False, final_to)


def hand_over(job: BatchJob, output: Log, state: Document) -> None:
    """Hand the open records at the end of *job* over to the service or stream that batches its log into *output*.

    They go on after the job's last message, from *state*; a note with *output* says where that was, for those
    who compare. Raises :class:`PipelineInputError` where they have begun before, and :class:`PipelineError` where the
    job closed everything.
    """
    if (end := read_end(output)) != NOTHING or state.read() is not None:
        why = "already has batches" if end != NOTHING else f"already has the batching state in {state}"
        raise PipelineInputError(
            f"log {output.name!r} {why}, so open batches cannot be handed over to it: name a new log"
        )
    snapshot, inputs = job.snapshot(), job.record.inputs
    write_origin(output, BatchLogOrigin(inputs["log"], inputs["last_id"], inputs["received_to"]))
    write_state(state, ServiceState(inputs["log"], output.name, inputs["last_id"], snapshot, end))


def _record(folder: JobFolder, inputs: BatchInputs, figures: Mapping[str, int], replaced: ReplacedBatches) -> JobRecord:
    """The record of the job by the *figures* that its tasks counted, checked: every message is in
    one standing batch or was refused (promise P6)."""
    found = {name: figures.get(name, 0) for name in ("batches", "batched", "rejected", "bytes", *get_args(Reason))}
    rows_in, size = inputs.last_id - inputs.first_id + 1, found.pop("bytes")
    found["batched"] -= replaced.messages
    counts = {name: found.pop(name) for name in ("batches", "batched", "rejected")}
    counts |= {"replaced": replaced.batches} if replaced.batches else {}
    counts |= {reason: count for reason, count in found.items() if count}
    counts["open"] = rows_in - counts["batched"] - counts["rejected"]
    if counts["open"] < 0 or (inputs.flush and counts["open"]):
        raise PipelineError(
            f"the job in {folder.path} counted {rows_in - counts['open']:,} messages in its batches and rejects, but "
            f"read {rows_in:,}: please report this"
        )
    rows = counts["batches"] + counts["rejected"]
    return folder.record(rows_in=rows_in, rows_out=rows, bytes=size, counts=counts)
