"""Carrying out what the vote decided: quarantine, write, verify, record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from millstream.core.errors import MillstreamError
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplication_decision import clean_properties
from millstream.mill.duplication.transfer import quarantine, transfer
from millstream.mill.errors import RepairError
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.shared_files import find_shared_store
from millstream.mill.integrity_decision import CheckVerdict, SourceAnswer
from millstream.mill.integrity_outcomes import ROWS, CheckRow
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest
from millstream.mill.repair.own_records import OwnRecords
from millstream.mill.repair.repair_log import RepairEvent, RepairLog
from millstream.mill.repair.vote import CopyReading, RepairAction, RepairDecision, RepairPlan, plan_repair
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitError, QueueName, Repair
from millstream.stores.cas import CAS_SPACE
from millstream.stores.folder import with_recorded_kind
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    DamagedRecordError,
    ItemInfo,
    StoreError,
    StoreUnavailableError,
)
from millstream.stores.sources import is_source_url

Sources = Callable[[str], Collection[str]]
"""The stores that have originals of a space: no policy copies it to them."""

_ANSWERS = frozenset(SourceAnswer)
_UNKNOWN_ITEM = "the manifest has no copy of the item, or only deleted ones: check SPACE and CONTENT_ID"
"""Why an item that is not known is not repaired."""


class RepairResult(msgspec.Struct, frozen=True):
    """The result of one repair: the plan, and an event for each copy that was repaired or was not."""

    plan: RepairPlan
    events: tuple[RepairEvent, ...] = ()

    @property
    def repaired(self) -> int:
        """The number of repaired copies."""
        return sum(event.healed for event in self.events)

    @property
    def refused(self) -> tuple[RepairEvent, ...]:
        """Items that were not repaired, with reasons."""
        return tuple(event for event in self.events if not event.healed)


class Repairer:
    """Repairs the copies of content items, one item at a time. Every fault is repaired, or refused with a reason.

    *sources* tells which stores have originals of a space; where it names none, every store counts as one, and
    rewritten copies are left alone everywhere. What is done is written to the manifest and to *log*. The checksums that
    *audit_lookup* knows are evidence beside those of the manifest.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        log: RepairLog,
        *,
        sources: Sources | None = None,
        audit_lookup: AuditLookup | None = None,
    ) -> None:
        self._providers = providers
        self._manifest = manifest
        self._log = log
        self._sources = sources
        self._records = OwnRecords(providers, manifest, audit_lookup)
        self._checker = BitChecker(providers, manifest)

    def plan(self, space: str, content_id: str, *, restore_source: bool = False) -> RepairPlan:
        """The plan of a repair of this item; reads every copy."""
        return self._plan(space, content_id, restore_source)[0]

    def is_deleted(self, space: str, content_id: str) -> bool:
        """Whether the deletion of this item is recorded in all stores that had it."""
        rows = self._manifest.replicas(space, content_id)
        return bool(rows) and all(row.deleted for row in rows)

    def _plan(self, space: str, content_id: str, restore_source: bool) -> tuple[RepairPlan, Mapping[str, CopyReading]]:
        """The plan, and what was read, by store."""
        named = self._sources(space) if self._sources else ()
        sources = named or frozenset(self._providers)
        recorded = self._records.sums(space, content_id, sources)
        if not recorded:
            return RepairPlan(RepairDecision.UNKNOWN, reasons=(_UNKNOWN_ITEM,)), {}
        copies = []
        for store, sums in recorded.items():
            place = ItemRef(store, space, content_id)
            seen = self._look(place, store in sources, sums)
            is_kept = space == CAS_SPACE or self._records.is_added(place)
            may_be_deleted = store in named and not is_kept
            copies.append(msgspec.structs.replace(seen, may_be_deleted=may_be_deleted))
        return plan_repair(copies, restore_source=restore_source), {copy.store: copy for copy in copies}

    def repair(self, space: str, content_id: str, reason: str = "", *, restore_source: bool = False) -> RepairResult:
        """Plan, repair what may be repaired, and record what was done and what was not.

        With *restore_source* a source that was rewritten gets back what was recorded, from a copy: only a person
        decides that. What it held is kept in quarantine.

        Raises :class:`StoreUnavailableError` where a provider does not answer for now, and
        :class:`~millstream.mill.errors.ChangePendingError` while a change of the item is under way.
        """
        self.settle_left(space, content_id)
        plan, seen = self._plan(space, content_id, restore_source)
        events = [self._event(ItemRef("", space, content_id), refusal) for refusal in plan.reasons]
        self._log.append(events)
        for action in plan.actions:
            bad = ItemRef(action.store, space, content_id)
            wanted = self._event(
                bad, reason or "did not match the manifest", healed=True, sha256=plan.sha256, good=plan.good
            )
            repair = partial(self._repair_copy, plan, action, seen, bad, wanted)
            events.append(self._recorded(wanted, repair))
        if plan.decision == RepairDecision.HEALTHY:
            events += self._separate(space, content_id, seen.values(), reason)
        if (
            any(not event.healed for event in events)
            and self.plan(space, content_id).decision == RepairDecision.HEALTHY
        ):
            return RepairResult(
                plan, tuple(event for event in events if event.healed)
            )  # another worker has repaired the rest
        return RepairResult(plan, tuple(events))

    def _separate(self, space: str, content_id: str, copies: Iterable[CopyReading], reason: str) -> list[RepairEvent]:
        """Write those of the good *copies* again that share their files with other stores (hard links)."""
        places = [ItemRef(copy.store, space, content_id) for copy in copies if not copy.source and not copy.read_only]
        events = []
        for of_each in (False, True):  # the owner of a file only where the others may not be written
            for place in places:
                if find_shared_store(self._providers, place, of_each=of_each) is not None:
                    events.append(self.write_anew(place, reason or "a hard link to the file of another store"))
        return events

    def write_anew(self, place: ItemRef, reason: str) -> RepairEvent:
        """Write the bytes at *place* again into a separate file, and record it.

        For a copy that is good. Raises :class:`RepairError` where its store is the source.
        """
        if place.store in (self._sources(place.space) if self._sources else ()):
            raise RepairError(
                f"{place} is a source, where Millstream does not replace hard links: replace the hard link with a "
                "separate file"
            )
        row = self._manifest.get(place.store, place.space, place.content_id)
        if row is not None and row.deleted:
            raise RepairError(f"the deletion of {place} is recorded, so there is nothing to repair")
        if row is None or row.sha256 is None:
            raise RepairError(
                f"no checksum is recorded for {place}, so the item cannot be repaired: check it first "
                "(`millstream mill check`)"
            )
        wanted = self._event(place, reason, healed=True, sha256=row.sha256, good=place.store)
        return self._recorded(wanted, partial(self._write_anew, place, row.sha256, wanted))

    def _write_anew(self, place: ItemRef, sha256: str, wanted: RepairEvent) -> RepairEvent:
        recorded = self._recorded_sums(place)
        self._write(place, place, sha256, partial(self._require_recorded, place, recorded))
        return self._record_written(wanted)

    def restore_properties(self, place: ItemRef, properties: Mapping[str, str], reason: str) -> RepairEvent:
        """Give the copy at *place*, whose bytes are good, the *properties* of its source; what was done is recorded.

        Raises :class:`StoreError` where the store refuses that.
        """
        wanted = self._event(place, reason, healed=True)
        return self._recorded(wanted, partial(self._set_properties, place, properties, wanted))

    def _set_properties(self, place: ItemRef, properties: Mapping[str, str], wanted: RepairEvent) -> RepairEvent:
        store = self._providers[place.store]
        self._providers.call(lambda: store.set_properties(place.space, place.content_id, properties))
        return wanted

    def settle_left(self, space: str | None = None, content_id: str | None = None) -> None:
        """Record the repairs that ended processes had begun and not recorded: of all items, or of one.

        The bytes of the copy decide whether it was repaired. Those in stores that do not answer stay for later.
        """
        for begun in self._log.left():
            event = begun.event
            if space is not None and (event.space, event.content_id) != (space, content_id):
                continue
            try:
                settled = self._settled(event)
            except StoreUnavailableError:
                continue
            except MillstreamError as error:
                settled = self._unsettled(event, str(error))
            if settled is not None and settled.healed:
                self._manifest.writer.apply([_check_result(settled)])
            self._log.end(begun, settled)

    def _settled(self, event: RepairEvent) -> RepairEvent | None:
        """What a repair that was begun as *event* has done; None where the copy was not written."""
        if event.sha256 is None or event.good == event.store:  # its bytes were good before
            return self._unsettled(event, "the outcome is unknown: check the item again")
        place = ItemRef(event.store, event.space, event.content_id)
        seen = self._checker.observe(place)
        if seen.provider == SourceAnswer.UNREACHABLE:
            raise StoreUnavailableError(f"cannot read {place} now: try again later")
        if seen.content != event.sha256 or seen.provider not in (event.sha256, SourceAnswer.NO_CHECKSUM):
            return None
        reason = f"{event.reason} (the process ended before it recorded this)"
        return msgspec.structs.replace(event, at=self._providers.clock.now(), reason=reason)

    def _unsettled(self, event: RepairEvent, why: str) -> RepairEvent:
        reason = f"{event.reason}: the process ended while it repaired this; {why}"
        return msgspec.structs.replace(event, at=self._providers.clock.now(), healed=False, reason=reason)

    def _recorded(self, wanted: RepairEvent, repair: Callable[[], RepairEvent]) -> RepairEvent:
        """Do *repair*, and record its event: also where this process is killed in between (:meth:`settle_left`)."""
        begun = self._log.begin(wanted)
        try:
            event = repair()
        except BaseException as error:
            if isinstance(error, MillstreamError) and not error.transient:
                self._log.end(begun, None)
            else:
                self._log.abandon(begun)
            raise
        self._log.end(begun, event)
        return event

    def _look(self, place: ItemRef, source: bool, recorded: frozenset[str]) -> CopyReading:
        seen = self._checker.observe(place)
        return CopyReading(
            store=place.store,
            content=seen.content,
            provider=seen.provider,
            source=source,
            recorded=recorded,
            read_only=self._providers.is_read_only(place.store),
            own_record=seen.own_record,
        )

    def _repair_copy(
        self,
        plan: RepairPlan,
        action: RepairAction,
        copies: Mapping[str, CopyReading],
        bad: ItemRef,
        wanted: RepairEvent,
    ) -> RepairEvent:
        assert plan.good is not None and plan.sha256 is not None
        try:
            kept = self._keep(bad, wanted.reason) if action.quarantine else None
            require = partial(self._require_same, copies[bad.store], bad, kept)
            require()
            good = ItemRef(plan.good, bad.space, bad.content_id)
            self._write(good, bad, plan.sha256, require, self._describing(bad, copies, plan.sha256))
        except MillstreamError as error:
            if error.transient:
                raise
            return self._event(bad, str(error), sha256=plan.sha256, good=plan.good)
        return self._record_written(msgspec.structs.replace(wanted, quarantined=kept.content_id if kept else None))

    def _record_written(self, wanted: RepairEvent) -> RepairEvent:
        """Record in the manifest that *wanted* was done now; the event. A check may have ended while it was written."""
        event = msgspec.structs.replace(wanted, at=self._providers.clock.now())
        self._manifest.writer.apply([_check_result(event)])
        return event

    def _require_same(self, seen: CopyReading, bad: ItemRef, kept: ItemRef | None) -> None:
        """Raise :class:`RepairError` if the copy was changed since it was examined: it is not rot."""
        self._require_recorded(bad, seen.recorded, is_source=seen.source)
        now = seen.vote
        # a writer of the copy would have written its description, too
        if kept is not None and seen.provider != SourceAnswer.DAMAGED_RECORD:
            info = self._providers.find(kept)
            now = (info.checksum() if info is not None else None) or self._providers.hash(kept).sha256
        was_written = seen.content == SourceAnswer.MISSING and self._providers.find(bad) is not None
        if seen.provider not in _ANSWERS and (kept is not None or seen.own_record):
            info = self._providers.find(bad)  # another writer's object would not have the same checksum beside it
            was_written = kept is None if info is None else info.checksum() != seen.provider
        if now != seen.vote or was_written:
            raise _changed(bad)

    def _require_recorded(self, place: ItemRef, recorded: frozenset[str] | None, *, is_source: bool = False) -> None:
        """Raise :class:`RepairError` if our records of the copy at *place* have changed."""
        if self._recorded_sums(place, is_source=is_source) != recorded:
            raise _changed(place)

    def _recorded_sums(self, place: ItemRef, *, is_source: bool = False) -> frozenset[str] | None:
        return self._records.sums(place.space, place.content_id, (place.store,) if is_source else ()).get(place.store)

    def _keep(self, bad: ItemRef, reason: str) -> ItemRef | None:
        """Keep the bad bytes, as far as they can be read."""
        try:
            return quarantine(self._providers, bad, reason)
        except StoreError as error:
            now = self._checker.observe(bad)
            if now.content == SourceAnswer.UNREADABLE or now.provider == SourceAnswer.DAMAGED_RECORD:
                return None
            raise RepairError(
                f"{bad} was not overwritten, because its corrupt content could not be moved to quarantine: {error}"
            ) from error

    def _describing(self, bad: ItemRef, copies: Mapping[str, CopyReading], sha256: str) -> Sequence[ItemRef]:
        """The copies whose properties go before those of the one with good bytes, as the vote was about bytes alone:
        sources that other programs write, the bad one itself where its record is that of the good bytes, and other
        sources."""
        sources = sorted(self._sources(bad.space)) if self._sources else []
        sources = [one for one in sources if one in copies and sha256 in (copies[one].content, copies[one].provider)]
        stores = [one for one in sources if is_source_url(self._providers[one].url)]
        stores += [bad.store] if copies[bad.store].provider == sha256 else []
        stores += sources
        return [msgspec.structs.replace(bad, store=store) for store in stores]

    def _write(
        self,
        good: ItemRef,
        bad: ItemRef,
        sha256: str,
        require: Callable[[], object],
        described_by: Sequence[ItemRef] = (),
    ) -> None:
        """Copy *good* to *bad*, unless *require*, which is called last before that, raises.

        The first of *described_by* that has properties gives them, or else *good*.
        """
        mimetype, properties = self._describe(good, described_by)
        self._providers.make_space(bad.store, bad.space)
        transfer(self._providers, good, bad, sha256, mimetype=mimetype, properties=properties, require=require)
        read = self._providers.hash(bad)
        if read.sha256 != sha256:
            raise RepairError(
                f"{bad} was written, but reads back with SHA-256 {read.sha256}, not {sha256}: check the disk or "
                f"server of store {bad.store!r}"
            )

    def _describe(self, good: ItemRef, described_by: Sequence[ItemRef]) -> tuple[str, Mapping[str, str]]:
        """The type and the properties of an item; where no record of them is whole, what the manifest has.

        The kind of the item, such as a symbolic link, is that of the manifest.
        """
        types = [row.mimetype for row in self._manifest.replicas(good.space, good.content_id)]
        recorded = next((one for one in types if one != DEFAULT_MIMETYPE), DEFAULT_MIMETYPE)
        for place in (*described_by, good):
            try:
                info = self._providers.find(place)
            except DamagedRecordError:
                continue
            if info is not None:
                break
            if place == good:
                raise RepairError(
                    f"{good} was deleted during the repair: repair the item again, from the copies that remain"
                )
        else:
            info = ItemInfo(good.content_id, 0, (), recorded, {})
        if recorded != DEFAULT_MIMETYPE:  # also that of an item which a check has recorded, whatever its kind
            info = with_recorded_kind(info, recorded)
        return info.mimetype, clean_properties(info.properties)

    def _event(self, place: ItemRef, reason: str, *, healed: bool = False, **known: str | None) -> RepairEvent:
        now = self._providers.clock.now()
        return RepairEvent(now, place.store, place.space, place.content_id, healed, reason, **known)


