"""The job ``verify-batches``: batch a range of a log again, and compare with what a batch service or stream gave.

Names of batches are functions of the records and the rules (promise P5), so whatever differs was lost, doubled, or made
by other rules or of other records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.batching import Rulebook
from millstream.batching.batch_log_origin import BatchLogOrigin, read_origin
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.history import batch_range
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.planning.batch_log_range import find_batch_log_range, last_received
from millstream.pipeline.planning.log_range import LogRange, plan_range
from millstream.pipeline.source import read_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.stores.tiers import open_log_store

_BODY = "batch string, source string, start long, end long, closed_at long, events array<long>, amends array<string>"
_REJECT = "rejected long, reason string"
_TIMELESS = ("late", "future")
"""Reasons that are a matter of one record alone."""

_NO_DIFFERENCE = ("same", "unjudged", "history")
"""Kinds of a batch that is where it belongs, or of which that cannot be told."""


class BatchMismatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference, of a batch or of a refused message (``rejected`` and ``reason``).

    ``kind`` is ``missing`` (it should have come out), ``extra`` (it should not have), ``different`` (it has copies of
    its records, or another closing time) or ``doubled`` (it came out ``times`` times). An ``unreadable`` one is neither
    a batch nor a refused message: the ``message`` of that id in the log of batches.
    """

    kind: str
    batch: str = ""
    source: str = ""
    start: int | None = None
    times: int = 1
    rejected: int | None = None
    reason: str = ""
    message: int | None = None


class BatchVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the comparison: numbers of equal batches and rejects, and of differences by kind.

    ``unjudged`` are batches at the beginning of a range that does not begin with the log: which messages came before
    decides on them. ``of_history`` are batches that the job over history gave before it handed over to *output*: they
    are in that job's files. ``findings`` are the first of the differences by source and start.
    """

    log: str
    output: str
    first_id: int
    last_id: int
    messages: int
    agreed: int
    rejects_agreed: int
    unjudged: int
    of_history: int
    differences: dict[str, int]
    findings: tuple[BatchMismatch, ...]
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether everything that was judged agrees."""
        return not self.differences


