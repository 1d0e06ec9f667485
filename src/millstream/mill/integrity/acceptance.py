"""Recording, by decision of an operator, that the present bytes of an item are the right ones."""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.errors import InputError
from millstream.core.shown_commands import arguments
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import MillError
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import ItemNotFoundError


class NotAcceptedError(MillError, InputError):
    """The bytes of an item cannot be recorded as the right ones."""


def accept_bytes(
    providers: ConfiguredStores,
    manifest: Manifest,
    place: ItemRef,
    *,
    sources: Collection[str],
    audit: tuple[AuditLookup, AuditOutbox],
) -> ManifestEvent:
    """Read the item at *place* and record its bytes, in the manifest and, where its store is audited, in the audit.

    *sources* are the stores that are sources of its space, if there are any. Raises :class:`NotAcceptedError` where
    the store is none of them, or its provider states another checksum than the bytes have.
    """
    if sources and place.store not in sources:
        raise NotAcceptedError(
            f"the copy of {place.content_id!r} in store {place.store!r} cannot be accepted, because its "
            f"source is in store {' or '.join(map(repr, sorted(sources)))}: accept the content there, "
            "or repair the copy"
        )
    info = providers.find(place)
    if info is None:
        raise ItemNotFoundError(
            f"there is no item {place}: `millstream store list {arguments(place.store, place.space)}` lists the items"
        )
    read, stated = providers.hash(place), info.checksum()
    if stated not in (None, read.sha256):
        raise NotAcceptedError(
            f"the content of {place} does not match the checksum of its provider: put the item again "
            f"(`millstream store put {arguments(place.store, place.space)} PATH`)"
        )
    row, now = manifest.get(place.store, place.space, place.content_id), providers.clock.now()
    event = ManifestEvent(
        place.store,
        place.space,
        place.content_id,
        now if row is None else max(now, row.modified),  # what is recorded now counts, whatever the clocks say
        read.sha256,
        read.size,
        info.mimetype,
    )
    manifest.writer.record([event])
    lookup, outbox = audit
    if place.store in lookup.audited:
        accepted = lookup.added_event(place, event.at, sha256=event.sha256, size=event.size, mimetype=event.mimetype)
        outbox.add([accepted])
    return event
