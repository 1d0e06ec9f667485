"""Verifying copies by their bytes: those that were not read yet, and a share of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.errors import MillstreamError
from millstream.core.shown_commands import arguments
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.catalog import AdoptedItem
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplication_decision import clean_properties
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker, CheckedItem
from millstream.mill.integrity.space_reports import LATELY
from millstream.mill.integrity.sweep import ItemToCheck, is_lately_verified, listed_or_known
from millstream.mill.integrity_decision import CheckVerdict, SourceAnswer
from millstream.mill.integrity_outcomes import ROWS, CheckRow
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult
from millstream.mill.merge_join import groups
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import CopyFinding, SpaceTally

GROUP = 1000
"""Items that are checked, and recorded, together."""

_TOGETHER = 100
STRAY = "stray"
"""The kind of a finding on an item that only a copy has."""


class Verified(msgspec.Struct):
    """What came of the verification of one copy of a space: how many were read, and which were found not in order.

    ``repairs`` are what was found and repaired, ``findings`` what is still not in order. ``elsewhere`` are copies
    in other stores, by store, that were repaired together with one of these.
    """

    tally: SpaceTally
    read: int = 0
    repairs: list[CopyFinding] = msgspec.field(default_factory=list)
    findings: list[CopyFinding] = msgspec.field(default_factory=list)
    elsewhere: dict[str, list[CopyFinding]] = msgspec.field(default_factory=dict)


class CopyChecker:
    """Reads copies of the items of *target*, and compares their bytes with the manifest and their properties with those
    that were adopted. Nothing is recorded."""

    def __init__(self, target: AdoptionTarget, checker: BitChecker) -> None:
        self._target, self._checker = target, checker
        self.audit_lookup = checker.audit_lookup

    def check_many(self, store: str, space: str, items: Sequence[ItemToCheck]) -> list[CheckResult]:
        """The results of *items*: those that can be read together first, the others one by one."""
        rows = {item.content_id: item.row for item in items}
        together = self._checker.check_many(store, space, [item.content_id for item in items if item.entry])
        checked = {one.result.content_id: one for one in together if one.outcome.verdict == CheckVerdict.SUCCESS}
        for name, row in rows.items():
            if name not in checked:
                checked[name] = self._checker.sweep(ItemRef(store, space, name), row)
        adopted = self._target.catalog.get_many(self._target.store, space, list(rows))
        return [self._whole(checked[item.content_id], adopted.get(item.content_id)) for item in items]

    def check(self, place: ItemRef) -> CheckResult:
        """The result of a copy as it is now."""
        adopted = self._target.catalog.get_many(self._target.store, place.space, [place.content_id])
        return self._whole(self._checker.check(place), adopted.get(place.content_id))

    def _whole(self, checked: CheckedItem, adopted: AdoptedItem | None) -> CheckResult:
        """What was *checked*, or that a copy with good bytes has other properties."""
        found = checked.result
        if found.verdict != CheckVerdict.SUCCESS:
            return found
        if adopted is None or adopted.sha256 != found.content or checked.properties is None:
            return found
        detail = _differing(clean_properties(adopted.properties), clean_properties(checked.properties))
        row = CheckRow.PROPERTIES_DIFFER
        return _failed(found, row, ROWS[row].kind, detail) if detail else found


def stray_finding(target: AdoptionTarget, found: CheckResult) -> CopyFinding | None:
    """What to say of an item that only a copy has: neither is it at the source, nor was it ever recorded; else None."""
    if found.content == SourceAnswer.MISSING or target.manifest.replicas(found.space, found.content_id):
        return None
    if target.catalog.get_many(target.store, found.space, [found.content_id]):
        return None
    remove = f"millstream store delete {arguments(found.store, found.space, found.content_id)}"
    return CopyFinding(
        found.content_id, STRAY, f"only this copy has it: put it at the source, or delete it (`{remove}`)"
    )


class CopyVerifier:
    """Reads copies with *checker*, repairs what can be repaired, and records the results."""

    def __init__(
        self,
        target: AdoptionTarget,
        providers: ConfiguredStores,
        checker: CopyChecker,
        writer: CheckWriter,
        repairer: Repairer,
    ) -> None:
        self._target, self._providers, self._manifest = target, providers, target.manifest
        self._checker, self._writer, self._repairer = checker, writer, repairer

    def verify(
        self,
        store: str,
        space: str,
        *,
        since: int,
        threads: int = 4,
        on_progress: Callable[[int], object] | None = None,
    ) -> Verified:
        """Check every item of *space* in *store* that was not read and found good at *since* (microseconds) or later.

        *on_progress* gets the number of items that were passed. Raises :class:`StoreError` where it cannot be listed.
        """
        verified = Verified(SpaceTally())
        until = self._providers.clock.now()
        audit = self._checker.audit_lookup
        items = listed_or_known(self._providers, self._manifest, store, space, audit)
        with ThreadPoolExecutor(threads, thread_name_prefix="mill-verify") as pool:
            for group in groups(items, GROUP):
                due = [item for item in group if not _is_good(item, since, until)]
                for item in group:
                    if _is_good(item, since, until):
                        verified.tally.count(CheckVerdict.SUCCESS, LATELY)
                parts = pool.map(lambda some: self._checker.check_many(store, space, some), groups(due, _TOGETHER))
                for results in parts:
                    self._record(verified, results)
                if on_progress is not None:
                    on_progress(len(group))
        return verified

    def _record(self, verified: Verified, results: Sequence[CheckResult]) -> None:
        self._writer.write(results)
        verified.read += len(results)
        final = [self._repaired(verified, one) if is_bad(one) else one for one in results]
        self._writer.write([after for before, after in zip(results, final, strict=True) if after is not before])
        verified.tally.add(final)

    def _repaired(self, verified: Verified, found: CheckResult) -> CheckResult:
        """What the copy is once its repair was tried; what is still wrong becomes a finding."""
        stray = stray_finding(self._target, found)
        if stray is not None:
            verified.findings.append(stray)
            return found
        reasons: list[str] = []
        after = found
        place = ItemRef(found.store, found.space, found.content_id)
        cause = f"{found.store}: {found.row} {found.kind}"
        try:
            if found.row == CheckRow.PROPERTIES_DIFFER:
                after = self._with_properties(place, cause)
                return self._counted(verified, found, after, [])
            done = self._repairer.repair(found.space, found.content_id, cause)
            reasons = [event.reason for event in done.refused if event.store in ("", found.store)]
            repaired_in = [event.store for event in done.events if event.healed]
            for store in repaired_in:
                if store != found.store:
                    detail = f"repaired together with the copy in {found.store}: {found.detail}"
                    also = CopyFinding(found.content_id, found.kind, detail)
                    verified.elsewhere.setdefault(store, []).append(also)
            if found.store in repaired_in:
                after = self._checker.check(place)
        except MillstreamError as error:
            reasons = [str(error)]
        return self._counted(verified, found, after, reasons)

    def _with_properties(self, place: ItemRef, cause: str) -> CheckResult:
        adopted = self._target.catalog.get_many(self._target.store, place.space, [place.content_id])
        self._repairer.restore_properties(place, clean_properties(adopted[place.content_id].properties), cause)
        return self._checker.check(place)

    @staticmethod
    def _counted(verified: Verified, found: CheckResult, after: CheckResult, reasons: Sequence[str]) -> CheckResult:
        """*after*, counted as a repair of what was *found*, or as a finding."""
        if is_bad(after):
            detail = "; ".join([after.detail, *(f"not repaired: {reason}" for reason in reasons)])
            verified.findings.append(CopyFinding(after.content_id, after.kind, detail))
        else:
            verified.repairs.append(CopyFinding(found.content_id, found.kind, found.detail))
        return after


def _failed(found: CheckResult, row: str, kind: str, detail: str) -> CheckResult:
    return msgspec.structs.replace(found, verdict=CheckVerdict.FAILURE, row=row, kind=kind, detail=detail)


def _differing(adopted: Mapping[str, str], copied: Mapping[str, str]) -> str:
    """How the properties of a copy differ from those of its source; empty where they do not."""
    names = sorted(name for name in {*adopted, *copied} if adopted.get(name) != copied.get(name))
    differing = (f"{name} is {_text(copied.get(name))} instead of {_text(adopted.get(name))}" for name in names)
    return f"{ROWS[CheckRow.PROPERTIES_DIFFER].detail}: {', '.join(differing)}" if names else ""


def _text(value: str | None) -> str:
    return "absent" if value is None else repr(value)


def due_since(rows: Iterator[int | None], share: float, now: int, period: int) -> int:
    """The time since which a copy must have been read so that it is not due.

    *rows* are the times at which copies were last read; the *share* of them (0 to 1) that was not read for longest is
    due, and whatever was not read within *period* (microseconds) before *now*.
    """
    times = sorted(time for time in rows if time is not None)
    count = math.floor(share * len(times))
    return max(now - period, times[count - 1] + 1 if count else 0)


def _is_good(item: ItemToCheck, since: int, until: int) -> bool:
    """Whether the copy was read and found good since *since*, and since it was written."""
    row = item.row
    if row is None or row.verified_at is None or row.modified > row.verified_at:
        return False
    return is_lately_verified(item.entry, row, since, until)


def is_bad(result: CheckResult) -> bool:
    """Whether the copy is not as it should be; what is rightly gone is explained."""
    return result.verdict != CheckVerdict.SUCCESS and result.row not in (CheckRow.GONE, CheckRow.DELETED)
