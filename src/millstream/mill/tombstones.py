"""Recording that people have deleted items of a source on purpose: the tombstones without which no copy is deleted."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

from millstream.core.errors import InputError
from millstream.core.shown_commands import arguments
from millstream.mill.adoption.adopted_store import find_adopted_store
from millstream.mill.adoption.sources import item_of
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import MillError
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.merge_join import groups
from millstream.stores.protocol import StoreError

_GROUP = 1000


class NotDeletedError(MillError, InputError):
    """An item whose deletion is to be recorded is still there."""


def record_deletions(
    providers: ConfiguredStores,
    manifest: Manifest,
    store: str,
    space: str,
    content_ids: Sequence[str],
    *,
    copies: Collection[str] = (),
) -> Sequence[str]:
    """Leave a tombstone for each of *content_ids* of a space in *store*; returns those that it was left for.

    Those of the stores *copies* that are recorded to have an item, and do not have it, get one too: there is nothing
    that duplication could delete. Others, and those that do not answer, get theirs when duplication deletes the copy.

    An id of which nothing is known, neither in the manifest nor in any store, gets none: it was mistyped. A tombstone
    is never older than what it replaces, whatever the clocks say, so that none is without effect. Raises
    :class:`~millstream.mill.errors.UnknownStoreError`, and :class:`NotDeletedError` for an item that the store still
    has; nothing is recorded then.
    """
    names = list(dict.fromkeys(content_ids))
    for group in groups(names, _GROUP):
        there = _still_there(providers, store, space, group)
        if there:
            delete = f" (`millstream store delete {arguments(store, space)} CONTENT_IDS`)"
            raise NotDeletedError(
                f"{there[0]!r} is still in space {space!r} of store {store!r}"
                + (f", and {len(there) - 1:,} more are" if len(there) > 1 else "")
                + f": delete the item there first{delete if find_adopted_store(providers[store]) is None else ''}"
            )
    now = providers.clock.now()
    rows = manifest.get_many(store, space, names)
    unknown = _unknown(providers, manifest, store, space, [name for name in names if name not in rows])
    names = [name for name in names if name not in unknown]
    at = {name: max(now, row.modified) for name, row in rows.items()}
    events = [ManifestEvent(store, space, name, at.get(name, now), deleted=True) for name in names]
    manifest.writer.record([*events, *_lost_copies(providers, manifest, space, names, copies)])
    return names


def _still_there(providers: ConfiguredStores, store: str, space: str, content_ids: Sequence[str]) -> list[str]:
    """Those of *content_ids* that the store has. A source of other programs is asked itself: what was adopted there may
    have vanished since, or be back."""
    adopted = find_adopted_store(providers[store])
    if adopted is None:
        found: Sequence[object | None] = providers.find_many(store, space, content_ids)
    else:
        found = [providers.call(functools.partial(item_of, adopted.source, space, name)) for name in content_ids]
    return [name for name, item in zip(content_ids, found, strict=True) if item is not None]


def _lost_copies(
    providers: ConfiguredStores, manifest: Manifest, space: str, names: Sequence[str], stores: Collection[str]
) -> Iterator[ManifestEvent]:
    """Tombstones of the copies of the items *names* that are recorded in *stores* and are not there."""
    modified: dict[str, dict[str, int]] = {}
    for row in manifest.replicas_of(space, names):
        if row.store in stores and row.store in providers and not row.deleted:
            modified.setdefault(row.store, {})[row.content_id] = row.modified
    now = providers.clock.now()
    for store, recorded in modified.items():
        for group in groups(recorded, _GROUP):
            try:
                found = providers.find_many(store, space, group)
            except StoreError:
                continue
            for name, info in zip(group, found, strict=True):
                if info is None:
                    yield ManifestEvent(store, space, name, max(now, recorded[name]), deleted=True)


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
