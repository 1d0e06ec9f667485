"""Integrity reports that can be believed (promise P9): what was listed, checked and explained, and what was found.

A report says SUCCESS only if the listing went through, everything listed was checked or explained, and nothing failed.
It names the SHA-256 of the report before it, so that none can be changed or taken out later without being seen.
The format is ``docs/formats/report.md``.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.amounts import share_text, size_text
from millstream.core.canonical import canonical_json
from millstream.core.shown_commands import arguments
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult
from millstream.mill.manifest_table import IntactItems

VERSION = 2
"""Of reports that belong to the chain of a node; those of version 1 may be of a member's own chain."""

LISTED = 100
"""Ids that a report names of a set of items."""

MOST_NAMED = 100_000
"""Findings, and repaired copies, that a report names at most. It counts all findings, and its TSV file has them."""

_STRAY = "; stray: neither at the source nor ever recorded there"

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
    """The content of a report on a space."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    INCOMPLETE = "INCOMPLETE"


class ReportFinding(msgspec.Struct, frozen=True):
    """A finding on one item: its check outcome (row and kind), and the checksums of manifest, provider and content."""

    content_id: str
    verdict: str
    row: str
    kind: str
    detail: str
    manifest: str | None = None
    provider: str | None = None
    content: str | None = None


class CopyFinding(msgspec.Struct, frozen=True):
    """A copy with a finding, or one that was repaired, and the reason."""

    content_id: str
    kind: str
    detail: str


class ItemSet(msgspec.Struct, frozen=True):
    """Items of a space: their number, and the first ids."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> ItemSet:
        """The set of *names*, with the first :data:`LISTED` of them."""
        iterator = iter(names)
        first = tuple(itertools.islice(iterator, LISTED))
        return cls(len(first) + sum(1 for _ in iterator), first)


class AdoptedShare(msgspec.Struct, frozen=True):
    """The number and bytes of items whose only checksum was computed when they were adopted."""

    items: int = 0
    bytes: int = 0


class SourceDifferences(msgspec.Struct, frozen=True):
    """How a copy of a space differs from its ``sources`` by item.

    ``strays`` are the ids of all items that are only in the copy: no source has them, nor was one recorded to have
    them. ``absent`` items are recorded at a source and not in the copy. ``note`` says why nothing could be said.
    """

    sources: tuple[str, ...] = ()
    strays: Sequence[str] = ()
    absent: ItemSet = ItemSet()
    note: str = ""


class IntegrityReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The report on one space of one store.

    Times are in microseconds since the epoch, UTC. ``coverage`` is (checked + explained) / listed, or None if nothing
    was checked (a number in reports of earlier releases: see ``known_coverage``). ``outcomes`` counts verdicts and
    ``kinds`` rows; ``previous`` is the SHA-256 of the previous report on the space, None for the first. ``sources``,
    ``strays`` and ``absent`` are the differences of a copy from its source by item (``SourceDifferences``); without a
    difference they are omitted. ``adopted`` counts the items whose only checksum is from adoption; it is omitted if
    there are none. ``repaired`` are copies that were lost or damaged and are repaired, so that they are not findings.
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
    sources: tuple[str, ...] = ()
    strays: ItemSet = ItemSet()
    absent: ItemSet = ItemSet()
    adopted: AdoptedShare = AdoptedShare()
    repaired: Sequence[CopyFinding] = ()

    @property
    def known_coverage(self) -> float | None:
        """``coverage``, also of a report of an earlier release: None where nothing was checked."""
        return self.coverage if self.checked else None

    @property
    def is_of_node(self) -> bool:
        """Whether it belongs to the chain that a node has for its space: a report of version 1 may be of a chain that
        a member had in its folder (:mod:`~millstream.mill.reports.member_reports`)."""
        return self.version > 1

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
        self._unnamed = 0
        self.notes: list[str] = []
        self.repaired: Sequence[CopyFinding] = ()
        self.bytes = 0

    def add(self, results: Iterable[CheckResult]) -> None:
        """Count *results*; what is neither in order nor explained becomes a finding."""
        for result in results:
            self.count(result.verdict, f"{result.row} {result.kind}", size=result.size)
            if result.verdict not in (CheckVerdict.SUCCESS, CheckVerdict.IGNORE):
                self.findings.append(_finding(result))
            if len(self.findings) >= 2 * MOST_NAMED:
                self.name_first()

    def name_first(self) -> int:
        """Keep the first :data:`MOST_NAMED` findings by id, sorted; how many others there were since the beginning."""
        self.findings.sort(key=lambda finding: finding.content_id)
        self._unnamed += len(self.findings[MOST_NAMED:])
        del self.findings[MOST_NAMED:]
        return self._unnamed

    def add_intact(self, items: IntactItems) -> None:
        """Count *items*."""
        outcome = items.outcome
        kind = f"{outcome.row} {outcome.kind}"
        if items.sizes:
            self.count(outcome.verdict, kind, number=len(items.sizes), size=sum(items.sizes))

    def count(self, verdict: CheckVerdict, kind: str, *, number: int = 1, size: int = 0) -> None:
        """Count *number* items of *size* bytes together that came out alike, as a job that aggregates has them."""
        self.outcomes[verdict.value] += number
        self.kinds[kind] += number
        self.bytes += size

    def replace(self, before: CheckResult, result: CheckResult) -> None:
        """Count *result* in the place of *before*, which was counted already and is not a finding here."""
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
        return self.outcomes[CheckVerdict.SUCCESS] + self.outcomes[CheckVerdict.FAILURE]

    @property
    def explained(self) -> int:
        """Items that there was a known reason not to compare."""
        return self.outcomes[CheckVerdict.IGNORE]

    @property
    def failed(self) -> int:
        """Items that were found damaged, missing or unrecorded."""
        return self.outcomes[CheckVerdict.FAILURE]

    @property
    def coverage(self) -> float | None:
        """The share of what was listed that was checked or explained; None where nothing was checked."""
        return (self.checked + self.explained) / self.listed if self.checked else None

    @property
    def result(self) -> ReportResult:
        """SUCCESS only if everything was listed, and checked or explained, and nothing failed."""
        if self.failed:
            return ReportResult.FAILURE
        unchecked = self.listed and not self.checked  # to explain everything away is not a check
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
    notes = list(tally.notes)
    if unnamed := tally.name_first():
        notes.append(f"{unnamed:,} more findings are only in the TSV file of this report")
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
        findings=list(tally.findings),
        notes=tuple(notes),
        previous=previous,
        repaired=tuple(tally.repaired[:MOST_NAMED]),
    )


