"""How well each space is protected, from what is recorded: items, copies, when they were last read, what waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from millstream.mill.adoption.catalog import NO_ITEMS, AdoptedSpace, AdoptionCatalog
from millstream.mill.adoption.coverage import (
    NO_COPIES,
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
from millstream.mill.merge_join import groups
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.report import CopyFinding, IntegrityReport, ReportResult

Value = TypeVar("Value")
SpaceKey = tuple[str, str]
"""A store and a space of it."""

_CopyKey = tuple[str, str, str]
"""The store of the source, a space, and the store of the copy."""

_PAGE = 500
"""Spaces that are read together. Queries list them as values: of a JSON array (:func:`~millstream.core.sql_rows.among`)
MariaDB expects so few that it reads all items of the store for each of them."""

OVERDUE = 31 * 24 * 3600 * 1_000_000
"""A copy that was not read for longer (microseconds) is named, as runs once a day read all of them in 30 days. So is a
source that no run has read for longer."""

UNENDED = 3 * 24 * 3600 * 1_000_000
"""An adoption that began before this (microseconds) and did not end is named: it may have been killed."""

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
    did not end or is not known. ``is_overdue``: no run has read the source for 31 days; ``is_unended``: the last
    adoption began 3 days ago and has not ended. ``excluded`` items are left out now, and have copies. ``damaged``
    items of the source are missing or were found damaged by its last check, if it records checksums; ``report`` is the
    result of its last integrity report. ``dead_tasks`` are tasks for this space that failed permanently, by queue.
    ``named`` are the first items of each kind at the source that people have to look at.
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
    is_overdue: bool = False
    is_unended: bool = False

    @property
    def is_well(self) -> bool:
        """Whether every item has all its copies verified, and nothing waits for a person."""
        is_open = self.problem or self.findings or self.vanished or self.last_code or self.damaged or self.dead_tasks
        is_open = is_open or self.is_overdue or self.is_unended
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

    *reports* gives the last integrity reports of those of some spaces (store and name) that have one. Without *names*
    no items are named.
    """

    def __init__(
        self,
        engine: sa.Engine,
        policies: Policies,
        work: OpenWork,
        reports: Callable[[Sequence[SpaceKey]], Mapping[SpaceKey, IntegrityReport]],
        now: int,
        *,
        names: bool = True,
    ) -> None:
        self._manifest, self._catalog = Manifest(engine), AdoptionCatalog(engine)
        self._policies, self._work, self._reports, self._now, self._names = policies, work, reports, now, names

    def spaces(self) -> Iterator[SpaceStatus]:
        """The status of every space that is copied, by name and source."""
        adopted = {(one.store, one.space): one for one in self._catalog.spaces()}
        holds: dict[tuple[str, str, str], list[int]] = {}
        for hold in self._work.holds:
            holds.setdefault((hold.source, hold.destination, hold.space), []).append(hold.number)
        for page in groups(self._copied({space for _, space in adopted}), _PAGE):
            rows = _SpaceRows(self._catalog, self._manifest, page, adopted, names=self._names)
            reports = self._reports([key for one in page for key in one.keys])
            for one in page:
                yield self._status(one, rows, reports, holds, adopted.get(one.key))

    def _copied(self, adopted: Set[str]) -> Iterator[_CopiedSpace]:
        """What is copied: every space with each of its sources; *adopted* are the names of adopted spaces."""
        known = {space for _, space in self._manifest.spaces()} | adopted
        known |= {space for policy in self._policies.by_account.values() for space in policy.spaces}
        for space in sorted(known):
            pairs = {pair: None for policy in self._policies.by_account.values() for pair in policy.lookup(space)}
            for source in sorted({pair.source for pair in pairs}):
                copies = sorted(pair.destination for pair in pairs if pair.source == source)
                yield _CopiedSpace(source, space, copies)

    def _status(
        self,
        copied: _CopiedSpace,
        rows: _SpaceRows,
        reports: Mapping[SpaceKey, IntegrityReport],
        holds: Mapping[tuple[str, str, str], Sequence[int]],
        adopted: AdoptedSpace | None,
    ) -> SpaceStatus:
        store, space, key = copied.store, copied.space, copied.key
        totals, known = rows.totals.get(key, NO_ITEMS), adopted or AdoptedSpace(store, space)
        size = (totals.items, totals.bytes) if adopted else rows.sizes.get(key, (0, 0))
        return SpaceStatus(
            store=store,
            space=space,
            items=size[0],
            bytes=size[1],
            adopted_only=totals.computed if adopted else None,
            vanished=totals.vanished,
            excluded=totals.excluded,
            last_run=known.ended_at,
            last_code=known.exit_code,
            oldest_read=totals.oldest_read,
            findings=rows.findings_by_kind(key),
            damaged=rows.damage.get(key, 0),
            report=_result(reports.get(key), since=known.ended_at),
            dead_tasks=self._work.dead_tasks.get(space, {}),
            named=rows.named_at_source(key) if self._names else (),
            copies=[
                self._copy(rows, copied, name, reports.get((name, space)), holds.get((store, name, space), ()))
                for name in copied.copies
            ],
            problem=self._work.problems.get(store, ""),
            is_overdue=known.ended_at is not None and self._now - known.ended_at > OVERDUE,
            is_unended=_is_unended(known, self._now),
        )

    def _copy(
        self, rows: _SpaceRows, copied: _CopiedSpace, store: str, report: IntegrityReport | None, holds: Sequence[int]
    ) -> CopyStatus:
        where = copied.store, copied.space, store
        found, kept = rows.coverage.get(where, NO_COPIES), rows.kept.get(where, NO_COPIES)
        return CopyStatus(
            store=store,
            items=found.items,
            verified=found.verified,
            pending=found.pending,
            damaged=found.damaged + kept.damaged,
            oldest_verified=found.oldest_verified,
            newest_verified=found.newest_verified,
            is_overdue=found.oldest_verified is not None and self._now - found.oldest_verified > OVERDUE,
            holds=list(holds),
            findings=rows.findings_by_kind((store, copied.space)),
            report=_result(report, since=None),
            named=rows.named_copies(where, report) if self._names else (),
            problem=self._work.problems.get(store, ""),
            oldest_pending=found.oldest_pending,
            new=found.new,
        )


