"""Protecting a space that other programs write: adopt it, copy it, verify the copies, and say what is missing.

Nothing in here decides by itself: the adoption says what there is, the plan what differs, the change guard what may be
done unasked, and the verification what a copy is worth. Running it again does what is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from millstream.mill.adoption.adopter import READ_PERIOD, Adopter, ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionSummary, AdoptionTarget
from millstream.mill.adoption.catalog import AdoptionFinding
from millstream.mill.adoption.checksum_files import ChecksumList
from millstream.mill.adoption.coverage import NO_COPIES, copy_coverage, kept_coverage, verification_times
from millstream.mill.adoption.deletions import count_kept, forget_followed, forget_renamed
from millstream.mill.adoption.lost_copies import find_lost, repaired
from millstream.mill.adoption.renames import copy_renamed
from millstream.mill.adoption.unknown_copies import (
    UnknownCopies,
    as_copy_findings,
    examine_unknown,
    record_source,
    set_aside_outdated,
    take_over,
)
from millstream.mill.adoption.verification import CopyVerifier, Verified, due_since
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.direct import DirectDuplicator
from millstream.mill.duplication.planning import GROUP, plan_space_duplication, put_items
from millstream.mill.integrity.space_reports import Reporter
from millstream.mill.merge_join import groups
from millstream.mill.policies.policy import Pair
from millstream.mill.reports.report import CopyFinding
from millstream.mill.tasks import Duplicate, decode_task
from millstream.queue.protocol import WorkQueue
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import StoreError
from millstream.stores.sources import exclusion_of


class Progress(NamedTuple):
    """Whom a run tells how far it is: of items adopted, of tasks to be done, and of copies verified."""

    adopting: Callable[[AdoptionSummary], object]
    working: Callable[[], object]
    verifying: Callable[[str, int, int], object]


class CopyReport(msgspec.Struct, kw_only=True):
    """The copy of a space in one store after a run, in items.

    ``pending`` items have no copy of the adopted version there, ``damaged`` copies are not in order or were not read.
    ``repairs`` are the copies that were lost or damaged, and are in order again: ``repaired`` is how many, and
    ``copied`` counts those among them that were copied from the source. ``taken_over`` items were there without a
    record, and are what was adopted.
    ``hold`` is the number under which the plan waits for an approval, ``held`` are copies of items that vanished
    without a record. ``error`` says why the store could not be used.
    """

    store: str
    url: str
    verified: int = 0
    pending: int = 0
    damaged: int = 0
    copied: int = 0
    deleted: int = 0
    read: int = 0
    repaired: int = 0
    taken_over: int = 0
    held: int = 0
    hold: int | None = None
    oldest_verified: int | None = None
    newest_verified: int | None = None
    findings: list[CopyFinding] = []
    repairs: list[CopyFinding] = []
    error: str = ""


class ProtectionReport(msgspec.Struct, kw_only=True):
    """A space and its copies after a run. ``adopted_only`` items have only the checksum of their adoption.

    ``vanished_items`` are the ids of those that vanished. Their deletion is not followed while the folder ``unlisted``
    cannot be listed. ``exclude`` are the globs of what is left out, ``excluded``
    the items among that which were adopted before: their copies are kept.
    """

    store: str
    space: str
    url: str
    items: int = 0
    bytes: int = 0
    adopted_only: int = 0
    vanished: int = 0
    vanished_items: Sequence[str] = ()
    unlisted: str = ""
    excluded: int = 0
    exclude: Sequence[str] = ()
    oldest_read: int | None = None
    adoption: AdoptionSummary = msgspec.field(default_factory=AdoptionSummary)
    findings: Sequence[AdoptionFinding] = ()
    copies: list[CopyReport] = []
    error: str = ""

    @property
    def is_emptied(self) -> bool:
        """Whether everything that was adopted has vanished, as where a disk is not mounted."""
        return not self.items and bool(self.vanished)

    @property
    def is_damaged(self) -> bool:
        """Whether anything is wrong that no approval settles."""
        return bool(self.error or self.findings) or any(
            copy.error or copy.findings or copy.damaged or (copy.pending and copy.hold is None) for copy in self.copies
        )

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for a person's approval."""
        return bool(self.vanished) or any(copy.hold is not None or copy.held for copy in self.copies)

    @property
    def exit_code(self) -> int:
        """0 where every item has all its copies verified, 5 where only approvals are missing, 1 otherwise."""
        return 1 if self.is_damaged else 5 if self.is_waiting else 0


