"""Recording that people have deleted items of a source on purpose: the tombstones without which no copy is deleted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.core.errors import InputError
from millstream.core.shown_commands import arguments
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import MillError
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.merge_join import groups

_GROUP = 1000


class NotDeletedError(MillError, InputError):
    """An item whose deletion is to be recorded is still there."""


def record_deletions(
    providers: ConfiguredStores, manifest: Manifest, store: str, space: str, content_ids: Sequence[str]
) -> Sequence[str]:
    """Leave a tombstone for each of *content_ids* of a space in *store*; returns those that it was left for.

    An id of which nothing is known, neither in the manifest nor in any store, gets none: it was mistyped. A tombstone
    is never older than what it replaces, whatever the clocks say, so that none is without effect. Raises
    :class:`~millstream.mill.errors.UnknownStoreError`, and :class:`NotDeletedError` for an item that the store still
    has; nothing is recorded then.
    """
    names = list(dict.fromkeys(content_ids))
    for group in groups(names, _GROUP):
        there = [name for name, info in zip(group, providers.find_many(store, space, group), strict=True) if info]
        if there:
            raise NotDeletedError(
                f"{there[0]!r} is still in space {space!r} of store {store!r}"
                + (f", and {len(there) - 1:,} more are" if len(there) > 1 else "")
                + f": delete the item there first (`millstream store delete {arguments(store, space)} CONTENT_IDS`)"
            )
    now = providers.clock.now()
    rows = manifest.get_many(store, space, names)
    unknown = _unknown(providers, manifest, store, space, [name for name in names if name not in rows])
    names = [name for name in names if name not in unknown]
    at = {name: max(now, row.modified) for name, row in rows.items()}
    manifest.writer.record([ManifestEvent(store, space, name, at.get(name, now), deleted=True) for name in names])
    return names


def _unknown(
    providers: ConfiguredStores, manifest: Manifest, store: str, space: str, content_ids: Sequence[str]
) -> Collection[str]:
    """Those of *content_ids* that no other store than *store* has, or is recorded to have."""
    unknown = {name for name in content_ids if not manifest.replicas(space, name)}
    for other in providers:
        for group in groups(sorted(unknown) if other != store else (), _GROUP):
            found = providers.find_many(other, space, group)
            unknown -= {name for name, info in zip(group, found, strict=True) if info is not None}
    return unknown
