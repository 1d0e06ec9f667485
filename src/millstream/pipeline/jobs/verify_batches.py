"""The job ``verify-batches``: batch a range of a log again, and compare with what a batch service or stream gave.

Names of batches are functions of the records and the rules (promise P5), so whatever differs was lost, doubled, or made
by other rules or of other records.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.batching import Rulebook
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.failures import explained
from millstream.pipeline.jobs.history import batch_range
from millstream.pipeline.jobs.ranges import LogRange, plan_range
from millstream.pipeline.source import read_log
from millstream.stores.tiers import open_store

_BODY = "batch string, source string, start long, end long, closed_at long, events array<long>"
_REJECT = "rejected long, reason string"
_TIMELESS = ("late", "future")
"""Reasons that are a matter of one record alone."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference, of a batch or of a refused message (``rejected`` and ``reason``).

    ``kind`` is ``missing`` (it should have come out), ``extra`` (it should not have), ``different`` (it has copies of
    its records, or another closing time) or ``doubled`` (it came out ``times`` times).
    """

    kind: str
    batch: str = ""
    source: str = ""
    start: int | None = None
    times: int = 1
    rejected: int | None = None
    reason: str = ""


class Verified(msgspec.Struct, frozen=True):
    """What the comparison found: batches and rejects that agree, and by kind those that do not.

    ``unjudged`` are batches at the beginning of a range that does not begin with the log: which messages came before
    decides on them. ``findings`` are the first of the differences by source and start.
    """

    log: str
    output: str
    first_id: int
    last_id: int
    messages: int
    agreed: int
    rejects_agreed: int
    unjudged: int
    differences: dict[str, int]
    findings: tuple[Finding, ...]
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
) -> Verified:
    """Compare the batches of *log* from *first_id* to *last_id* under *rules* with those in the log *output*.

    Without *first_id* from the first message; without *last_id* up to the last message that *output* knows of. At most
    *limit* differences are told one by one. Raises :class:`PipelineInputError`, and what Spark raises as
    :class:`PipelineError`.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    wanted = plan_range(store_url, log, first_id, _end(store_url, output, last_id, clock), clock)
    certain = _certain_from(wanted, rules) if wanted.first_id > 1 else None
    with explained("verify-batches"):
        rows = batch_range(spark, store_url, wanted, rules, flush=False, whole=False).persist()
        try:
            given = _emitted(spark, store_url, output)
            batches = _compare_batches(rows, given, wanted, rules, certain).persist()
            rejects = _compare_rejects(rows, given, wanted, certain).persist()
            counted = _counts(batches), _counts(rejects)
            findings = _findings(batches, rejects, limit)
        finally:
            spark.catalog.clearCache()
    differences = {kind: count for kind, count in counted[0].items() if kind not in ("same", "unjudged")}
    differences |= {f"{kind}_rejects": count for kind, count in counted[1].items() if kind != "same"}
    return Verified(
        log,
        output,
        wanted.first_id,
        wanted.last_id,
        wanted.count,
        counted[0].get("same", 0),
        counted[1].get("same", 0),
        counted[0].get("unjudged", 0),
        differences,
        tuple(findings),
        round(clock.monotonic() - began, 3),
    )


def _end(store_url: str, output: str, last_id: int | None, clock: Clock) -> int:
    with open_store(store_url, clock=clock) as store:
        known = store.log(LogSpec(output), create=False).sequence("batching")
    if not known:
        raise PipelineInputError(f"log {output!r} holds no batches: name the --output of a batch service or stream")
    return known if last_id is None else min(last_id, known)


def _certain_from(wanted: LogRange, rules: Rulebook) -> int:
    """The event time from which on a gap proves that no message from before the range bears on what follows."""
    config = rules.default
    if rules.overrides or config.policy != "reject":
        raise PipelineInputError(
            "a range that begins after the first message is compared under one set of rules without late policies "
            "only: leave --first away"
        )
    return wanted.received_from + config.lead + config.window


