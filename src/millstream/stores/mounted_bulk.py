"""Many items at once in a store in which some spaces live elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.stores.bulk import Bulk, NewItem, bulk_of
from millstream.stores.hashing import Digests
from millstream.stores.protocol import ItemInfo, Store, StoreError


class MountedBulk:
    """The :class:`~millstream.stores.bulk.Bulk` of a store whose own one is *base*, with *mounts* by space.

    Items of a mount that has no way of its own for many are errors: they are done one by one.
    """

    def __init__(self, base: Bulk, mounts: Mapping[str, Store]) -> None:
        self._base = base
        self._mounts = {space: bulk_of(store) for space, store in mounts.items()}

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        bulk = self._bulk(space)
        return _alone(space, len(content_ids)) if bulk is None else bulk.infos(space, content_ids)

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        bulk = self._bulk(space)
        return _alone(space, len(content_ids)) if bulk is None else bulk.read(space, content_ids)

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        bulk = self._bulk(space)
        return _alone(space, len(content_ids)) if bulk is None else bulk.hashes(space, content_ids)

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:
        bulk = self._bulk(space)
        return _alone(space, len(items)) if bulk is None else bulk.put(space, items)

    def _bulk(self, space: str) -> Bulk | None:
        return self._mounts.get(space, self._base)


def _alone(space: str, count: int) -> Sequence[StoreError]:
    return [StoreError(f"the items of the mounted space {space!r} are done one by one") for _ in range(count)]
