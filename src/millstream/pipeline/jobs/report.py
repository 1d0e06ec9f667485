"""The job ``report``: what the facts of a sweep mean, item by item and space by space.

The outcomes come from the same pure table that the mill's workers use
(:func:`millstream.mill.integrity_decision.decide_bit_check`). The driver gets the results as a stream for
the manifest, the findings for repair, and a tally a space for its report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Observation as TaskFigures
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.mill.integrity_decision import (
    BitCheckOutcome,
    CheckVerdict,
    ManifestAction,
    Observation,
    decide_bit_check,
    is_fresh,
)
from millstream.mill.manifest import CheckResult
from millstream.mill.reports.report import IntegrityReport, SpaceTally, build_report
from millstream.pipeline.jobs.integrity import Sweep
from millstream.pipeline.jobs.inventory import Unlisted
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.output.shared_output import write_output
from millstream.pipeline.planning.due_items import DeferredItems
from millstream.pipeline.schema import read_parquet, spark_schema
from millstream.pipeline.tasks.sweep_task import FACT_SCHEMA

RESULT_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("store", "space", "content_id")),
        *(pa.field(name, pa.string(), nullable=False) for name in ("verdict", "row", "kind", "detail", "action")),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("checked_at", "size")),
        *(pa.field(name, pa.string()) for name in ("manifest", "provider", "content")),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
"""One row an item: the fields of :class:`~millstream.mill.manifest.CheckResult` (``size``: bytes hashed), seconds."""


_RESULT_FIELDS = [name for name in RESULT_SCHEMA.names if name != "seconds"]
_Place: TypeAlias = tuple[str, str, str]
_PLACE = ("store", "space", "content_id")
_ALIKE = ("verdict", "row", "kind")
_IN_ORDER = (CheckVerdict.SUCCESS.value, CheckVerdict.IGNORE.value)


NOT_DUE, POSTPONED = "not due", "over budget"
"""Kinds of items that a sweep of what is due leaves out; no row of the decision table has spoken of them."""


MOST_NAMED = 100_000
"""Findings that all reports on a sweep name together; each space names one at least."""


class SpaceSweep(msgspec.Struct, frozen=True):
    """The result of a sweep for one space: its report (``bytes`` were hashed), and the seconds that this took one
    core."""

    report: IntegrityReport
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes hashed a second, on one core."""
        return self.report.bytes / self.seconds if self.seconds else 0.0


class JudgedSweep(msgspec.Struct, frozen=True):
    """A judged sweep: its record, the folder of its results, and whether it had been done before.

    ``unlisted`` are the listings of the sweep that broke off: no report on such a space says SUCCESS. Nor does one on a
    space of which ``left`` says that items were over the budget.
    """

    record: JobRecord
    data: Path
    reused: bool
    unlisted: tuple[Unlisted, ...] = ()
    left: tuple[DeferredItems, ...] = ()

    def results(self, overtaken: Iterable[CheckResult] = ()) -> Iterator[CheckResult]:
        """Every item, as :meth:`millstream.mill.manifest.Manifest.apply` takes them, a few thousand in memory.

        Those of which there are *overtaken* results are left out: they have been judged by what is known now.
        """
        without = {_place(result) for result in overtaken}
        for part in parquet_rows(self.data, _RESULT_FIELDS):
            yield from (one for one in map(_check_result, part.to_pylist()) if _place(one) not in without)

    def started_at(self) -> int:
        """The time of the first check (microseconds); 0 without one."""
        firsts = [pc.min(part.column("checked_at")).as_py() for part in parquet_rows(self.data, ["checked_at"])]
        return min((first for first in firsts if first is not None), default=0)

    def findings(self, also: Collection[_Place] = frozenset()) -> Iterator[CheckResult]:
        """The items that are neither in order nor explained, and those of *also* (store, space, id)."""
        for part in parquet_rows(self.data, _RESULT_FIELDS):
            fine = pc.is_in(part.column("verdict"), pa.array(_IN_ORDER))
            if also:
                named = map(also.__contains__, zip(*(part.column(name).to_pylist() for name in _PLACE), strict=True))
                fine = pc.and_(fine, pc.invert(pa.array(named, pa.bool_())))
            yield from map(_check_result, part.filter(pc.invert(fine)).to_pylist())

    def spaces(self, overtaken: Iterable[CheckResult] = (), unrecorded: Iterable[CheckResult] = ()) -> list[SpaceSweep]:
        """A report for each (store, space), sorted, not yet chained to the one before; none where nothing was due.

        The results *overtaken* stand in the place of those that the sweep has of the same items
        (:func:`millstream.mill.integrity.superseded.recheck_superseded`). Those of *unrecorded* items, which the sweep
        could not know, are added.
        """
        return _space_sweeps(self, {_place(result): result for result in overtaken}, unrecorded)