def encode_report(report: IntegrityReport) -> bytes:
    """*report* as canonical JSON (RFC 8785), without the members of later releases that say nothing."""
    values: dict[str, Any] = msgspec.to_builtins(report)
    for name, empty in _LATER.items():
        if getattr(report, name) == empty:
            del values[name]
    return canonical_json(values)


def compared(report: IntegrityReport, differences: SourceDifferences) -> IntegrityReport:
    """*report* on a copy with its *differences* from the source: strays fail it, absent items forbid SUCCESS."""
    notes = (*report.notes, differences.note) if differences.note else report.notes
    result = report.result
    if differences.strays:
        result = ReportResult.FAILURE
    elif (differences.absent.count or differences.note) and result == ReportResult.SUCCESS:
        result = ReportResult.INCOMPLETE
    differs = differences.strays or differences.absent.count
    return msgspec.structs.replace(
        report,
        result=result,
        notes=notes,
        sources=differences.sources if differs else (),
        strays=ItemSet.of(differences.strays),
        absent=differences.absent,
    )


_LATER: Mapping[str, object] = {
    "sources": (),
    "strays": ItemSet(),
    "absent": ItemSet(),
    "adopted": AdoptedShare(),
    "repaired": (),
}
"""Members that reports of the first release do not have, and the values at which they are left out."""

SHOWN = 20
"""Findings that are told of one report; the report itself has all."""


def coverage_text(report: IntegrityReport) -> str:
    """The coverage of *report* for people: no number where nothing was listed, or nothing was checked."""
    if not report.listed:
        if report.absent.count:
            return "coverage unknown: nothing is there"
        if report.kinds:
            return "coverage unknown: all was recorded after the check began"
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
        yield f"  … and {more:,} more: see `millstream mill report {arguments(report.store, report.space)}`"
    yield from (f"  {one.content_id}: repaired: {one.kind}: {one.detail}" for one in report.repaired[:SHOWN])
    if len(report.repaired) > SHOWN:
        yield f"  … and {len(report.repaired) - SHOWN:,} more that were repaired: see the report itself"
    if report.adopted.items:
        yield f"  {adopted_text(report)}"
    yield from (f"  {line}" for line in difference_lines(report))
    yield from (f"  {note}" for note in report.notes)


def adopted_text(report: IntegrityReport) -> str:
    """How much of the space has no independent checksum, for people."""
    adopted = report.adopted
    return (
        f"{adopted.items:,} items ({size_text(adopted.bytes)}) have no checksum older than Millstream's first reading: "
        "damage from before that reading cannot be detected"
    )


def difference_lines(report: IntegrityReport) -> Iterator[str]:
    """How the copy differs from its source by item, and what to do about it, for people."""
    source = " or ".join(report.sources)
    if report.strays.count:
        yield (
            f"{report.strays.count:,} stray items, neither at the source ({source}) nor ever recorded there: "
            f"{_named(report.strays)}: put them at the source, or have them deleted here with `millstream mill forget "
            f"{report.sources[0]} {report.space} ID` and `millstream mill duplicate`"
        )
    if report.absent.count:
        yield (
            f"{report.absent.count:,} items of the source ({source}) are not in this copy: {_named(report.absent)}: "
            "`millstream mill duplicate` copies them; `millstream queue dead duplication-low` lists tasks that failed"
        )


def _named(items: ItemSet) -> str:
    names = ", ".join(items.first[:SHOWN])
    return f"{names} …" if items.count > SHOWN else names


def tsv_lines(
    results: Iterable[CheckResult], *, account: str = "local", store_type: str = "", strays: Container[str] = ()
) -> Iterator[str]:
    """*results* as TSV lines with a heading; tabs, line ends and backslashes in values are escaped.

    The details of the items *strays* say so.
    """
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
            f"{result.note}{_STRAY if result.content_id in strays else ''}",
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
