"""Comparing what a store lists with what the audit says of it: which event is missing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.item_ref import ItemRef
from millstream.mill.merge_join import outer_join
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
from millstream.stores.protocol import Entry, StoreError


class MissingEvent(msgspec.Struct, frozen=True):
    """A change that bypassed the audit: what it must have been, and the evidence."""

    action: AuditAction
    store: str
    space: str
    content_id: str
    reason: str


class UncomparedItem(msgspec.Struct, frozen=True):
    """An item of which the store does not say what it is, such as one with a damaged record beside it."""

    store: str
    space: str
    content_id: str
    reason: str


def missing_events(
    providers: ConfiguredStores, log: AuditLog, outbox: AuditOutbox, store: str, space: str
) -> Iterator[MissingEvent | UncomparedItem]:
    """The events that the audit of a space lacks, and the items that could not be compared, in the order of the ids.

    Items with events that were not processed yet are left out: what is said of them may change. An item is taken for
    replaced where its size differs from that of its last event; of the same size, or where the event has none, as those
    that earlier releases settled, where its bytes have another checksum by what the provider recorded.
    Raises :class:`StoreError` where the store does not answer.
    """
    pending = outbox.pending(store, space)
    for content_id, entry, event in outer_join(providers.entries(store, space), log.last_events(store, space)):
        if content_id in pending:
            continue
        try:
            found = _judge(providers, ItemRef(store, space, content_id), entry, event)
        except StoreError as error:
            if error.transient:
                raise
            yield UncomparedItem(store, space, content_id, str(error))
            continue
        if found is not None:
            action, reason = found
            yield MissingEvent(action, store, space, content_id, reason)


def _judge(
    providers: ConfiguredStores, place: ItemRef, entry: Entry | None, event: AuditEvent | None
) -> tuple[AuditAction, str] | None:
    exists = event is not None and event.action != AuditAction.DELETE_CONTENT
    if entry is None:
        return (AuditAction.DELETE_CONTENT, "it was added and is not listed") if exists else None
    if event is None:
        return AuditAction.ADD_CONTENT, "it is listed and was never added"
    if not exists:
        return AuditAction.ADD_CONTENT, "it is listed and was deleted"
    if event.size is not None and entry.size != event.size:
        return AuditAction.ADD_CONTENT, f"it has {entry.size:,} bytes and was added with {event.size:,}"
    touched = entry.modified is not None and entry.modified > event.at
    if (touched or event.size is None) and _is_other(providers, place, event):
        return AuditAction.ADD_CONTENT, f"it has another checksum than it was added with ({event.sha256})"
    return None


def _is_other(providers: ConfiguredStores, place: ItemRef, event: AuditEvent) -> bool:
    info = providers.find(place)
    return info is not None and info.checksum() != event.sha256
