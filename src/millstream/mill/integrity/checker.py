"""The bit check of one content item: ask the sources, let the table decide."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import NotFoundError
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import ChangedSinceAdoptionError, UnknownStoreError
from millstream.mill.integrity.shared_files import find_shared_store
from millstream.mill.integrity_decision import (
    LAST_ATTEMPT,
    BitCheckOutcome,
    CheckVerdict,
    FollowUp,
    ManifestAction,
    Observation,
    SourceAnswer,
    decide_bit_check,
    is_fresh,
    shared_file_outcome,
)
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, ComparisonRow, Manifest, ManifestRow
from millstream.mill.manifest_table import IntactItems
from millstream.mill.tasks import BitError, QueueName, Repair, Task
from millstream.stores.audit import AuditEvent
from millstream.stores.bulk import SMALL, Reading
from millstream.stores.hashing import Digests
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    READ_REFUSALS,
    ChecksumOrigin,
    DamagedRecordError,
    ItemInfo,
    StoreError,
)

RecordedRow = ManifestRow | ComparisonRow
"""The columns of the manifest that a check needs: the checksum, the time, and whether it is a tombstone."""

MAX_LOOKS = 3
"""How often an item is examined that others continue changing."""

_ANSWERS = frozenset(SourceAnswer)


class ItemReading(msgspec.Struct, frozen=True, gc=False):
    """The observation of one item at a provider: sums (hex) or answers, bytes read, when it was taken, its type.

    ``properties`` are None where nothing was read of it; ``links`` are the names of its file, None where that is not
    known. ``own_record``: as in :class:`Observation`; known where the item was looked at alone.
    """

    provider: str
    content: str
    size: int = 0
    modified: int | None = None
    mimetype: str | None = None
    properties: Mapping[str, str] | None = None
    links: int | None = None
    own_record: bool = False


class BitChecker:
    """Checks single content items against the manifest."""

    def __init__(
        self, providers: ConfiguredStores, manifest: Manifest, audit_lookup: AuditLookup | None = None
    ) -> None:
        self._providers = providers
        self._manifest = manifest
        self._audit_lookup = audit_lookup

    @property
    def clock(self) -> Clock:
        """The clock of checks."""
        return self._providers.clock

    @property
    def audit_lookup(self) -> AuditLookup | None:
        """Look-ups in the audit, if there is one."""
        return self._audit_lookup

    def check(self, place: ItemRef, *, attempt: int = LAST_ATTEMPT) -> CheckedItem:
        """Read the item and decide; :data:`LAST_ATTEMPT` gives a final outcome."""
        row = self._manifest.get(place.store, place.space, place.content_id)
        audit = self.audit_sums(place.store, place.space, [place.content_id])[place.content_id]
        return self.check_row(place, row, audit, attempt=attempt)

    def check_many(self, store: str, space: str, content_ids: Sequence[str]) -> Iterator[CheckedItem]:
        """Check those of *content_ids* that can be looked at and read together; the others are left out.

        The outcomes are those of a first attempt.
        """
        rows = self._manifest.get_many(store, space, content_ids)
        sizes = [rows[name].size if name in rows else None for name in content_ids]
        looked = zip(content_ids, self.observe_many(store, space, content_ids, sizes=sizes), strict=True)
        found = {name: seen for name, seen in looked if isinstance(seen, ItemReading)}
        audit = self.audit_sums(store, space, list(found)) if found else {}
        for name, seen in found.items():
            place = ItemRef(store, space, name)
            yield self.check_row(place, rows.get(name), audit[name], attempt=1, seen=self.observe(place, seen))

    def audit_sums(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, str | None]:
        """The audit's checksums of some items, by id (:meth:`AuditLookup.sums`)."""
        if self._audit_lookup is None:
            return dict.fromkeys(content_ids, SourceAnswer.NOT_KEPT)
        return self._audit_lookup.sums(store, space, content_ids)

    def is_audited(self, store: str) -> bool:
        """Whether changes of *store* are audited."""
        return self._audit_lookup is not None and store in self._audit_lookup.audited

    def is_read_only(self, store: str) -> bool:
        """Whether other programs write *store*."""
        return self._providers.is_read_only(store)

    def keeps_checksum(self, place: ItemRef) -> bool:
        """Whether the checksum beside the item at *place* is one that we keep there; False where that is not known."""
        try:
            info = self._providers.find(place)
        except StoreError:
            return False
        return info is not None and info.checksum_origin() == ChecksumOrigin.USER

    def pending(self, store: str, space: str, content_ids: Sequence[str]) -> set[str]:
        """Which of some items have a change that waits in the audit outbox (:meth:`AuditLookup.pending`)."""
        return set() if self._audit_lookup is None else self._audit_lookup.pending(store, space, content_ids)

    def contradicted(self, store: str, space: str, found: Collection[tuple[str, str]]) -> set[str]:
        """The ids of those items of *store*, *found* with their sums, that live rows of other stores have otherwise."""
        rows = self._manifest.replicas_of(space, [name for name, _ in found])
        sums = dict(found)
        return {
            row.content_id
            for row in rows
            if row.store != store
            and row.store in self._providers
            and not row.deleted
            and row.sha256
            and row.sha256 != sums[row.content_id]
        }

    def sweep(
        self,
        place: ItemRef,
        row: RecordedRow | None,
        audit: str | None = SourceAnswer.NOT_KEPT,
        *,
        seen: ItemReading | None = None,
    ) -> CheckedItem:
        """Check with *row* and *audit* as what is recorded; what is not in order is examined again as it is now.

        So a change that a long sweep overtakes is not taken for damage. What was read as damaged and has vanished by
        then stays damaged: Swift sets a rotted object aside once it has given its bytes out. What was *seen* of the
        item just now is not looked at first.
        """
        checked = self.check_row(place, row, audit, seen=seen)
        if checked.outcome.verdict == CheckVerdict.SUCCESS:
            return checked
        again = self.check(place)
        return checked if (checked.outcome.kind, again.outcome.kind) == ("checksum-mismatch", "missing") else again

    def check_row(
        self,
        place: ItemRef,
        row: RecordedRow | None,
        audit: str | None = SourceAnswer.NOT_KEPT,
        *,
        attempt: int = LAST_ATTEMPT,
        seen: ItemReading | None = None,
    ) -> CheckedItem:
        """Read the item and decide, with *row* as the manifest's word and *audit* as that of the audit log."""
        seen = seen or self.observe(place)
        now = self._providers.clock.now()
        if _is_plainly_intact(row, audit, seen):
            return CheckedItem(_intact(place, seen, now), INTACT, None, seen.mimetype, seen.properties)
        observation = Observation(
            manifest=row.sha256 if row is not None else None,
            store=seen.provider,
            content=seen.content,
            deleted=row is not None and row.deleted,
            audit=audit,
            attempt=attempt,
            fresh=is_fresh(seen.modified, now),
            read_only=self._providers.is_read_only(place.store),
            own_record=seen.own_record,
        )
        if self._is_deletion_waiting(place, row, seen):
            observation = msgspec.structs.replace(observation, deleted=True)
        outcome = decide_bit_check(observation)
        if (
            observation.fresh
            and row is not None
            and outcome.verdict == CheckVerdict.FAILURE
            and self._is_pending(place)
        ):
            observation = msgspec.structs.replace(observation, pending=True)
            outcome = decide_bit_check(observation)
        if outcome.manifest == ManifestAction.SET_TO_STORE and not self._is_missed(place, row):
            observation = msgspec.structs.replace(observation, audit=SourceAnswer.NOT_KEPT)
            outcome = decide_bit_check(observation)
        if outcome.manifest == ManifestAction.CREATE and self.contradicted(
            place.store, place.space, [(place.content_id, seen.provider)]
        ):
            outcome = decide_bit_check(msgspec.structs.replace(observation, contradicted=True))
        if outcome.task == FollowUp.BIT_ERROR and self._is_elsewhere(place, row, audit):
            outcome = decide_bit_check(msgspec.structs.replace(observation, elsewhere=True))
        if outcome.verdict == CheckVerdict.SUCCESS and (other := find_shared_store(self._providers, place)) is not None:
            outcome = shared_file_outcome(other)
        result = _result(place, observation, seen, outcome, now)
        missed = None
        if self._audit_lookup is not None and outcome.task == FollowUp.AUDIT:
            missed = self._audit_lookup.missing_event(result, seen.mimetype)
        return CheckedItem(result, outcome, missed, seen.mimetype, seen.properties)

    def observe(self, place: ItemRef, seen: ItemReading | None = None) -> ItemReading:
        """Ask the provider, then read the bytes; where they do not match, look again.

        *seen* is the first observation, where there is one. So neither a fault on the way nor a change between question
        and reading counts as damage. What was read as damaged and cannot be had the second time is damaged: Swift sets
        a rotted object aside once it has given out its bytes.
        """
        seen = seen or self._look(place)
        for _ in range(MAX_LOOKS - 1):
            if not _differs(seen):
                return seen
            again = self._look(place)
            if {again.content, again.provider} & _ANSWERS:
                return seen
            if _differs(again) and (again.provider, again.modified) == (seen.provider, seen.modified):
                return again
            seen = again
        return (
            ItemReading(SourceAnswer.UNREACHABLE, SourceAnswer.NOT_READ) if _differs(seen) else seen
        )  # it never stood still

    def _look(self, place: ItemRef) -> ItemReading:
        try:
            info = self._providers.find(place)
        except DamagedRecordError:  # its bytes may be good all the same
            return self._read(
                place, ItemInfo(place.content_id, 0, (), DEFAULT_MIMETYPE, {}), SourceAnswer.DAMAGED_RECORD
            )
        except StoreError:
            return ItemReading(SourceAnswer.UNREACHABLE, SourceAnswer.NOT_READ)
        if info is None:
            left_out = self._providers.is_left_out(place)
            return ItemReading(SourceAnswer.LEFT_OUT if left_out else SourceAnswer.MISSING, SourceAnswer.MISSING)
        return self._read(place, info)

    def _read(self, place: ItemRef, info: ItemInfo, answer: SourceAnswer = SourceAnswer.NO_CHECKSUM) -> ItemReading:
        """The bytes of an item of which the provider says *info*, or the *answer* instead of a checksum."""
        provider = info.checksum() or answer
        try:
            read = self._providers.hash(place)
        except UnknownStoreError:
            raise
        except NotFoundError:
            return ItemReading(provider, SourceAnswer.MISSING, info.size, info.modified)
        except ChangedSinceAdoptionError:
            return ItemReading(provider, SourceAnswer.CHANGED, info.size, info.modified)
        except READ_REFUSALS:
            return ItemReading(provider, SourceAnswer.REFUSED, info.size, info.modified)
        except (StoreError, OSError):
            return ItemReading(provider, SourceAnswer.UNREADABLE, info.size, info.modified)
        own = info.checksum_origin() == ChecksumOrigin.USER
        return ItemReading(
            provider, read.sha256, read.size, info.modified, info.mimetype, info.properties, own_record=own
        )

    def observe_many(
        self,
        store: str,
        space: str,
        content_ids: Sequence[str],
        expected: Sequence[str | None] = (),
        sizes: Sequence[int | None] = (),
    ) -> Sequence[int | ItemReading | None]:
        """The first observation of those of *content_ids* that can be looked at and read together; None for the others.

        Of an item that is found to be in every way as *expected* it is the size alone, where the store can tell. Items
        whose recorded *sizes* exceed :data:`SMALL` bytes are not asked for.
        """
        places = [n for n, (_, size) in enumerate(zip_longest(content_ids, sizes)) if size is None or size <= SMALL]
        if len(places) < len(content_ids):
            some = [expected[n] for n in places] if expected else ()
            seen = dict(
                zip(places, self.observe_many(store, space, [content_ids[n] for n in places], some), strict=True)
            )
            return [seen.get(n) for n in range(len(content_ids))]
        try:
            at_once = self._providers.readings(store, space, content_ids, expected)
            if at_once is not None:
                return [_read_at_once(one) if isinstance(one, Reading) else one for one in at_once]
            infos = self._providers.head_many(store, space, content_ids)
            there = [info for info in infos if info is not None and info.size <= SMALL]
            read = self._providers.hash_many(store, space, [info.content_id for info in there])
        except StoreError:  # whatever it is, it is found again with each of them, and is said of it
            return [None] * len(content_ids)
        sums = {info.content_id: one for info, one in zip(there, read, strict=True)}
        return [_seen(info, sums.get(info.content_id)) if info is not None else None for info in infos]

    def _is_pending(self, place: ItemRef) -> bool:
        return bool(self.pending(place.store, place.space, [place.content_id]))

    def _is_deletion_waiting(self, place: ItemRef, row: RecordedRow | None, seen: ItemReading) -> bool:
        """Whether an item that is not there was deleted, by an event that waits in the audit outbox: it is recorded."""
        if SourceAnswer.MISSING not in (seen.provider, seen.content) or row is None or self._audit_lookup is None:
            return False
        deleted_at = self._audit_lookup.deleted_at(place)
        return deleted_at is not None and deleted_at >= row.modified

    def _is_missed(self, place: ItemRef, row: RecordedRow | None) -> bool:
        """Whether the manifest missed the event that the audit log has last."""
        if self._audit_lookup is None or row is None:
            return False
        return self._audit_lookup.is_missed(place, row.modified)

    def _is_elsewhere(self, place: ItemRef, row: RecordedRow | None, audit: str | None) -> bool:
        """Whether another store is recorded with the checksum of *row*, or without a row with that of the *audit*."""
        recorded = audit if row is None else row.sha256
        if recorded is None or recorded in _ANSWERS or (row is not None and row.deleted):
            return False
        replicas = self._manifest.replicas(place.space, place.content_id)
        others = [one for one in replicas if one.store != place.store and one.store in self._providers]
        return any(not one.deleted and one.sha256 == recorded for one in others)


