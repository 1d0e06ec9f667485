"""Integrity reports that can be believed (promise P9): what was listed, checked and explained, and what was found.

A report says SUCCESS only if the listing went through, everything listed was checked or explained, and nothing failed.
It names the SHA-256 of the report before it, so that none can be changed or taken out later without being seen.
The format is ``docs/formats/report.md``.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from millstream.core.amounts import share_text, size_text
from millstream.core.canonical import canonical_json
from millstream.mill.bit_check_table import Verdict
from millstream.mill.manifest import CheckResult

VERSION = 1

COLUMNS = (
    "date-checked",
    "account",
    "store-id",
    "store-type",
    "space-id",
    "content-id",
    "result",
    "content-checksum",
    "provider-checksum",
    "manifest-checksum",
    "details",
)
"""The columns of the TSV (reference mill §1.9)."""


class ReportResult(enum.StrEnum):
    """What a report says of its space."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    INCOMPLETE = "INCOMPLETE"


class ReportFinding(msgspec.Struct, frozen=True):
    """One item that was not in order: the row of the table, its kind, and what each source said."""

    content_id: str
    verdict: str
    row: str
    kind: str
    detail: str
    manifest: str | None = None
    provider: str | None = None
    content: str | None = None


class IntegrityReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The report on one space of one store. Times are in microseconds since the epoch, UTC.

    ``coverage`` is (checked + explained) / listed, None where nothing was checked (reports of earlier releases have a
    number there: see :attr:`known_coverage`). ``outcomes`` counts verdicts and ``kinds`` rows; ``previous`` is the
    SHA-256 of the space's report before this one, None for the first.
    """

    account: str
    store: str
    space: str
    started_at: int
    ended_at: int
    result: ReportResult
    listed: int
    checked: int
    explained: int
    failed: int
    bytes: int
    coverage: float | None
    outcomes: Mapping[str, int]
    kinds: Mapping[str, int]
    findings: Sequence[ReportFinding]
    notes: Sequence[str] = ()
    previous: str | None = None
    version: int = VERSION

    @property
    def known_coverage(self) -> float | None:
        """``coverage``, also of a report of an earlier release: None where nothing was checked."""
        return self.coverage if self.checked else None

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the canonical JSON of this report."""
        return hashlib.sha256(encode_report(self)).hexdigest()