def verify_batches(
    spark: SparkSession,
    store_url: str,
    log: str,
    output: str,
    rules: Rulebook,
    *,
    first_id: int | None = None,
    last_id: int | None = None,
    limit: int = 100,
    clock: Clock | None = None,
) -> BatchVerification:
    """Compare the batches of *log* from *first_id* to *last_id* under *rules* with those in the log *output*.

    Without *first_id* from the first message; without *last_id* up to the last message that *output* knows of. Where a
    job over history handed over to *output*, what that job closed and refused must not be there. At most *limit*
    differences are told one by one. Raises :class:`PipelineInputError`, and what Spark raises as
    :class:`PipelineError`.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    known, origin = _standing(store_url, log, output, first_id, clock)
    wanted = plan_range(store_url, log, first_id, known if last_id is None else min(last_id, known), clock)
    if origin is not None and wanted.last_id <= origin.position:
        raise PipelineInputError(
            f"log {output!r} has the batches of {log!r} only after message {origin.position}, because a job over "
            "history handed over there: choose a last message after that one (--last); the files of that job have the "
            "earlier batches"
        )
    whole = wanted.first_id == 1 and wanted.last_id == known
    part = None if whole else _part(store_url, output, wanted, known, rules, clock=clock)
    past = None
    if origin is not None and wanted.first_id <= origin.position:
        past = plan_range(store_url, log, wanted.first_id, origin.position, clock)
    batched = partial(batch_range, spark, store_url, rules=rules, flush=False, whole=False)
    with spark_errors_explained("verify-batches"):
        given = _emitted(spark, store_url, output, part)
        try:
            rows = batched(wanted).persist()
            told = None if past is None else batched(past)
            batches = _compare_batches(rows, given, wanted, part, origin).persist()
            rejects = _compare_rejects(rows, given, wanted, part, told).persist()
            compared = _compared(batches, rejects, given, limit)
        finally:
            spark.catalog.clearCache()
    found = compared.verified(output, wanted, round(clock.monotonic() - began, 3))
    log_record(_record(found))
    return found


class _Compared(NamedTuple):
    """How many batches and refused messages there are of each kind, how many messages are neither, and what to tell."""

    batches: Mapping[str, int]
    rejects: Mapping[str, int]
    unreadable: int
    findings: Sequence[BatchMismatch]

    def verified(self, output: str, wanted: LogRange, seconds: float) -> BatchVerification:
        """What is said of the messages *wanted* and the log of batches *output*."""
        differences = {kind: count for kind, count in self.batches.items() if kind not in _NO_DIFFERENCE}
        differences |= {f"{kind}_rejects": count for kind, count in self.rejects.items() if kind != "same"}
        differences |= {"unreadable": self.unreadable} if self.unreadable else {}
        return BatchVerification(
            log=wanted.log,
            output=output,
            first_id=wanted.first_id,
            last_id=wanted.last_id,
            messages=wanted.count,
            agreed=self.batches.get("same", 0),
            rejects_agreed=self.rejects.get("same", 0),
            unjudged=self.batches.get("unjudged", 0),
            of_history=self.batches.get("history", 0),
            differences=differences,
            findings=tuple(self.findings),
            seconds=seconds,
        )


def _record(found: BatchVerification) -> JobRecord:
    inputs = {"log": found.log, "output": found.output, "first_id": found.first_id, "last_id": found.last_id}
    agreed = found.agreed + found.rejects_agreed
    counts = {"agreed": found.agreed, "unjudged": found.unjudged, "of_history": found.of_history, **found.differences}
    return JobRecord(
        job="verify-batches",
        inputs=inputs,
        rows_in=found.messages,
        rows_out=agreed,
        seconds=found.seconds,
        counts=counts,
    )


class _JudgedRange(msgspec.Struct, frozen=True):
    """The rules for comparing a part of a log.

    Only messages *first_id* to *last_id* of the log of batches are read. Of a range that does not begin with the log,
    batches are judged after a gap wider than ``window`` behind the event time ``certain``: no message from before
    bears on these. Copies are judged up to the id ``copies_to``: those after it may be refused after the range only.
    """

    first_id: int
    last_id: int
    window: int
    certain: int | None
    copies_to: int


def _standing(
    store_url: str, log: str, output: str, first_id: int | None, clock: Clock
) -> tuple[int, BatchLogOrigin | None]:
    """The last message of *log* that *output* knows of, and where it began if that was not with the log."""
    with open_log_store(store_url, clock=clock, create=False) as store:
        batches = store.log(LogSpec(output), create=False)
        known, origin = batches.sequence("batching"), read_origin(batches)
    if not known:
        raise PipelineInputError(
            f"log {output!r} contains no batches: name the output log of a batch service or stream"
        )
    if origin is not None and origin.log != log:
        raise PipelineInputError(
            f"log {output!r} contains the batches of {origin.log!r}, not of {log!r}: name log {origin.log!r} instead"
        )
    if first_id is not None and first_id > known:
        raise PipelineInputError(
            f"log {output!r} has the batches of {log!r} only up to message {known}: choose an earlier first message "
            "(--first)"
        )
    return known, origin


def _part(store_url: str, output: str, wanted: LogRange, known: int, rules: Rulebook, *, clock: Clock) -> _JudgedRange:
    window = max(config.window for config in rules.configs)
    lead = max(config.lead for config in rules.configs)
    with open_log_store(store_url, clock=clock, create=False) as store:
        first_id, last_id = find_batch_log_range(store.log(LogSpec(output), create=False), wanted)
        copies_to = wanted.last_id
        if known > wanted.last_id:
            source = store.log(LogSpec(wanted.log), create=False)
            copies_to = last_received(source, wanted, wanted.received_to - lead - rules.patience)
    certain = wanted.received_from + lead + window if wanted.first_id > 1 else None
    return _JudgedRange(first_id, last_id, window, certain, copies_to)


def _emitted(spark: SparkSession, store_url: str, output: str, part: _JudgedRange | None) -> DataFrame:
    """The content of the log of batches: ids, and the parsed bodies as a batch ``b`` or a refused message ``r``."""
    text = F.col("body").cast("string")
    first_id, last_id = (None, None) if part is None else (part.first_id, max(part.last_id, part.first_id))
    frame = read_log(spark, store_url, output, first_id=first_id, last_id=last_id, columns=["id", "body"])
    return frame.select("id", F.from_json(text, _BODY).alias("b"), F.from_json(text, _REJECT).alias("r"))


def _compare_batches(
    rows: DataFrame, given: DataFrame, wanted: LogRange, part: _JudgedRange | None, origin: BatchLogOrigin | None
) -> DataFrame:
    """One row a batch: its kind (one of ``_NO_DIFFERENCE`` or that of a difference), source, start and times."""
    no_amended = F.array().cast("array<string>")
    members = F.xxhash64("ids", "amends").alias("members")
    expected = rows.where("batch is not null").select("batch", "source", "start", "end", "closed_at", members)
    emitted = (
        given.where("b.batch is not null and b.closed_at is not null")
        .where(F.col("b.closed_at") <= wanted.received_to)
        .withColumn("amends", F.coalesce("b.amends", no_amended))
        .select("b.batch", "b.source", "b.start", "b.closed_at", F.xxhash64("b.events", "amends").alias("members"))
        .groupBy("batch", "source", "start", "closed_at", "members")
        .agg(F.count("*").alias("times"))
    )
    if part is not None and part.certain is not None:
        expected = _judged(expected, part.certain, part.window)
        begins = expected.groupBy("source").agg(F.coalesce(F.min("judged_start"), F.lit(2**62)).alias("judged_from"))
        emitted = emitted.join(begins, "source", "left").where(
            F.col("start") >= F.coalesce("judged_from", F.lit(part.certain + 1))
        )
    else:
        expected = expected.withColumn("judged", F.lit(True))
    past = F.lit(False) if origin is None else F.col("closed_at") <= origin.clock
    joined = expected.withColumn("past", past).alias("e").join(emitted.alias("g"), "batch", "full")
    same = (F.col("e.members") == F.col("g.members")) & (F.col("e.closed_at") == F.col("g.closed_at"))
    kind = (
        F.when(~F.col("e.judged"), "unjudged")
        .when(F.col("g.times").isNull(), F.when(F.col("e.past"), "history").otherwise("missing"))
        .when(F.coalesce("e.past", F.lit(True)), "extra")
        .when(~same, "different")
        .when(F.col("g.times") > 1, "doubled")
        .otherwise("same")
    )
    return joined.select(
        kind.alias("kind"),
        "batch",
        F.coalesce("e.source", "g.source").alias("source"),
        F.coalesce("e.start", "g.start").alias("start"),
        F.coalesce("g.times", F.lit(1)).alias("times"),
    )


def _judged(expected: DataFrame, certain: int, window: int) -> DataFrame:
    """*expected* with ``judged``: whether a gap in the range separates a batch from all that was before the range."""
    order = Window.partitionBy("source").orderBy("start", "end", "batch")
    before = F.max("end").over(order.rowsBetween(Window.unboundedPreceding, -1))
    gap = F.col("start") - F.coalesce(before, F.lit(certain - window))
    begins = (gap > window) & (F.col("start") > certain)
    judged = F.max(begins).over(order.rowsBetween(Window.unboundedPreceding, 0))
    return expected.withColumn("judged", judged).withColumn("judged_start", F.when(judged, F.col("start")))


def _compare_rejects(
    rows: DataFrame, given: DataFrame, wanted: LogRange, part: _JudgedRange | None, past: DataFrame | None
) -> DataFrame:
    """One row a refused message: its kind, id and reason. Those of *past* were told of by the job over history."""
    expected = _refused(rows).withColumn("expected", F.lit(True))
    if past is not None:
        expected = expected.join(_refused(past), ["rejected", "reason"], "left_anti")
    emitted = given.where("r.rejected is not null").select("r.rejected", "r.reason")
    emitted = emitted.where(F.col("rejected").between(wanted.first_id, wanted.last_id))
    emitted = emitted.groupBy("rejected", "reason").agg(F.count("*").alias("times"))
    if part is not None:
        judged = F.col("reason").isin(*_TIMELESS)
        if part.certain is None:
            judged |= F.col("rejected") <= part.copies_to
        expected, emitted = expected.where(judged), emitted.where(judged)
    joined = expected.join(emitted, ["rejected", "reason"], "full")
    kind = (
        F.when(F.col("times").isNull(), "missing")
        .when(F.col("expected").isNull(), "extra")
        .when(F.col("times") > 1, "doubled")
        .otherwise("same")
    )
    return joined.select(kind.alias("kind"), "rejected", "reason", F.coalesce("times", F.lit(1)).alias("times"))


def _refused(rows: DataFrame) -> DataFrame:
    """The messages that *rows* (``BATCH_SCHEMA``) refuse, and why."""
    return rows.where("reason is not null and reason != 'tick'").select(F.col("ids")[0].alias("rejected"), "reason")


def _counts(frame: DataFrame) -> dict[str, int]:
    return {row["kind"]: row["count"] for row in frame.groupBy("kind").count().orderBy("kind").collect()}


def _strangers(given: DataFrame, limit: int) -> tuple[list[BatchMismatch], int]:
    """The first *limit* messages that are neither a batch nor a refused message, and how many there are."""
    batch = "b.batch is not null and b.start is not null and b.events is not null"
    found = given.where(f"not ({batch}) and r.rejected is null").select("id")
    first = [BatchMismatch("unreadable", message=row["id"]) for row in found.orderBy("id").limit(limit).collect()]
    return first, len(first) if len(first) < limit else found.count()


def _compared(batches: DataFrame, rejects: DataFrame, given: DataFrame, limit: int) -> _Compared:
    counted = _counts(batches), _counts(rejects)
    strangers, unreadable = _strangers(given, limit)
    return _Compared(*counted, unreadable, [*strangers, *_findings(batches, rejects, limit - len(strangers))])


def _findings(batches: DataFrame, rejects: DataFrame, limit: int) -> list[BatchMismatch]:
    wrong = batches.where(~F.col("kind").isin(*_NO_DIFFERENCE)).orderBy("source", "start", "batch").limit(limit)
    found = [BatchMismatch(**_known(row.asDict())) for row in wrong.collect()]
    refused = rejects.where("kind != 'same'").orderBy("rejected").limit(limit - len(found))
    return [*found, *(BatchMismatch(**_known(row.asDict())) for row in refused.collect())]


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
