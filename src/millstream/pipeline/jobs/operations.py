"""The job ``operations``: operations on identifiers out of a log, checked side by side, taken by a registry once each.

Checking an operation (its form, its hashes, its signature) needs nothing but itself, and is the work of the tasks. The
driver hands what passed to the registry in the order of the log; the registry's own writer cuts and anchors it. The
outcome of each message goes to the log ``LOG.outcomes``, one commit a trigger, which also records the progress of the
job.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millstream.anchoring.registry import (
    OperationIntake,
    ProtocolVersion,
    ProtocolVersions,
    SubmissionResult,
    TooManyOpenError,
)
from millstream.anchoring.registry.operation_intake import INTERNAL, MOST_FAULTS, check_request
from millstream.anchoring.registry.states import Submission
from millstream.anchoring.sidetree import RequestError
from millstream.core.canonical import canonical_json
from millstream.core.clock import Clock, SystemClock
from millstream.core.message import Message
from millstream.core.sql_failures import describe_sql_failure
from millstream.log import LogSpec, Writer
from millstream.log.errors import WHY_SHORTER
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.output.checkpoint import discard_checkpoint
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.output.streaming_queries import await_query, start_query
from millstream.pipeline.reachable import check_reachable
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.source import follow_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.stores.tiers import open_log_store

CHECKED_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("id", "suffix", "type")),
        pa.field("request", pa.binary()),
        *(pa.field(name, pa.string()) for name in ("version", "code", "error")),
    ]
)
"""One row a message of the log, by its id (``number``): the fields of a submission, or the refusal's code and text."""

PRODUCER = "operations"
"""The producer in the log of outcomes whose sequences are the ids of the operations' log."""

GROUP = 5_000
"""The most operations that the registry takes in one transaction."""

MOST_SKIPPED = 1_000
"""The most operations that fail unexpectedly and are skipped in one run: each is refused for good, and takes several
transactions."""

_FIELDS = Submission.__struct_fields__

_log = logging.getLogger(__name__)


class OperationsPlan(msgspec.Struct, frozen=True):
    """The plan of the job: submit the operations in *log* of the store at *store_url*, a JSON object a message.

    *checkpoint* is Spark's folder, which each run makes anew; a trigger takes at most *per_trigger* messages.
    """

    store_url: str
    log: str
    checkpoint: Path
    per_trigger: int = 20_000

    @property
    def outcomes(self) -> str:
        """The log of the operations' results, in the same store."""
        return f"{self.log}.outcomes"


class OperationsRun(msgspec.Struct, frozen=True):
    """The result of a run: the last processed id, and the numbers of accepted and refused operations."""

    position: int
    taken: int
    refused: int
    seconds: float


