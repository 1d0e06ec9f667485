"""Checksums of content items in the audit: the fourth source of a bit check."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.column_join import ItemColumns
from millstream.mill.errors import ChangePendingError
from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult
from millstream.mill.merge_join import groups
from millstream.stores.audit import CONTENT_CHANGES, AuditAction, AuditEvent, AuditOutbox

_ANSWERS = frozenset(SourceAnswer)

_GROUP = 500

MILL_USER = "mill"
"""The user of an event that a check found to be missing."""


def add_missed(outbox: AuditOutbox, log: AuditLog, events: Sequence[AuditEvent]) -> int:
    """Put *events* on their way that a check found to be missing from *log*; returns how many.

    Items with a waiting change, or that the log knows by now, are left out.
    """
    seen, missed = outbox.newest(), list[AuditEvent]()
    for (store, space), some in groupby(sorted(events, key=_space), key=_space):
        for group in groups(some, _GROUP):
            ids = [event.content_id for event in group]
            pending, known = outbox.pending(store, space, ids), log.last_sums(store, space, ids)
            missed += [e for e in group if e.content_id not in pending and known.get(e.content_id, "") != e.sha256]
    return outbox.add(missed, seen=seen)


def _space(event: AuditEvent) -> tuple[str, str]:
    return event.store, event.space


class AuditLookup:
    """The audit of the stores *audited* (by id): *log*, and *outbox* with what is still on its way there."""

    def __init__(self, log: AuditLog, outbox: AuditOutbox, audited: Collection[str], *, account: str = "local") -> None:
        self._log, self._outbox, self._audited, self._account = log, outbox, frozenset(audited), account

    def sums(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, str | None]:
        """The checksum (hex) that each item was last written with, by id; None where the log does not know it.

        An item says :data:`SourceAnswer.NOT_KEPT` where its store is not audited, or while an event of it is on its
        way.
        """
        if store not in self._audited:
            return dict.fromkeys(content_ids, SourceAnswer.NOT_KEPT)
        pending = self._outbox.pending(store, space, content_ids)
        last = self._log.last_sums(store, space, content_ids)
        return {name: SourceAnswer.NOT_KEPT if name in pending else last.get(name) for name in content_ids}

    def scan_sums(self, store: str, space: str) -> Iterator[ItemColumns]:
        """The items of a space that are there by the audit log, in order, with the checksum of each; none where the
        store is not audited. What waits in the outbox is not looked at."""
        return self._log.scan_sums(store, space) if store in self._audited else iter(())

    def unrecorded(self, store: str, space: str, *, after: str = "") -> Iterator[ItemRef]:
        """The items above *after* that the audit log says are there and of which the manifest has no row, in order.

        None where the store is not audited.
        """
        if store in self._audited:
            for content_id in self._log.without_row(store, space, after=after):
                yield ItemRef(store, space, content_id)

    @property
    def audited(self) -> Collection[str]:
        """The ids of the stores that are audited."""
        return self._audited

    def last_change(self, place: ItemRef) -> AuditEvent | None:
        """The last event that added, copied or deleted an item, what waits in the outbox included.

        None where its store is not audited or no event is known. Raises :class:`ChangePendingError` where a change was
        begun and it is not known whether it happened.
        """
        store, space, content_id = place.store, place.space, place.content_id
        if store not in self._audited:
            return None
        if self._outbox.open_of(store, space, [content_id]):
            raise ChangePendingError(
                f"a change of {place} has started and is not recorded as ended: try again later, or "
                "stop all processes that write to the stores, and settle changes of crashed processes with "
                "`millstream mill audit --recover`"
            )
        waiting = [event for event in self._outbox.waiting(store, space, content_id) if event.action in CONTENT_CHANGES]
        return waiting[-1] if waiting else self._log.last(store, space, [content_id]).get(content_id)

    def is_missed(self, place: ItemRef, recorded: int) -> bool:
        """Whether the last event of an item in the log is not older than its manifest row, *recorded* (microseconds).

        Then a row that differs from it missed the event, or was damaged.
        """
        event = self._log.last(place.store, place.space, [place.content_id]).get(place.content_id)
        return event is not None and event.at >= recorded

    def pending(self, store: str, space: str, content_ids: Sequence[str]) -> set[str]:
        """Which of these items (some 1,000 at most) have a change, done or begun, that waits in the outbox."""
        return self._outbox.pending(store, space, content_ids)

    def deleted_at(self, place: ItemRef) -> int | None:
        """The time of an item's deletion (microseconds), if it waits in the outbox without a later addition."""
        return self._outbox.deletions(place.store, place.space, [place.content_id]).get(place.content_id)

    def missing_event(self, found: CheckResult, mimetype: str | None) -> AuditEvent:
        """The event that the audit log lacks, by what a check *found*: that the item was added as it is."""
        sums = [each for each in (found.content, found.provider) if each not in _ANSWERS]
        place = ItemRef(found.store, found.space, found.content_id)
        sha256 = sums[0] if sums else None
        return self.added_event(place, found.checked_at, sha256=sha256, size=found.size, mimetype=mimetype)

    def added_event(
        self, place: ItemRef, at: int, *, sha256: str | None, size: int, mimetype: str | None
    ) -> AuditEvent:
        """The event of an addition that the mill tells of: the item at *place* was there *at* that time (µs)."""
        return AuditEvent(
            AuditAction.ADD_CONTENT,
            MILL_USER,
            at,
            self._account,
            place.store,
            "",
            place.space,
            place.content_id,
            sha256,
            size,
            mimetype,
        )