class ProtectionParts(NamedTuple):
    """The parts of a run; *work* completes the tasks on *queue*, *direct* processes items without a queue."""

    target: AdoptionTarget
    providers: ConfiguredStores
    guard: ChangeGuard
    queue: WorkQueue
    work: Callable[[], object]
    verifier: CopyVerifier
    reporter: Reporter
    outbox: AuditOutbox | None = None
    direct: DirectDuplicator | None = None


class Protection:
    """Brings the copies of *space* in the stores *destinations* in line with its source, and verifies them."""

    def __init__(self, parts: ProtectionParts, space: str, destinations: Sequence[str], *, threads: int = 4) -> None:
        self._parts, self._space, self._threads = parts, space, threads
        self._target, self._catalog = parts.target, parts.target.catalog
        self._pairs = [Pair(parts.target.store, name) for name in destinations]

    def run(
        self,
        progress: Progress,
        *,
        reading: ReadExtent = ReadExtent.SHARE,
        checksums: ChecksumList | None = None,
        replace: bool = False,
    ) -> ProtectionReport:
        """Adopt, copy, verify, and report. What cannot be done is in the report, and does not hinder the rest.

        With *replace*, items that a store held before this node wrote to it are replaced where they differ.
        """
        report = ProtectionReport(store=self._target.store, space=self._space, url=self._target.source.url)
        known = self._catalog.space(self._target.store, self._space)
        before = known.ended_at
        was_killed = known.exit_code is None and known.begun_at is not None
        self._keep_exit_code(1 if was_killed else known.exit_code or None)
        copies = {pair: self._copy_report(pair) for pair in self._pairs}
        report.copies = list(copies.values())
        touched: Sequence[str] = ()
        lost: dict[Pair, list[CopyFinding]] = {}
        unknown: dict[Pair, UnknownCopies] = {}
        try:
            adopter = Adopter(self._target, threads=self._threads)
            report.adoption = adopter.adopt(
                self._space, reading=reading, checksums=checksums, on_progress=progress.adopting
            )
            if report.adoption.listed:
                report.unlisted = forget_followed(self._target, self._space)
            touched = adopter.touched
        except StoreError as error:
            report.error = str(error)
        if not report.error:
            unknown = self._take_over(copies, replace=replace)
            lost = self._find_lost(copies)
            for pair, found in unknown.items():
                lost[pair] = [*lost.get(pair, ()), *found.outdated]
            self._copy_renamed(copies)
            self._duplicate(copies, progress, touched, unknown)
        for pair, copy in copies.items():
            also = self._verify(pair, copy, self._share(before, reading), progress, lost.get(pair, []))
            for other in self._pairs:
                lost[other] = [*lost.get(other, ()), *also.get(other.destination, ())]
        if not report.error and self._forget_renamed(copies):
            self._duplicate(copies, progress, (), unknown)
        self._complete(report, copies)
        self._keep_exit_code(report.exit_code)
        return report

    def _keep_exit_code(self, code: int | None) -> None:
        """The status tells it later. None replaces code 0 while a run is active, so that the next run knows if this one
        ended; a worse code stays until a run ends."""
        known = self._catalog.space(self._target.store, self._space)
        self._catalog.save_space(msgspec.structs.replace(known, exit_code=code))

    def _copy_report(self, pair: Pair) -> CopyReport:
        copy = CopyReport(store=pair.destination, url="", findings=[], repairs=[])
        try:
            provider = self._parts.providers[pair.destination]
            copy.url = provider.url
            self._parts.providers.call(lambda: provider.has_space(self._space))
        except StoreError as error:
            copy.error = str(error)
        return copy

    def _take_over(self, copies: dict[Pair, CopyReport], *, replace: bool) -> dict[Pair, UnknownCopies]:
        """Record again what lost its record; copies that cannot be verified are left unchanged.

        All stores are read before anything is recorded, so that no record of this run speaks for another store.
        """
        record_source(self._target, self._space)
        unknown: dict[Pair, UnknownCopies] = {}
        for pair, copy in copies.items():
            if copy.error:
                continue
            try:
                unknown[pair] = found = examine_unknown(
                    self._target, self._parts.providers, self._space, pair.destination, threads=self._threads
                )
                set_aside_outdated(self._parts.providers, self._space, pair.destination, found)
            except StoreError as error:
                copy.error = str(error)
                unknown.pop(pair, None)
        for pair, found in unknown.items():
            if replace:
                found.differing.clear()
            take_over(self._target, self._space, pair.destination, found)
            copies[pair].taken_over = len(found.same)
            copies[pair].findings += as_copy_findings(found.differing)
        return unknown

    def _find_lost(self, copies: dict[Pair, CopyReport]) -> dict[Pair, list[CopyFinding]]:
        """Lost items according to the listing of each copy, before they are copied again."""
        lost: dict[Pair, list[CopyFinding]] = {}
        for pair, copy in copies.items():
            if copy.error:
                continue
            try:
                found = find_lost(self._parts.providers, self._target.manifest, pair.destination, self._space)
                lost[pair] = list(found)
            except StoreError as error:
                copy.error = str(error)
        return lost

    def _copy_renamed(self, copies: dict[Pair, CopyReport]) -> None:
        for pair, copy in copies.items():
            if not copy.error:
                copy.copied += copy_renamed(self._target, self._parts.providers, self._space, pair.destination)

    def _forget_renamed(self, copies: dict[Pair, CopyReport]) -> bool:
        if any(copy.error for copy in copies.values()):
            return False
        return bool(forget_renamed(self._target, self._space, [pair.destination for pair in copies]))

    def _duplicate(
        self,
        copies: dict[Pair, CopyReport],
        progress: Progress,
        touched: Sequence[str],
        unknown: dict[Pair, UnknownCopies],
    ) -> None:
        """Plan and do what differs, and set the properties of *touched* items and of those that were taken over.

        *unknown* copies that differ are left alone. What could not be done becomes a finding of its copy.
        """
        first = max((task.task_id for task in self._parts.queue.dead(limit=1_000_000)), default=0)
        for pair, copy in copies.items():
            if copy.error:
                continue
            found = unknown.get(pair, UnknownCopies())
            skip = {one.content_id for one in found.differing}
            try:
                plan = plan_space_duplication(
                    self._parts.providers, self._target.manifest, pair, self._space, self._parts.queue,
                    change_guard=self._parts.guard, outbox=self._parts.outbox, skip=skip, direct=self._parts.direct,
                )  # fmt: skip
            except StoreError as error:
                copy.error = str(error)
                continue
            copy.hold = plan.hold
            copy.held = max(0, plan.held - count_kept(self._target, self._space, pair.destination))
            if plan.hold is None:
                copy.copied += plan.copies + plan.replaced
                copy.deleted += plan.deletes
                names = {*touched, *found.same} - skip
                for some in groups(sorted(names), GROUP):
                    put_items(pair, self._space, some, self._parts.queue)
        progress.working()
        self._parts.work()
        self._settle_dead(copies, first)

    def _settle_dead(self, copies: dict[Pair, CopyReport], after: int) -> None:
        """Tasks of this space that failed permanently: they are said here, and the next plan finds them again."""
        ours = []
        for dead in self._parts.queue.dead(limit=1_000_000, after=after):
            task = decode_task(dead.body)
            if not isinstance(task, Duplicate) or task.space != self._space:
                continue
            copy = copies.get(Pair(task.source, task.destination))
            if copy is not None:
                copy.findings.append(CopyFinding(task.content_id, "not copied", dead.cause))
                copy.copied -= self._is_missing(task)  # it was counted when it was planned
                ours.append(dead.task_id)
        if ours:
            self._parts.queue.discard(ours)

    def _is_missing(self, task: Duplicate) -> bool:
        """Whether the destination of *task* has no copy of the item as it is at the source."""
        rows = self._target.manifest
        source, copy = (rows.get(store, task.space, task.content_id) for store in (task.source, task.destination))
        if source is None or source.deleted:
            return False
        return copy is None or copy.deleted or copy.sha256 != source.sha256

    def _share(self, before: int | None, reading: ReadExtent) -> float | None:
        """The share of the copies that is read again; None where all of them are."""
        if reading == ReadExtent.ALL:
            return None
        now = self._target.clock.now()
        return min(1.0, max(0, now - before) / READ_PERIOD) if before is not None else 0.0

    def _verify(
        self, pair: Pair, copy: CopyReport, share: float | None, progress: Progress, lost: list[CopyFinding]
    ) -> dict[str, list[CopyFinding]]:
        """Verify one copy; returns the copies in other stores, by store, that were repaired together with its own."""
        if copy.error:
            return {}
        store, now = pair.destination, self._target.clock.now()
        times = verification_times(self._catalog.engine, store, self._space)
        since = now if share is None else due_since(times, share, now, READ_PERIOD)
        total = self._target.manifest.count(store, self._space)
        try:
            verified = self._parts.verifier.verify(
                store, self._space, since=since, threads=self._threads,
                on_progress=lambda done: progress.verifying(store, done, total),
            )  # fmt: skip
        except StoreError as error:
            copy.error = str(error)
            return {}
        copy.read += verified.read
        left_alone = {one.content_id for one in self._catalog.findings(store, self._space)}
        copy.findings += [one for one in verified.findings if one.content_id not in left_alone]
        named = {one.content_id for one in (*copy.findings, *verified.repairs)}
        again = repaired(self._target.manifest, store, self._space, lost)
        copy.repairs += verified.repairs + [one for one in again if one.content_id not in named]
        copy.repairs.sort(key=lambda one: one.content_id)
        copy.repaired = len(copy.repairs)
        verified.tally.repaired = copy.repairs
        self._report(store, verified, now)
        return verified.elsewhere

    def _report(self, store: str, verified: Verified, since: int) -> None:
        until = self._target.clock.now()
        made = self._parts.reporter.make(verified.tally, store, self._space, since=since, until=until)
        self._parts.reporter.keep(made)

    def _complete(self, report: ProtectionReport, copies: dict[Pair, CopyReport]) -> None:
        """Count what there is now."""
        totals = self._catalog.totals(self._target.store, self._space)
        report.items, report.bytes, report.adopted_only = totals.items, totals.bytes, totals.computed
        report.vanished, report.oldest_read = totals.vanished, totals.oldest_read
        gone = self._catalog.vanished(self._target.store, self._space) if totals.vanished else ()
        report.vanished_items = [item.content_id for item in gone]
        report.excluded, report.exclude = totals.excluded, exclusion_of(self._target.source).globs
        report.findings = self._catalog.findings(self._target.store, self._space)
        for pair, copy in copies.items():
            where = self._catalog.engine, self._target.store, [self._space], pair.destination
            found = copy_coverage(*where).get(self._space, NO_COPIES)
            copy.verified, copy.pending, copy.damaged = found.verified, found.pending, found.damaged
            copy.damaged += kept_coverage(*where).get(self._space, NO_COPIES).damaged
            copy.oldest_verified, copy.newest_verified = found.oldest_verified, found.newest_verified


def findings_of(report: ProtectionReport) -> Iterator[tuple[str, str, str, str]]:
    """Everything that is wrong: where, the id, the kind, and the detail."""
    for found in report.findings:
        yield report.store, found.content_id, found.kind, found.detail
    for copy in report.copies:
        for one in copy.findings:
            yield copy.store, one.content_id, one.kind, one.detail