class RepairProcessor:
    """Takes :class:`Repair` tasks to their end; what is refused becomes a bit error for people, with the reason."""

    def __init__(self, repairer: Repairer) -> None:
        self._repairer = repairer

    def process(self, task: Repair, attempt: int) -> TaskResult:  # noqa: ARG002
        """Repair the item, or say why not."""
        result = self._repairer.repair(task.space, task.content_id, task.reason)
        errors = tuple(
            (QueueName.BIT_ERROR, BitError(event.store, task.space, task.content_id, "repair", event.reason))
            for event in result.refused
        )
        return TaskResult(f"{result.plan.decision.value}: {result.repaired} copies repaired", tasks=errors)


def _changed(place: ItemRef) -> RepairError:
    return RepairError(
        f"{place} changed during its repair and was not overwritten: check the item again (`millstream mill check`)"
    )


def _refusal(reason: str) -> RepairPlan:
    return RepairPlan(RepairDecision.REFUSE, reasons=(reason,))


def _check_result(event: RepairEvent) -> CheckResult:
    return CheckResult(
        store=event.store,
        space=event.space,
        content_id=event.content_id,
        verdict=CheckVerdict.SUCCESS,
        row=CheckRow.INTACT,
        kind=ROWS[CheckRow.INTACT].kind,
        detail=f"repaired from store {event.good}: {event.reason}",
        checked_at=event.at,
        manifest=event.sha256,
        provider=event.sha256,
        content=event.sha256,
    )