def run_report(spark: SparkSession, jobs: Path, sweep: Sweep, *, clock: Clock | None = None) -> JudgedSweep:
    """Judge the facts of *sweep* into a folder under *jobs*; what was judged before is not judged again.

    Raises :class:`JobBusyError`.
    """
    clock = clock or SystemClock()
    source = JobFolder(jobs, sweep.record.job, sweep.record.inputs)
    folder = JobFolder(jobs, "report", {"sweep": sweep.record.inputs}, sources=[source])
    with folder.held():
        if record := folder.committed():
            return JudgedSweep(record, folder.data, reused=True, unlisted=sweep.unlisted, left=sweep.left)
        folder.begin()
        began = clock.monotonic()
        verdicts = TaskFigures()
        counted = [F.count_if(F.col("verdict") == verdict.value).alias(verdict.value) for verdict in CheckVerdict]
        rows = judge(read_parquet(spark, sweep.facts, FACT_SCHEMA)).observe(verdicts, *counted)
        write_output(rows, folder.data)
        record = _record(folder, sweep, verdicts.get, round(clock.monotonic() - began, 3))
        return JudgedSweep(folder.commit(record), folder.data, reused=False, unlisted=sweep.unlisted, left=sweep.left)


def judge(facts: DataFrame) -> DataFrame:
    """*facts* (rows of :data:`FACT_SCHEMA`) as rows of :data:`RESULT_SCHEMA`."""
    return (
        facts.select(*FACT_SCHEMA.names)
        .mapInArrow(judge_part, spark_schema(RESULT_SCHEMA))
        .select(*RESULT_SCHEMA.names)
    )


def judge_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The results of the facts in *parts*."""
    for part in parts:
        yield pa.RecordBatch.from_pylist([_judge(fact) for fact in part.to_pylist()], RESULT_SCHEMA)


def _judge(fact: dict[str, Any]) -> dict[str, Any]:
    outcome = decide_bit_check(
        Observation(
            manifest=fact["manifest"],
            store=fact["provider"],
            content=fact["content"],
            deleted=fact["deleted"],
            fresh=is_fresh(fact["modified"], fact["checked_at"]),
            elsewhere=fact["elsewhere"],
        )
    )
    return fact | _decided(outcome, fact)


def _decided(outcome: BitCheckOutcome, fact: Mapping[str, Any]) -> dict[str, Any]:
    error = fact["error"]
    return {
        "verdict": outcome.verdict.value,
        "row": outcome.row,
        "kind": outcome.kind,
        "detail": f"{outcome.detail} ({error})" if error else outcome.detail,
        "action": outcome.manifest.value,
        "size": fact["read"],
    }


def _record(folder: JobFolder, sweep: Sweep, verdicts: Mapping[str, int], seconds: float) -> JobRecord:
    """The record of the job, whose tasks counted *verdicts*."""
    counts = {verdict: count for verdict, count in sorted(verdicts.items()) if count}
    return folder.record(
        rows_in=sweep.record.rows_out,
        rows_out=sum(counts.values()),
        bytes=sweep.record.bytes,
        seconds=seconds,
        counts=counts,
    )


def _place(result: CheckResult) -> _Place:
    return result.store, result.space, result.content_id


def _space_sweeps(
    judged: JudgedSweep, overtaken: Mapping[_Place, CheckResult], unrecorded: Iterable[CheckResult]
) -> list[SpaceSweep]:
    tallies: dict[tuple[str, str], _SpaceTally] = {}
    for part in parquet_rows(judged.data, ["store", "space", *_ALIKE, "size", "checked_at", "seconds"]):
        for group in _groups(part):
            tallies.setdefault((group["store"], group["space"]), _SpaceTally()).add(group)
    others = list(unrecorded)
    alone = Counter((result.store, result.space) for result in others)
    counts = [tally.found + alone.pop(place, 0) for place, tally in tallies.items()]
    most = fair_share([*counts, *alone.values()], MOST_NAMED)
    for finding in judged.findings(overtaken):
        tallies[finding.store, finding.space].name(finding, overtaken.get(_place(finding)), most)
    for result in others:
        tallies.setdefault((result.store, result.space), _SpaceTally()).add_one(result, most)
    for unlisted in judged.unlisted:
        for place in _concerned(unlisted, tallies):
            tallies.setdefault(place, _SpaceTally()).fail(f"the listing stopped before its end: {unlisted.error}")
    for left in judged.left:
        if left.postponed or (left.store, left.space) in tallies:
            tallies.setdefault((left.store, left.space), _SpaceTally()).leave(left)
    return [tally.close(*place, most) for place, tally in sorted(tallies.items())]


def fair_share(counts: Iterable[int], total: int) -> int:
    """The maximum number of findings that each space may name of its *counts*, so that all name *total* together.

    Spaces with fewer leave the rest of their share to the others. At least 1.
    """
    left = sorted(count for count in counts if count)
    share = total
    for place, count in enumerate(left):
        share = total // (len(left) - place)
        if count > share:
            break
        total -= count
    return max(1, share)


def _concerned(unlisted: Unlisted, places: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The space whose listing broke off; where a store did not say what it has, all that are known of it."""
    known = [place for place in places if place[0] == unlisted.store and not unlisted.space]
    return known or [(unlisted.store, unlisted.space)]


