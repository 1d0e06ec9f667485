"""Times at which each item of a protected space was last read, at the source and in every copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from millstream.mill.adoption.adopted_store import AdoptedStore
from millstream.mill.manifest import Manifest
from millstream.mill.merge_join import groups

_GROUP = 500


class ItemTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The time at which an item was last read (microseconds since the epoch, UTC). ``copies`` has, for each store, the
    time at which its copy was last verified; None if never.
    """

    store: str
    space: str
    content_id: str
    size: int
    sha256: str
    last_read_at: int
    copies: Mapping[str, int | None]


def reading_times(adopted: AdoptedStore, manifest: Manifest, store: str, space: str) -> Iterator[ItemTimes]:
    """The times of each item that is at the source, in the order of the ids."""
    there = (item for item in adopted.catalog.scan(store, space) if item.is_there)
    for items in groups(there, _GROUP):
        copies: dict[str, dict[str, int | None]] = {item.content_id: {} for item in items}
        for row in manifest.replicas_of(space, list(copies)):
            if row.store != store and not row.deleted:
                copies[row.content_id][row.store] = row.verified_at
        for item in items:
            yield ItemTimes(
                store=store,
                space=space,
                content_id=item.content_id,
                size=item.size,
                sha256=item.sha256,
                last_read_at=item.last_read_at,
                copies=copies[item.content_id],
            )