class _CopiedSpace(NamedTuple):
    """A *space* of the source *store*, and the stores of its *copies*, sorted."""

    store: str
    space: str
    copies: Sequence[str]

    @property
    def key(self) -> SpaceKey:
        return self.store, self.space

    @property
    def keys(self) -> Iterator[SpaceKey]:
        """The source and the copies."""
        return ((store, self.space) for store in (self.store, *self.copies))


class _SpaceRows:
    """What the database has of the spaces of a *page*: a fixed number of statements for each pair of stores, as one
    statement for each space would take minutes for thousands of them. Spaces without rows are left out."""

    def __init__(
        self,
        catalog: AdoptionCatalog,
        manifest: Manifest,
        page: Sequence[_CopiedSpace],
        adopted: Container[SpaceKey],
        *,
        names: bool,
    ) -> None:
        engine = catalog.engine
        sources, recorded, everywhere = (defaultdict[str, dict[str, None]](dict) for _ in range(3))
        pairs = defaultdict[tuple[str, str, bool], list[str]](list)
        for one in page:
            sources[one.store][one.space] = None
            if one.key not in adopted:
                recorded[one.store][one.space] = None
            for store, space in one.keys:
                everywhere[store][space] = None
            for copy in one.copies:
                pairs[one.store, copy, one.key in adopted].append(one.space)
        self.totals, self.sizes = _by_space(catalog.totals_of, sources), _by_space(manifest.sizes, recorded)
        self.damage = _by_space(partial(recorded_damage, engine), recorded)
        self._findings = _by_space(catalog.findings_of, everywhere)
        self.coverage, self.kept = dict[_CopyKey, CopyCoverage](), dict[_CopyKey, CopyCoverage]()
        for (source, copy, is_adopted), spaces in pairs.items():
            coverage = copy_coverage if is_adopted else recorded_coverage
            found = coverage(engine, source, spaces, copy)
            self.coverage |= {(source, space, copy): one for space, one in found.items()}
            found = kept_coverage(engine, source, spaces, copy)
            self.kept |= {(source, space, copy): one for space, one in found.items()}
        if names:
            self._name(catalog, adopted, pairs)

    def _name(
        self,
        catalog: AdoptionCatalog,
        adopted: Container[SpaceKey],
        pairs: Mapping[tuple[str, str, bool], Sequence[str]],
    ) -> None:
        """Name the first items that are not in order, of the spaces that have such items."""
        engine = catalog.engine
        damaged, vanished = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for store, space in self.damage:
            damaged[store].append(space)
        for (store, space), totals in self.totals.items():
            if totals.vanished and (store, space) in adopted:
                vanished[store].append(space)
        self._damaged = _by_space(partial(name_recorded_damage, engine, limit=NAMED), damaged)
        self._vanished = _by_space(partial(catalog.vanished_names, limit=NAMED), vanished)
        self._uncovered = dict[_CopyKey, list[CopyFinding]]()
        for (source, copy, is_adopted), spaces in pairs.items():
            some = [space for space in spaces if self._is_uncovered((source, space, copy))]
            if some:
                named = name_uncovered(engine, source, some, copy, is_adopted=is_adopted, limit=NAMED)
                self._uncovered |= {(source, space, copy): found for space, found in named.items()}

    def _is_uncovered(self, where: _CopyKey) -> bool:
        found, kept = self.coverage.get(where, NO_COPIES), self.kept.get(where, NO_COPIES)
        return bool(found.pending or found.damaged or kept.damaged)

    def findings_by_kind(self, key: SpaceKey) -> Mapping[str, int]:
        """The number of findings of each kind."""
        return Counter(finding.kind for finding in self._findings.get(key, ()))

    def named_at_source(self, key: SpaceKey) -> Sequence[CopyFinding]:
        """The first items of each kind that are not in order at the source."""
        gone = [CopyFinding(name, VANISHED, "its copies are kept") for name in self._vanished.get(key, ())]
        return _first_of_each_kind([*self._named_findings(key), *gone, *self._damaged.get(key, ())])

    def named_copies(self, where: _CopyKey, report: IntegrityReport | None) -> Sequence[CopyFinding]:
        """The first items of each kind that are not in order in a copy, by the records and by its last *report*."""
        _, space, store = where
        found = [*self._named_findings((store, space)), *self._uncovered.get(where, ())]
        if report is not None:
            found += [CopyFinding(one.content_id, one.kind, one.detail) for one in report.findings]
            found += [CopyFinding(name, STRAY, "only this copy has it") for name in report.strays.first]
        return _first_of_each_kind(found)

    def _named_findings(self, key: SpaceKey) -> Sequence[CopyFinding]:
        return [CopyFinding(one.content_id, one.kind, one.detail) for one in self._findings.get(key, ())]


