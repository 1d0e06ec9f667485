"""The plan of a run of ``millstream protect``, computed without changes.

A run is made on a copy of the node's tables, up to the point at which copies would be written. Where everything is read
and nothing changes meanwhile, what it says is what the run does.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.sqlite_file import explained
from millstream.mill.adoption.adopted_store import AdoptedStore
from millstream.mill.adoption.adopter import Adopter, ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionSummary, AdoptionTarget
from millstream.mill.adoption.catalog import AdoptionCatalog, AdoptionFinding
from millstream.mill.adoption.checksum_files import ChecksumList
from millstream.mill.adoption.deletions import count_kept, forget_followed
from millstream.mill.adoption.expected_repairs import RepairForecast
from millstream.mill.adoption.unknown_copies import (
    UnknownCopies,
    as_copy_findings,
    examine_unknown,
    record_source,
    take_over,
)
from millstream.mill.adoption.verification import CopyChecker
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.change_guard import ChangeBudgets, ChangeGuard
from millstream.mill.duplication.differences import DuplicationPlan, count_differences
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import CopyFinding
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import Store


class CopyPlan(msgspec.Struct, kw_only=True):
    """The planned changes of the copy of a space in one store, in numbers of items; nothing of it where ``is_held``.

    ``unread`` copies were not read. Where all were, ``repairs`` are those that would be repaired, ``findings`` those
    that would stay as they are, and ``taken_over`` items are there without a record and are what is adopted.
    """

    store: str
    url: str
    copies: int
    replaced: int
    deletes: int
    held: int
    bytes: int
    is_held: bool
    unread: int = 0
    taken_over: int = 0
    repairs: list[CopyFinding] = []
    findings: list[CopyFinding] = []


class ProtectionPlan(msgspec.Struct, kw_only=True):
    """The plan of a run. ``adoption.unread`` items were not read, so that it is unknown whether they are intact."""

    store: str
    space: str
    url: str
    items: int
    bytes: int
    vanished: int
    adoption: AdoptionSummary
    findings: Sequence[AdoptionFinding]
    copies: Sequence[CopyPlan]

    @property
    def exit_code(self) -> int:
        """1 where the run would find something that no approval settles, 5 where something would wait for one."""
        if self.findings or any(copy.findings for copy in self.copies):
            return 1
        return 5 if self.vanished or any(copy.is_held or copy.held for copy in self.copies) else 0


class DryRun:
    """Plans the protection of spaces of *source*, called *store*, in *copies* (URLs and stores by name).

    *database* is the node's, or None where there is no node yet; *scratch* is a folder for a copy of it. The stores
    *audited* have an audit log there.
    """

    def __init__(
        self,
        source: Store,
        store: str,
        copies: Mapping[str, tuple[str, Store]],
        *,
        database: Path | None,
        scratch: Path,
        clock: Clock,
        budgets: ChangeBudgets,
        audited: Collection[str] = (),
    ) -> None:
        self._source, self._store = source, store
        self._urls = {name: url for name, (url, _) in copies.items()}
        self._copies = {name: opened for name, (_, opened) in copies.items()}
        self._database, self._scratch, self._clock, self._budgets = database, scratch, clock, budgets
        self._audited = frozenset(audited)

    def plan(
        self,
        space: str,
        *,
        reading: ReadExtent = ReadExtent.NONE,
        checksums: ChecksumList | None = None,
        deletions: str | None = None,
        threads: int = 4,
    ) -> ProtectionPlan:
        """The plan of a run now. Raises :class:`~millstream.stores.StoreError` where the source cannot be listed."""
        with self._copied_database() as engine:
            catalog, manifest = AdoptionCatalog(engine), Manifest(engine, self._clock)
            target = AdoptionTarget(self._source, self._store, catalog, manifest, self._clock)
            if deletions is not None:
                known = catalog.space(self._store, space)
                catalog.save_space(msgspec.structs.replace(known, deletions=deletions))
            adopter = Adopter(target, threads=threads)
            found = adopter.adopt(space, reading=reading, checksums=checksums)
            if found.listed:
                forget_followed(target, space)
            stores = {self._store: AdoptedStore(self._source, self._store, catalog), **self._copies}
            providers = ConfiguredStores(stores, self._clock)
            guard = ChangeGuard(engine, self._clock, manifest.count, self._budgets)
            unknown = dict[str, UnknownCopies]()
            if reading == ReadExtent.ALL:
                unknown = self._take_over(target, providers, space, threads)
            plans = {
                name: count_differences(
                    providers, manifest, Pair(self._store, name), space,
                    skip={one.content_id for one in unknown.get(name, UnknownCopies()).differing},
                )
                for name in self._copies
            }  # fmt: skip
            renamed = sum(item.renamed_to is not None for item in catalog.vanished(self._store, space))
            copies = [
                self._copy_plan(plan, guard, renamed, count_kept(target, space, name)) for name, plan in plans.items()
            ]
            if reading == ReadExtent.ALL:
                forecaster = self._forecaster(engine, target, providers, space)
                for copy in copies:
                    self._forecast(copy, unknown[copy.store], forecaster, adopter.touched, threads)
            else:
                for copy in copies:
                    copy.unread = manifest.count(copy.store, space)
            totals = catalog.totals(self._store, space)
            return ProtectionPlan(
                store=self._store,
                space=space,
                url=self._source.url,
                items=totals.items,
                bytes=totals.bytes,
                vanished=totals.vanished - renamed,
                adoption=found,
                findings=catalog.findings(self._store, space),
                copies=copies,
            )

    def _take_over(
        self, target: AdoptionTarget, providers: ConfiguredStores, space: str, threads: int
    ) -> dict[str, UnknownCopies]:
        """Record items of the copies that have no record in the copied tables, as a run would."""
        record_source(target, space)
        unknown = {name: examine_unknown(target, providers, space, name, threads=threads) for name in self._copies}
        for name, found in unknown.items():
            take_over(target, space, name, found)
        return unknown

    def _forecaster(
        self, engine: sa.Engine, target: AdoptionTarget, providers: ConfiguredStores, space: str
    ) -> RepairForecast:
        lookup = AuditLookup(AuditLog(engine), AuditOutbox(engine, self._clock), self._audited & {*self._copies})
        checker = CopyChecker(target, BitChecker(providers, target.manifest, lookup))
        repairer = Repairer(
            providers,
            target.manifest,
            RepairLog(engine),
            sources=lambda _: frozenset({self._store}),
            audit_lookup=lookup,
        )
        return RepairForecast(target, providers, checker, repairer, space)

    @staticmethod
    def _forecast(
        copy: CopyPlan, unknown: UnknownCopies, forecaster: RepairForecast, touched: Sequence[str], threads: int
    ) -> None:
        """Add to *copy* what reading every copy shows."""
        differing = list(as_copy_findings(unknown.differing))
        skip = {one.content_id for one in (*differing, *unknown.outdated)}
        updated = {*touched, *unknown.same}
        expected = forecaster.forecast(copy.store, skip=skip, updated=updated, threads=threads)
        copy.taken_over = len(unknown.same)
        copy.repairs = [*unknown.outdated, *expected.repairs]
        copy.findings = [*differing, *expected.findings]

    def _copy_plan(self, plan: DuplicationPlan, guard: ChangeGuard, renamed: int, kept: int) -> CopyPlan:
        held = guard.check(plan) is not None
        return CopyPlan(
            store=plan.pair.destination,
            url=self._urls[plan.pair.destination],
            copies=plan.copies,
            replaced=plan.replaced,
            deletes=plan.deletes + (0 if held else renamed),
            held=max(0, plan.held - renamed - kept),
            bytes=plan.bytes,
            is_held=held,
        )

    @contextlib.contextmanager
    def _copied_database(self) -> Iterator[sa.Engine]:
        path = self._scratch / "plan.db"
        if self._database is not None and self._database.exists():
            with (
                explained(self._database),
                contextlib.closing(sqlite3.connect(f"{self._database.absolute().as_uri()}?mode=ro", uri=True)) as node,
                contextlib.closing(sqlite3.connect(path)) as copy,
            ):
                node.backup(copy)
        engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        try:
            yield engine
        finally:
            engine.dispose()
