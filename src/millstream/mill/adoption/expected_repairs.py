"""Which copies a run would find damaged or lost, and which of them it would repair; nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.lost_copies import find_lost
from millstream.mill.adoption.verification import CopyChecker, is_bad, stray_finding
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity.sweep import ItemToCheck, listed_or_known
from millstream.mill.integrity_outcomes import CheckRow
from millstream.mill.manifest import CheckResult
from millstream.mill.merge_join import groups
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import CopyFinding

_GROUP = 1000
_TOGETHER = 100


class ExpectedRepairs(msgspec.Struct):
    """The copies in one store that would be repaired, and those that would stay as they are, with the reasons."""

    repairs: list[CopyFinding] = msgspec.field(default_factory=list)
    findings: list[CopyFinding] = msgspec.field(default_factory=list)


class RepairForecast:
    """Reads the copies of *space* as a run that reads all of them does, and asks *repairer* for its plans."""

    def __init__(
        self, target: AdoptionTarget, providers: ConfiguredStores, checker: CopyChecker, repairer: Repairer, space: str
    ) -> None:
        self._target, self._providers, self._space = target, providers, space
        self._checker, self._repairer = checker, repairer

    def forecast(
        self, store: str, *, skip: Collection[str] = (), updated: Collection[str] = (), threads: int = 4
    ) -> ExpectedRepairs:
        """The findings to expect in *store*, without the items of *skip*. Those of *updated* get their properties
        anyway.

        Raises :class:`~millstream.stores.StoreError` where the store cannot be listed.
        """
        found = ExpectedRepairs()
        manifest = self._target.manifest
        lost = [one for one in find_lost(self._providers, manifest, store, self._space) if one.content_id not in skip]
        self._settle_lost(store, lost, found)
        passed = {*skip, *(one.content_id for one in lost)}
        items = listed_or_known(self._providers, manifest, store, self._space, self._checker.audit_lookup)
        with ThreadPoolExecutor(threads, thread_name_prefix="mill-forecast") as pool:
            for group in groups((item for item in items if item.content_id not in passed), _GROUP):
                due = list(self._unchanged(group))
                check = partial(self._checker.check_many, store, self._space)
                for results in pool.map(check, groups(due, _TOGETHER)):
                    for result in filter(is_bad, results):
                        if result.row != CheckRow.PROPERTIES_DIFFER or result.content_id not in updated:
                            self._settle(result, found)
        found.repairs.sort(key=lambda one: one.content_id)
        return found

    def _settle_lost(self, store: str, lost: Sequence[CopyFinding], found: ExpectedRepairs) -> None:
        """A lost copy is copied again from a source that is in order, else it is repaired from another copy."""
        adopted = self._target.catalog.get_many(self._target.store, self._space, [one.content_id for one in lost])
        for one in lost:
            item = adopted.get(one.content_id)
            if item is not None and item.is_there and item.suspected is None:
                found.repairs.append(one)
            else:
                self._add(store, one, found)

    def _unchanged(self, items: Sequence[ItemToCheck]) -> Iterator[ItemToCheck]:
        """Those of *items* that the run would not copy, replace or delete before it reads them."""
        names = [item.content_id for item in items]
        adopted = self._target.catalog.get_many(self._target.store, self._space, names)
        at_source = self._target.manifest.get_many(self._target.store, self._space, names)
        for item in items:
            known, row = adopted.get(item.content_id), at_source.get(item.content_id)
            is_replaced = known is not None and item.row is not None and item.row.sha256 != known.sha256
            is_deleted = known is None and row is not None and row.deleted
            if not is_replaced and not is_deleted:
                yield item

    def _settle(self, result: CheckResult, found: ExpectedRepairs) -> None:
        stray = stray_finding(self._target, result)
        if stray is not None:
            found.findings.append(stray)
            return
        one = CopyFinding(result.content_id, result.kind, result.detail)
        if result.row in (CheckRow.SHARED_FILE, CheckRow.PROPERTIES_DIFFER):
            found.repairs.append(one)
        else:
            self._add(result.store, one, found)

    def _add(self, store: str, one: CopyFinding, found: ExpectedRepairs) -> None:
        plan = self._repairer.plan(self._space, one.content_id)
        if any(action.store == store for action in plan.actions):
            found.repairs.append(one)
            return
        detail = "; ".join([one.detail, *(f"would not be repaired: {reason}" for reason in plan.reasons)])
        found.findings.append(CopyFinding(one.content_id, one.kind, detail))