class SpaceTally:
    """Counts the checks of one space, in any order and any grouping."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.findings: list[ReportFinding] = []
        self.notes: list[str] = []
        self.bytes = 0

    def add(self, results: Iterable[CheckResult]) -> None:
        """Count *results*; what is neither in order nor explained becomes a finding."""
        for result in results:
            self.count(result.verdict, f"{result.row} {result.kind}", size=result.size)
            if result.verdict not in (Verdict.SUCCESS, Verdict.IGNORE):
                self.findings.append(_finding(result))

    def count(self, verdict: Verdict, kind: str, *, number: int = 1, size: int = 0) -> None:
        """Count *number* items of *size* bytes together that came out alike, as a job that aggregates has them."""
        self.outcomes[verdict.value] += number
        self.kinds[kind] += number
        self.bytes += size

    def replace(self, before: CheckResult, result: CheckResult) -> None:
        """Count *result* in the place of *before*, which was counted already and is no finding here."""
        for one, number in ((before, -1), (result, 1)):
            self.count(one.verdict, f"{one.row} {one.kind}", number=number, size=number * one.size)
        self.outcomes, self.kinds = +self.outcomes, +self.kinds

    def fail(self, note: str) -> None:
        """Not everything was listed: the report will be INCOMPLETE, and say why."""
        self.notes.append(note)

    @property
    def listed(self) -> int:
        """Items that the store listed or the manifest knows."""
        return self.outcomes.total()

    @property
    def checked(self) -> int:
        """Items whose state was found out, good or bad."""
        return self.outcomes[Verdict.SUCCESS] + self.outcomes[Verdict.FAILURE]

    @property
    def explained(self) -> int:
        """Items that there was a known reason not to compare."""
        return self.outcomes[Verdict.IGNORE]

    @property
    def failed(self) -> int:
        """Items that were found damaged, missing or unrecorded."""
        return self.outcomes[Verdict.FAILURE]

    @property
    def coverage(self) -> float | None:
        """The share of what was listed that was checked or explained; None where nothing was checked."""
        return (self.checked + self.explained) / self.listed if self.checked else None

    @property
    def result(self) -> ReportResult:
        """SUCCESS only if everything was listed, and checked or explained, and nothing failed."""
        if self.failed:
            return ReportResult.FAILURE
        unchecked = self.listed and not self.checked  # to explain everything away is no check
        if self.notes or unchecked or self.checked + self.explained != self.listed:
            return ReportResult.INCOMPLETE
        return ReportResult.SUCCESS


def build_report(
    tally: SpaceTally,
    store: str,
    space: str,
    *,
    started_at: int,
    ended_at: int,
    account: str = "local",
    previous: str | None = None,
) -> IntegrityReport:
    """The report of *tally*. *previous* is the SHA-256 of the space's last report."""
    return IntegrityReport(
        account=account,
        store=store,
        space=space,
        started_at=started_at,
        ended_at=ended_at,
        result=tally.result,
        listed=tally.listed,
        checked=tally.checked,
        explained=tally.explained,
        failed=tally.failed,
        bytes=tally.bytes,
        coverage=tally.coverage,
        outcomes=dict(sorted(tally.outcomes.items())),
        kinds=dict(sorted(tally.kinds.items())),
        findings=sorted(tally.findings, key=lambda finding: finding.content_id),
        notes=tuple(tally.notes),
        previous=previous,
    )


def encode_report(report: IntegrityReport) -> bytes:
    """*report* as canonical JSON (RFC 8785)."""
    return canonical_json(msgspec.to_builtins(report))


SHOWN = 20
"""Findings that are told of one report; the report itself has all."""


def coverage_text(report: IntegrityReport) -> str:
    """The coverage of *report* for people: no number where nothing was listed, or nothing was checked."""
    if not report.listed:
        return "coverage unknown: nothing could be listed" if report.notes else "the space is empty"
    known = report.known_coverage
    return "coverage unknown: nothing was checked" if known is None else f"coverage {share_text(known)}"


def report_lines(report: IntegrityReport, *, age: str = "") -> Iterator[str]:
    """What *report* says in figures, its first findings, and its notes, for people; *age* is how old it is."""
    yield (
        f"{report.store}/{report.space}: {report.result.value}{age and f', {age} ago'}: {report.listed:,} listed, "
        f"{report.checked:,} checked, {report.explained:,} explained, {report.failed:,} failed, "
        f"{size_text(report.bytes)} read, {coverage_text(report)}"
    )
    for finding in report.findings[:SHOWN]:
        yield f"  {finding.content_id}: {finding.row} {finding.kind}: {finding.detail}"
    if len(report.findings) > SHOWN:
        more = len(report.findings) - SHOWN
        yield f"  … and {more:,} more: see `millstream mill report {report.store} {report.space}`"
    yield from (f"  {note}" for note in report.notes)


def tsv_lines(results: Iterable[CheckResult], *, account: str = "local", store_type: str = "") -> Iterator[str]:
    """*results* as TSV lines with a heading; tabs, line ends and backslashes in values are escaped."""
    yield "\t".join(COLUMNS) + "\n"
    for result in results:
        values = (
            str(result.checked_at),
            account,
            result.store,
            store_type,
            result.space,
            result.content_id,
            result.verdict.value,
            result.content or "",
            result.provider or "",
            result.manifest or "",
            result.note,
        )
        yield "\t".join(map(_escape, values)) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _finding(result: CheckResult) -> ReportFinding:
    return ReportFinding(
        result.content_id,
        result.verdict.value,
        result.row,
        result.kind,
        result.detail,
        result.manifest,
        result.provider,
        result.content,
    )
