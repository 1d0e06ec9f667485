"""Renamed items are copied within the stores that hold their bytes already, so that nothing travels twice."""

from __future__ import annotations

from millstream.core.errors import MillstreamError
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.catalog import AdoptedItem
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplication_decision import clean_properties
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ManifestEvent


def copy_renamed(target: AdoptionTarget, providers: ConfiguredStores, space: str, destination: str) -> int:
    """Copy renamed items within *destination* to their new names; returns how many were.

    Only where the old copy is as it was recorded, and nothing has the new name yet; all others are copied from the
    source. What was copied is verified by its bytes afterwards, as every copy is.
    """
    gone = [item for item in target.catalog.vanished(target.store, space) if item.renamed_to is not None]
    there = target.catalog.get_many(target.store, space, [item.renamed_to or "" for item in gone])
    return sum(
        _copy(target, providers, item, there[name], destination)
        for item in gone
        if (name := item.renamed_to or "") in there
    )


def _copy(
    target: AdoptionTarget, providers: ConfiguredStores, item: AdoptedItem, renamed: AdoptedItem, destination: str
) -> bool:
    """Copy *item* to the name under which it is *renamed*."""
    before, after = item.content_id, renamed.content_id
    rows = target.manifest.get_many(destination, item.space, [before, after])
    old, new = rows.get(before), rows.get(after)
    if old is None or old.deleted or old.missing or old.sha256 != item.sha256 or (new is not None and not new.deleted):
        return False
    store = providers[destination]
    try:
        if providers.find(ItemRef(destination, item.space, after)) is not None:
            return False
        copied = providers.call(lambda: store.copy(item.space, before, item.space, after))
        properties = clean_properties(renamed.properties)
        if clean_properties(copied.properties) != properties:  # it was touched, too
            providers.call(lambda: store.set_properties(item.space, after, properties))
    except MillstreamError:
        return False  # whatever is wrong is found by the copy from the source
    if copied.size != item.size or copied.checksum() not in (None, item.sha256):
        return False
    now = max(target.clock.now(), new.modified if new is not None else 0)
    event = ManifestEvent(destination, item.space, after, now, item.sha256, item.size, copied.mimetype)
    target.manifest.writer.record([event])
    return True