def _emitted(spark: SparkSession, store_url: str, output: str) -> DataFrame:
    """What the log of batches holds: the parsed bodies, batches with their message ids hashed."""
    text = F.col("body").cast("string")
    frame = read_log(spark, store_url, output, columns=["key", "body"])
    return frame.select(F.from_json(text, _BODY).alias("b"), F.from_json(text, _REJECT).alias("r"))


def _compare_batches(
    rows: DataFrame, given: DataFrame, wanted: LogRange, rules: Rulebook, certain: int | None
) -> DataFrame:
    """One row a batch: its kind (``same``, ``unjudged`` or that of a difference), source, start and names."""
    members = F.xxhash64("ids").alias("members")
    expected = rows.where("batch is not null").select("batch", "source", "start", "end", "closed_at", members)
    emitted = (
        given.where("b.batch is not null and b.closed_at is not null")
        .where(F.col("b.closed_at") <= wanted.received_to)
        .select("b.batch", "b.source", "b.start", "b.closed_at", F.xxhash64("b.events").alias("members"))
        .groupBy("batch", "source", "start", "closed_at", "members")
        .agg(F.count("*").alias("times"))
    )
    if certain is not None:
        expected = _judged(expected, certain, rules.default.window)
        begins = expected.groupBy("source").agg(F.coalesce(F.min("judged_start"), F.lit(2**62)).alias("judged_from"))
        emitted = emitted.join(begins, "source", "left").where(
            F.col("start") >= F.coalesce("judged_from", F.lit(certain + 1))
        )
    else:
        expected = expected.withColumn("judged", F.lit(True))
    joined = expected.alias("e").join(emitted.alias("g"), "batch", "full")
    same = (F.col("e.members") == F.col("g.members")) & (F.col("e.closed_at") == F.col("g.closed_at"))
    kind = (
        F.when(~F.col("e.judged"), "unjudged")
        .when(F.col("g.times").isNull(), "missing")
        .when(F.col("e.judged").isNull(), "extra")
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
    order = Window.partitionBy("source").orderBy("start", "end")
    gap = F.col("start") - F.coalesce(F.lag("end").over(order), F.lit(certain - window))
    begins = (gap > window) & (F.col("start") > certain)
    judged = F.max(begins).over(order.rowsBetween(Window.unboundedPreceding, 0))
    return expected.withColumn("judged", judged).withColumn("judged_start", F.when(judged, F.col("start")))


def _compare_rejects(rows: DataFrame, given: DataFrame, wanted: LogRange, certain: int | None) -> DataFrame:
    """One row a refused message: its kind, id and reason."""
    expected = rows.where("reason is not null and reason != 'tick'")
    expected = expected.select(F.col("ids")[0].alias("rejected"), "reason", F.lit(True).alias("expected"))
    emitted = given.where("r.rejected is not null").select("r.rejected", "r.reason")
    emitted = emitted.where(F.col("rejected").between(wanted.first_id, wanted.last_id))
    emitted = emitted.groupBy("rejected", "reason").agg(F.count("*").alias("times"))
    if certain is not None:
        expected, emitted = (frame.where(F.col("reason").isin(*_TIMELESS)) for frame in (expected, emitted))
    joined = expected.join(emitted, ["rejected", "reason"], "full")
    kind = (
        F.when(F.col("times").isNull(), "missing")
        .when(F.col("expected").isNull(), "extra")
        .when(F.col("times") > 1, "doubled")
        .otherwise("same")
    )
    return joined.select(kind.alias("kind"), "rejected", "reason", F.coalesce("times", F.lit(1)).alias("times"))


def _counts(frame: DataFrame) -> dict[str, int]:
    return {row["kind"]: row["count"] for row in frame.groupBy("kind").count().orderBy("kind").collect()}


def _findings(batches: DataFrame, rejects: DataFrame, limit: int) -> list[Finding]:
    wrong = batches.where("kind not in ('same', 'unjudged')").orderBy("source", "start", "batch").limit(limit)
    found = [Finding(**_known(row.asDict())) for row in wrong.collect()]
    refused = rejects.where("kind != 'same'").orderBy("rejected").limit(limit - len(found))
    return [*found, *(Finding(**_known(row.asDict())) for row in refused.collect())]


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
