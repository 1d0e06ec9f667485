"""Our own records of the copies of an item: the evidence of a vote.

The manifest and the audit log are written when bytes arrive at a store, and are kept apart from it. What waits in the
audit outbox counts as recorded. What a provider says of a copy (a sidecar, metadata) is no such record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.stores.audit import AuditAction, AuditEvent


class OwnRecords:
    """Records of *manifest*, and of the audit if there is one, about items in the stores of *providers*."""

    def __init__(
        self, providers: ConfiguredStores, manifest: Manifest, audit_lookup: AuditLookup | None = None
    ) -> None:
        self._providers, self._manifest, self._audit_lookup = providers, manifest, audit_lookup

    def sums(self, space: str, content_id: str, sources: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The recorded sums (hex) of one item, by each store that should have a copy of it.

        A store that is not one of *sources* may have two, where manifest and audit log disagree: only our own
        duplication writes there, so one of both was damaged. At a source the later record replaces the earlier one.
        Raises :class:`~millstream.mill.errors.ChangePendingError` where it is not known yet whether a change happened.
        """
        rows = {row.store: row for row in self._manifest.replicas(space, content_id)}
        audited = () if self._audit_lookup is None else self._audit_lookup.audited
        found = {}
        for store in sorted({*rows, *audited} & {*self._providers}):
            sums = _sums(rows.get(store), self._last_change(ItemRef(store, space, content_id)), store in sources)
            if sums is not None:
                found[store] = sums
        return found

    def is_added(self, place: ItemRef) -> bool:
        """Whether the audit says that the item must be there: its last event, if there is one, is no deletion."""
        event = self._last_change(place)
        return event is not None and event.action != AuditAction.DELETE_CONTENT

    def _last_change(self, place: ItemRef) -> AuditEvent | None:
        return None if self._audit_lookup is None else self._audit_lookup.last_change(place)


def _sums(row: ManifestRow | None, event: AuditEvent | None, source: bool) -> frozenset[str] | None:
    """The sums of one store; None where it should have no copy."""
    from_row = None if row is None or row.deleted else row.sha256
    from_event = None if event is None or event.action == AuditAction.DELETE_CONTENT else event.sha256
    if event is not None and (row is None or event.at >= row.modified):
        if event.action == AuditAction.DELETE_CONTENT:
            return None
        missed = row is None or event.at > row.modified  # the manifest does not know the event yet, or lost it
        return _known(from_event) if source or missed else _known(from_row, from_event)
    if row is None or row.deleted:
        return None
    return _known(from_row) if source else _known(from_row, from_event)


def _known(*sums: str | None) -> frozenset[str]:
    return frozenset(one for one in sums if one is not None)