def _by_space(
    read: Callable[[str, Sequence[str]], Mapping[str, Value]], spaces: Mapping[str, Iterable[str]]
) -> Mapping[SpaceKey, Value]:
    """What *read* gives of the *spaces* of each store, by store and space."""
    return {(store, space): one for store, some in spaces.items() for space, one in read(store, list(some)).items()}


def _result(report: IntegrityReport | None, *, since: int | None) -> ReportResult | None:
    """The result of the last report, unless a run of `protect` *since* then has settled it (microseconds)."""
    return None if report is None or (since is not None and report.ended_at < since) else report.result


def _is_unended(space: AdoptedSpace, now: int) -> bool:
    """Whether the adoption of *space* that began last should have ended by *now*, and did not."""
    begun, ended = space.begun_at, space.ended_at
    return begun is not None and (ended is None or ended < begun) and not space.exit_code and now - begun > UNENDED


def _first_of_each_kind(found: Sequence[CopyFinding]) -> Sequence[CopyFinding]:
    """The first :data:`NAMED` of *found* of each kind, and each item once: as what it was found to be first."""
    once = {one.content_id: one for one in reversed(found)}
    first: list[CopyFinding] = []
    for kind in dict.fromkeys(one.kind for one in found):
        first += sorted((one for one in once.values() if one.kind == kind), key=lambda one: one.content_id)[:NAMED]
    return first