def run_operations(
    spark: SparkSession,
    plan: OperationsPlan,
    acceptance: OperationIntake,
    versions: ProtocolVersions,
    *,
    available_now: bool = False,
    skip_failed: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> OperationsRun:
    """Pass the operations of *plan* to *acceptance* from the last position, until *stopped* returns True.

    With *available_now* it ends once it has taken what was there when it began. With *skip_failed* an operation that
    fails unexpectedly is reported as refused, with the code ``internal``; otherwise it ends the job. A driver may die
    anywhere: an operation is known by its hash, and an outcome by its message, so that both are there once. Raises
    :class:`PipelineInputError` where the outcomes speak of more than the log holds,
    :class:`~millstream.log.WriterBusyError` where another process is at it, and what Spark raises as
    :class:`PipelineError`.
    """
    clock = clock or SystemClock()
    check_reachable(spark, plan.store_url)
    with open_log_store(plan.store_url, clock=clock, create=False) as store, contextlib.ExitStack() as held:
        source = store.log(LogSpec(plan.log), create=False)
        writer = held.enter_context(store.log(LogSpec(plan.outcomes)).writer(PRODUCER))
        if writer.sequence > source.last_id:
            raise PipelineInputError(
                f"log {plan.outcomes!r} was written from {plan.log!r} up to message {writer.sequence}, "
                f"but {plan.log!r} now ends at {source.last_id}: {WHY_SHORTER}. Choose a new log of outcomes"
            )
        began = clock.monotonic()
        sink = OperationSink(acceptance, writer, clock, plan.log, skip_failed=skip_failed, stopped=stopped)
        with spark_errors_explained("operations"):
            first_id = max(writer.sequence + 1, source.first_id)
            # Each message has an outcome, so these say where to continue. Spark's checkpoint is ahead of them where the
            # database lost its last commits in a failover.
            discard_checkpoint(plan.checkpoint)
            query = _start(spark, plan, versions, sink, first_id=first_id, drain=available_now)
            try:
                await_query(query, stopped, clock)
            except PySparkException:
                if not sink.was_stopped:
                    raise
        done = OperationsRun(writer.sequence, sink.taken, sink.refused, round(clock.monotonic() - began, 3))
    counts = {"taken": done.taken, "refused": done.refused, "position": done.position}
    rows = done.taken + done.refused
    log_record(
        JobRecord(
            job="operations",
            inputs={"log": plan.log},
            rows_in=rows,
            rows_out=rows,
            bytes=sink.bytes,
            seconds=done.seconds,
            counts=counts,
        )
    )
    return done


def check_part(parts: Iterable[pa.RecordBatch], versions: ProtocolVersions) -> Iterator[pa.RecordBatch]:
    """The messages in *parts* (``id`` and ``body``) as rows of :data:`CHECKED_SCHEMA`, under the version of the day."""
    clock = SystemClock()
    for part in parts:
        version = versions.at(clock.now())
        numbered = zip(part.column("id").to_pylist(), part.column("body").to_pylist(), strict=True)
        rows = [{"number": number, **_checked(body, version)} for number, body in numbered]
        yield pa.RecordBatch.from_pylist(rows, CHECKED_SCHEMA)


def _checked(body: bytes, version: ProtocolVersion) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(check_request(body, version))
    except RequestError as error:
        return {"code": error.code, "error": str(error)}
    except Exception as error:  # the driver says which message it is
        _log.exception("an operation cannot be checked")
        return {"code": INTERNAL, "error": _internal_error(error)}


class OperationSink:
    """Hands what tasks have checked, messages of *log*, to *acceptance*, and writes the results with *writer*.

    An operation that fails unexpectedly is a :class:`PipelineError` that names its message, or with *skip_failed* one
    of those that were refused, :data:`MOST_SKIPPED` at most. If the database fails, or as many as :data:`MOST_FAULTS`
    fail and none between them is accepted, the cause is not one operation, and it is an error in either case. While too
    many operations are open it waits, until *stopped*: then it is an error, and ``was_stopped`` is true.
    """

    def __init__(
        self,
        acceptance: OperationIntake,
        writer: Writer,
        clock: Clock,
        log: str,
        *,
        skip_failed: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._acceptance, self._writer, self._clock = acceptance, writer, clock
        self._log, self._skip_failed, self._stopped = log, skip_failed, stopped
        self.was_stopped = False
        self.taken = self.refused = self.bytes = 0
        self._failed_since_accepted = self._skipped = 0

    def __call__(self, frame: Any, _number: int) -> None:
        """Take one micro-batch of Spark; what was written down before is passed over."""
        found = frame.toArrow().sort_by("number")
        rows = found.filter(pc.greater(found["number"], self._writer.sequence)).to_pylist()
        if not rows:
            return
        messages: list[Message] = []
        try:
            for start in range(0, len(rows), GROUP):
                messages.extend(self._take(rows[start : start + GROUP]))
        except _SkippedTooManyError:  # the next run begins there
            self._append(rows, messages)
            raise
        self._append(rows, messages)

    def _append(self, rows: Sequence[dict[str, Any]], messages: Sequence[Message]) -> None:
        """Write *messages*, the outcomes of the first of *rows*."""
        if messages:
            self._writer.append(messages, sequence=rows[len(messages) - 1]["number"])

    def _take(self, rows: Sequence[dict[str, Any]]) -> Iterator[Message]:
        """The outcomes of *rows*, as messages."""
        passed = [Submission(**{name: row[name] for name in _FIELDS}) for row in rows if row["code"] is None]
        results = self._submit(passed)
        undone = itertools.takewhile(lambda result: result.status is None, reversed(results))
        has_untried = sum(result.fault is not None for result in undone) >= MOST_FAULTS
        outcomes = iter(results)
        for row in rows:
            outcome = next(outcomes) if row["code"] is None else SubmissionResult(code=row["code"], error=row["error"])
            fault = outcome.fault
            if fault is not None:
                outcome = SubmissionResult(code=INTERNAL, error=_internal_error(fault))
            if outcome.code == INTERNAL:
                self._failed_since_accepted += 1
                is_general = self._failed_since_accepted >= MOST_FAULTS or _is_of_database(fault)
                if is_general or not self._skip_failed:
                    is_general = is_general or has_untried
                    raise self._failure(row["number"], outcome.error or "", is_general=is_general)
                if self._skipped >= MOST_SKIPPED:
                    raise _SkippedTooManyError(
                        f"{MOST_SKIPPED:,} operations of log {self._log!r} failed unexpectedly and were skipped; "
                        f"message {row['number']} fails, too: {outcome.error}. Correct the cause, or run the same "
                        "command again, which skips more"
                    )
                self._skipped += 1
            elif outcome.status is not None:
                self._failed_since_accepted = 0
            self.taken += outcome.status is not None
            self.refused += outcome.status is None
            self.bytes += len(row["request"] or b"")
            yield outcome_message(row["number"], outcome)

    def _failure(self, number: int, reason: str, *, is_general: bool) -> PipelineError:
        """The error of the message *number*, which is not refused: no later run would try it again.

        *is_general* says that other operations fail for the same cause, or would.
        """
        text = f"the operation in message {number} of log {self._log!r} cannot be decided: {reason}"
        if is_general:
            return PipelineError(
                f"{text}; others fail, too: correct the cause, and run the same command again, which continues there"
            )
        return PipelineError(
            f"{text}; run the same command again, or with --skip-failed, which reports the operation as refused in log "
            f"'{self._log}.outcomes' (code internal) and continues"
        )

    def _submit(self, submissions: Sequence[Submission]) -> Sequence[SubmissionResult]:
        while submissions:
            try:
                return self._acceptance.submit_checked(submissions)
            except TooManyOpenError as error:  # what is under way comes to an end, and then there is room
                if self._stopped():
                    self.was_stopped = True  # these operations have no outcome yet: the next run takes them
                    raise PipelineError(f"the job was stopped while it waited: {error}") from error
                self._clock.sleep(error.retry_after)
        return []


class _SkippedTooManyError(PipelineError):
    """As many operations were skipped as a run may skip."""


def _is_of_database(fault: Exception | None) -> bool:
    """Whether *fault* is one of the database, as a server that only reads after a failover, and not of a value."""
    return isinstance(fault, sa.exc.DBAPIError) and not isinstance(fault, sa.exc.DataError | sa.exc.IntegrityError)


def _internal_error(fault: Exception) -> str:
    if isinstance(fault, sa.exc.DBAPIError) and _is_of_database(fault):
        return f"the database {describe_sql_failure(fault)}"
    reason = " ".join(str(fault).split())
    return f"internal error ({type(fault).__name__}: {reason}); please report it with the traceback in the log"


def outcome_message(number: int, outcome: SubmissionResult) -> Message:
    """The result of message *number*, as a message: its key is the operation's id, its source the DID's suffix."""
    status = outcome.status
    if status is None:
        body = {"code": outcome.code, "error": outcome.error, "message": number}
        return Message(canonical_json(body), source="refused")
    return Message(canonical_json({"message": number, "operation": status.id}), status.id, status.suffix)


def _start(
    spark: SparkSession,
    plan: OperationsPlan,
    versions: ProtocolVersions,
    sink: OperationSink,
    *,
    first_id: int,
    drain: bool,
) -> StreamingQuery:
    rows = follow_log(
        spark, plan.store_url, plan.log, first_id=first_id, columns=["id", "body"], per_trigger=plan.per_trigger
    )
    checked = rows.mapInArrow(partial(check_part, versions=versions), spark_schema(CHECKED_SCHEMA))
    return start_query(checked, sink, plan.checkpoint, available_now=drain)