class CheckedItem(msgspec.Struct, frozen=True, gc=False):
    """A finished check: the line to write down, the outcome with what it asks for, and the event the audit missed.

    ``mimetype`` and ``properties`` are what the provider says of the item, None where nothing was read.
    """

    result: CheckResult
    outcome: BitCheckOutcome
    missed: AuditEvent | None = None
    mimetype: str | None = None
    properties: Mapping[str, str] | None = None

    @property
    def task(self) -> tuple[QueueName, Task] | None:
        """The task that the outcome asks for, and its queue."""
        found = self.result
        if self.outcome.task == FollowUp.NONE or self.missed is not None:
            return None
        if self.outcome.task == FollowUp.REPAIR:
            return QueueName.REPAIR, Repair(found.space, found.content_id, f"{found.store}: {found.row} {found.kind}")
        return QueueName.BIT_ERROR, BitError(
            found.store,
            found.space,
            found.content_id,
            found.row,
            found.detail,
            found.manifest,
            found.provider,
            found.content,
        )


class CheckedGroup(NamedTuple):
    """Finished checks: items that were found intact, in columns, and all others one by one."""

    intact: IntactItems
    others: Sequence[CheckedItem]

    @property
    def items(self) -> int:
        """How many there are."""
        return len(self.intact.content_ids) + len(self.others)


