"""Bringing the manifest up to date with a source: what was added or changed there since it was last recorded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.mill.differences import is_unchanged
from millstream.mill.joining import groups, outer_join
from millstream.mill.manifest import Event, Known, Manifest
from millstream.mill.providers import Providers
from millstream.stores.protocol import ItemInfo


class Recorded(msgspec.Struct, frozen=True):
    """What a listing had: items in all, those newly recorded, and those that have no provider checksum to record."""

    listed: int
    recorded: int
    without_checksum: int


def record_space(providers: Providers, manifest: Manifest, store: str, space: str) -> Recorded:
    """Record every item of a space that the manifest does not know in its present version.

    The checksum is the one that the provider recorded when the bytes arrived, never one of the bytes as they are now:
    rot must not become the record. An item without one is counted and left out. Nothing is taken for deleted because
    it is not listed: a tombstone comes from whoever deletes (promise P8). No item is recorded as of later than now,
    whatever its provider's clock says: a deletion that is recorded afterwards would be older, and get lost.
    """
    listed = recorded = without = 0
    now = providers.clock.now()  # before the listing: who deletes what is listed here does so later
    for group in groups(_listed(providers, manifest, store, space, now), 1000):
        new = [(name, row) for name, row, known in group if not known]
        infos = providers.find_many(store, space, [name for name, _ in new])
        found = [_event(store, space, info, row, now) for (_, row), info in zip(new, infos, strict=True)]
        events = [event for event in found if event is not None and event.sha256]
        manifest.writer.record(events)
        listed += len(group)
        recorded += len(events)
        without += len([event for event in found if event is not None]) - len(events)
    return Recorded(listed, recorded, without)


def _listed(
    providers: Providers, manifest: Manifest, store: str, space: str, now: int
) -> Iterator[tuple[str, Known | None, bool]]:
    """Each listed id, its row, and whether that row is of this version of the item."""
    for content_id, entry, row in outer_join(providers.entries(store, space), manifest.scan_known(store, space)):
        if entry is None:
            continue
        known = row is not None and not row.deleted and row.size == entry.size
        yield content_id, row, known and row is not None and is_unchanged(entry.modified, row.modified, now)


def _event(store: str, space: str, info: ItemInfo | None, row: Known | None, now: int) -> Event | None:
    if info is None:
        return None
    at = now if info.modified is None else min(info.modified, now)
    same = row is not None and not row.deleted and row.sha256 == info.checksum()
    size = row.size if same and row is not None else info.size  # the size of damaged bytes is no record
    return Event(store, space, info.content_id, at, info.checksum(), size, info.mimetype)