def _groups(part: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of *part* that came out alike, with their number, bytes, seconds and the times of the checks."""
    totals = [("size", "count"), ("size", "sum"), ("seconds", "sum"), ("checked_at", "min"), ("checked_at", "max")]
    grouped = pa.table(part).group_by(["store", "space", *_ALIKE]).aggregate(totals)
    rows: list[dict[str, Any]] = grouped.to_pylist()
    return rows


class _SpaceTally:
    """The tally for the report of one space; ``found`` are the findings that the sweep has of it."""

    def __init__(self) -> None:
        self._first: list[CheckResult] = []
        self._findings = 0
        self.found = 0
        self._counts = SpaceTally()
        self._seconds = 0.0
        self._started: int | None = None
        self._ended = 0

    def add(self, group: Mapping[str, Any]) -> None:
        kind = f"{group['row']} {group['kind']}"
        number, size = group["size_count"], group["size_sum"]
        self._counts.count(CheckVerdict(group["verdict"]), kind, number=number, size=size)
        self.found += 0 if group["verdict"] in _IN_ORDER else number
        self._seconds += group["seconds_sum"]
        self._checked(group["checked_at_min"], group["checked_at_max"])

    def add_one(self, result: CheckResult, most: int) -> None:
        """Count one *result*, and name it where it is a finding."""
        self._counts.count(result.verdict, f"{result.row} {result.kind}", size=result.size)
        self._checked(result.checked_at, result.checked_at)
        self.name(result, None, most)

    def name(self, finding: CheckResult, instead: CheckResult | None, most: int) -> None:
        """Name a *finding* that is counted already, if it is among the first *most* by id; with *instead*, which stands
        in the place of this result, count that."""
        if instead is not None:
            self._counts.replace(finding, instead)
            self._ended = max(self._ended, instead.checked_at)
        result = instead or finding
        if result.verdict.value not in _IN_ORDER:
            self._findings += 1
            self._first.append(result)
            if len(self._first) > 2 * most:
                self._keep_first(most)

    def _checked(self, first: int, last: int) -> None:
        self._started = first if self._started is None else min(self._started, first)
        self._ended = max(self._ended, last)

    def _keep_first(self, most: int) -> None:
        self._first = sorted(self._first, key=lambda result: result.content_id)[:most]

    def fail(self, note: str) -> None:
        self._counts.fail(note)

    def leave(self, left: DeferredItems) -> None:
        """Count what was not read: what is not due is explained, what was over the budget is not."""
        if left.not_due:
            self._counts.count(CheckVerdict.IGNORE, NOT_DUE, number=left.not_due)
        if left.postponed:
            self._counts.count(CheckVerdict.ERROR, POSTPONED, number=left.postponed)
            self.fail(
                f"{left.postponed:,} due items ({left.bytes:,} bytes) were postponed: they exceed the "
                "budget of this sweep"
            )

    def close(self, store: str, space: str, most: int) -> SpaceSweep:
        self._keep_first(most)
        if left := self._findings - len(self._first):
            self.fail(f"{left:,} more findings are only in the results of the sweep")
        named = SpaceTally()
        named.add(self._first)
        self._counts.findings = named.findings
        report = build_report(self._counts, store, space, started_at=self._started or 0, ended_at=self._ended)
        return SpaceSweep(report, round(self._seconds, 6))


def _check_result(row: dict[str, Any]) -> CheckResult:
    row["verdict"] = CheckVerdict(row["verdict"])
    row["action"] = ManifestAction(row["action"])
    return CheckResult(**row)
