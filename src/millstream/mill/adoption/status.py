"""How well each space is protected, from what is recorded: items, copies, when they were last read, what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.adoption.coverage import (
    CopyCoverage,
    copy_coverage,
    kept_coverage,
    name_recorded_damage,
    name_uncovered,
    recorded_coverage,
    recorded_damage,
)
from millstream.mill.adoption.verification import STRAY
from millstream.mill.duplication.change_guard import PendingApproval
from millstream.mill.manifest import Manifest
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.report import CopyFinding, IntegrityReport, ReportResult

OVERDUE = 31 * 24 * 3600 * 1_000_000
"""A copy that was not read for longer (microseconds) is named, as runs once a day read all of them in 30 days."""

NAMED = 20
"""Items of each kind that are named; the counts beside them are of all."""

VANISHED = "vanished"
"""The kind of an item that is gone from the source, and whose copies are kept."""


class CopyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of a space in one store. ``problem`` says why the store cannot be used, ``holds`` what waits for it.

    ``findings`` are copies that differ and of which no record says whether they are right, by kind; ``report`` is the
    result of the last integrity report, None where there is none. ``named`` are the first items of each kind that are
    not in order here, also those that the last report names (findings and strays). ``oldest_pending`` is when the first
    item without a copy here was recorded (microseconds, None where that is not known). ``new`` of the damaged copies
    were never checked.
    """

    store: str
    items: int
    verified: int
    pending: int
    damaged: int
    oldest_verified: int | None
    newest_verified: int | None
    is_overdue: bool
    holds: Sequence[int] = ()
    findings: Mapping[str, int] = {}
    report: ReportResult | None = None
    named: Sequence[CopyFinding] = ()
    problem: str = ""
    oldest_pending: int | None = None
    new: int = 0

    @property
    def is_well(self) -> bool:
        """Whether all items have verified copies here, and nothing waits."""
        is_open = self.damaged or self.holds or self.findings or self.problem or self.is_overdue
        return self.verified == self.items and not is_open and self.report in (None, ReportResult.SUCCESS)


class SpaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A space and its copies; times are in microseconds, None where it is not known.

    ``findings`` are those of the last adoption by kind; ``adopted_only`` items have only a checksum that this node
    computed, None if the source records checksums; ``last_code`` is the exit code of the last `protect`, None where it
    did not end or is not known; ``excluded`` ones are left out now, and have copies. ``damaged`` items of the source
    are missing or were found damaged by its last check, if it records checksums; ``report`` is the result of its last
    integrity report. ``dead_tasks`` are tasks for this space that failed permanently, by queue. ``named`` are the first
    items of each kind at the source that people have to look at.
    """

    store: str
    space: str
    items: int
    bytes: int
    adopted_only: int | None
    vanished: int
    excluded: int
    last_run: int | None
    last_code: int | None
    oldest_read: int | None
    findings: Mapping[str, int]
    copies: Sequence[CopyStatus]
    damaged: int = 0
    report: ReportResult | None = None
    dead_tasks: Mapping[str, int] = {}
    named: Sequence[CopyFinding] = ()
    problem: str = ""

    @property
    def is_well(self) -> bool:
        """Whether every item has all its copies verified, and nothing waits for a person."""
        is_open = self.problem or self.findings or self.vanished or self.last_code or self.damaged or self.dead_tasks
        is_reported_well = self.report in (None, ReportResult.SUCCESS)
        return not is_open and is_reported_well and all(copy.is_well for copy in self.copies)


class OpenWork(msgspec.Struct, frozen=True, kw_only=True):
    """What waits or failed, as other parts of a node have it.

    ``holds`` are plans that wait for an approval, ``problems`` say why stores cannot be used, by store, and
    ``dead_tasks`` are those that failed permanently, by space and queue.
    """

    holds: Sequence[PendingApproval] = ()
    problems: Mapping[str, str] = {}
    dead_tasks: Mapping[str, Mapping[str, int]] = {}


class ProtectionStatus:
    """Reads the status of the spaces that *policies* copy; nothing is changed, and no item is examined.

    *latest* gives the last integrity report of a space in a store.
    """

    def __init__(
        self,
        engine: sa.Engine,
        policies: Policies,
        work: OpenWork,
        latest: Callable[[str, str], IntegrityReport | None],
        now: int,
    ) -> None:
        self._engine, self._manifest, self._catalog = engine, Manifest(engine), AdoptionCatalog(engine)
        self._policies, self._work, self._latest, self._now = policies, work, latest, now

    def spaces(self) -> Iterator[SpaceStatus]:
        """The status of every space that is copied, by name and source."""
        known = {space for _, space in self._manifest.spaces()} | {one.space for one in self._catalog.spaces()}
        known |= {space for policy in self._policies.by_account.values() for space in policy.spaces}
        for space in sorted(known):
            pairs = {pair: None for policy in self._policies.by_account.values() for pair in policy.lookup(space)}
            for source in sorted({pair.source for pair in pairs}):
                yield self._status(source, space, sorted(pair.destination for pair in pairs if pair.source == source))

    def _status(self, store: str, space: str, destinations: Sequence[str]) -> SpaceStatus:
        is_adopted = any((one.store, one.space) == (store, space) for one in self._catalog.spaces())
        totals = self._catalog.totals(store, space)
        size = (totals.items, totals.bytes) if is_adopted else self._manifest.size(store, space)
        coverage = copy_coverage if is_adopted else recorded_coverage
        known = self._catalog.space(store, space)
        kept = {name: kept_coverage(self._engine, store, space, name).damaged for name in destinations}
        covered = {name: coverage(self._engine, store, space, name) for name in destinations}
        return SpaceStatus(
            store=store,
            space=space,
            items=size[0],
            bytes=size[1],
            adopted_only=totals.computed if is_adopted else None,
            vanished=totals.vanished,
            excluded=totals.excluded,
            last_run=known.ended_at,
            last_code=known.exit_code,
            oldest_read=totals.oldest_read,
            findings=self._findings(store, space),
            damaged=0 if is_adopted else recorded_damage(self._engine, store, space),
            report=self._report(store, space, since=known.ended_at if is_adopted else None),
            dead_tasks=self._work.dead_tasks.get(space, {}),
            named=self._named_at_source(store, space, is_adopted=is_adopted),
            copies=[
                self._copy(found, store, space, name, kept[name], is_adopted=is_adopted)
                for name, found in covered.items()
            ],
            problem=self._work.problems.get(store, ""),
        )

    def _findings(self, store: str, space: str) -> Mapping[str, int]:
        return Counter(finding.kind for finding in self._catalog.findings(store, space))

    def _named_at_source(self, store: str, space: str, *, is_adopted: bool) -> Sequence[CopyFinding]:
        found = [CopyFinding(one.content_id, one.kind, one.detail) for one in self._catalog.findings(store, space)]
        if is_adopted:
            gone = self._catalog.vanished(store, space, limit=NAMED)
            found += [CopyFinding(item.content_id, VANISHED, "its copies are kept") for item in gone]
        else:
            found += name_recorded_damage(self._engine, store, space, NAMED)
        return _first_of_each_kind(found)

    def _named_copies(self, source: str, space: str, store: str, *, is_adopted: bool) -> Sequence[CopyFinding]:
        found = [CopyFinding(one.content_id, one.kind, one.detail) for one in self._catalog.findings(store, space)]
        found += name_uncovered(self._engine, source, space, store, is_adopted=is_adopted, limit=NAMED)
        report = self._latest(store, space)
        if report is not None:
            found += [CopyFinding(one.content_id, one.kind, one.detail) for one in report.findings]
            found += [CopyFinding(name, STRAY, "only this copy has it") for name in report.strays.first]
        return _first_of_each_kind(found)

    def _report(self, store: str, space: str, *, since: int | None) -> ReportResult | None:
        """The result of the last report, unless a run of `protect` *since* then has settled it (microseconds)."""
        report = self._latest(store, space)
        return None if report is None or (since is not None and report.ended_at < since) else report.result

    def _copy(
        self, found: CopyCoverage, source: str, space: str, store: str, kept_damaged: int, *, is_adopted: bool
    ) -> CopyStatus:
        return CopyStatus(
            store=store,
            items=found.items,
            verified=found.verified,
            pending=found.pending,
            damaged=found.damaged + kept_damaged,
            oldest_verified=found.oldest_verified,
            newest_verified=found.newest_verified,
            is_overdue=found.oldest_verified is not None and self._now - found.oldest_verified > OVERDUE,
            holds=[
                hold.number
                for hold in self._work.holds
                if (hold.source, hold.destination, hold.space) == (source, store, space)
            ],
            findings=self._findings(store, space),
            report=self._report(store, space, since=None),
            named=self._named_copies(source, space, store, is_adopted=is_adopted),
            problem=self._work.problems.get(store, ""),
            oldest_pending=found.oldest_pending,
            new=found.new,
        )


def _first_of_each_kind(found: Sequence[CopyFinding]) -> Sequence[CopyFinding]:
    """The first :data:`NAMED` of *found* of each kind, and each item once: as what it was found to be first."""
    once = {one.content_id: one for one in reversed(found)}
    first: list[CopyFinding] = []
    for kind in dict.fromkeys(one.kind for one in found):
        first += sorted((one for one in once.values() if one.kind == kind), key=lambda one: one.content_id)[:NAMED]
    return first