def _differs(seen: ItemReading) -> bool:
    """Whether the provider has a checksum, and the bytes were read and have another one."""
    return seen.content != seen.provider and not {seen.content, seen.provider} & _ANSWERS


def _is_plainly_intact(row: RecordedRow | None, audit: str | None, seen: ItemReading) -> bool:
    """Whether all sources agree on an item whose file has no other name: that is what nearly all checks find."""
    return (
        row is not None
        and row.sha256 == seen.content == seen.provider
        and row.sha256 is not None
        and not row.deleted
        and audit in (row.sha256, SourceAnswer.NOT_KEPT)
        and seen.links == 1
    )


INTACT = decide_bit_check(Observation("a", "a", "a"))
"""The outcome of an item on which all sources agree."""


def _intact(place: ItemRef, seen: ItemReading, now: int) -> CheckResult:
    return CheckResult(
        place.store, place.space, place.content_id, INTACT.verdict, INTACT.row, INTACT.kind, INTACT.detail, now,
        seen.size, seen.content, seen.provider, seen.content,
    )  # fmt: skip


def _read_at_once(read: Reading) -> ItemReading:
    provider = read.provider or SourceAnswer.NO_CHECKSUM
    return ItemReading(
        provider, read.sha256, read.size, read.modified, read.mimetype, read.properties, links=read.links
    )


def _seen(info: ItemInfo, read: Digests | None) -> ItemReading | None:
    if read is None:
        return None
    provider = info.checksum() or SourceAnswer.NO_CHECKSUM
    return ItemReading(provider, read.sha256, read.size, info.modified, info.mimetype, info.properties)


def _result(
    place: ItemRef, observation: Observation, seen: ItemReading, outcome: BitCheckOutcome, now: int
) -> CheckResult:
    return CheckResult(
        store=place.store,
        space=place.space,
        content_id=place.content_id,
        verdict=outcome.verdict,
        row=outcome.row,
        kind=outcome.kind,
        detail=outcome.detail,
        checked_at=now,
        size=seen.size,
        manifest=observation.manifest,
        provider=seen.provider,
        content=seen.content,
        action=outcome.manifest,
    )
