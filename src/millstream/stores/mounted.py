"""One store in which some spaces live elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import quote

from millstream.stores.bulk import Bulk, NewItem, bulk_of
from millstream.stores.hashing import Digests
from millstream.stores.names import check_space, order_key
from millstream.stores.protocol import ItemInfo, Store, StoreError, StoreInputError
from millstream.stores.wrapper import Answer, StoreCall, StoreWrapper


class MountedStore(StoreWrapper):
    """The store *base*, in which the spaces named in *mounts* are those of the same names in other stores.

    Its URL is that of *base* with one ``mount=SPACE:URL`` a mount in the query. A mounted space hides one of that name
    in *base*. *base* itself must not be a mounted store. The methods are those of :class:`Store`; ``bulk`` does many
    items at once, where *base* does.
    """

    def __init__(self, base: Store, mounts: Mapping[str, Store]) -> None:
        if isinstance(base, MountedStore):
            raise StoreInputError(f"{base.url} already has mounts: pass all mounts to one MountedStore")
        super().__init__(base)
        self._mounts = {check_space(space): store for space, store in mounts.items()}
        own = bulk_of(base)
        self.bulk: Bulk | None = None if own is None else MountedBulk(own, self._mounts)

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:
        return act(self._store(call.space))

    @property
    def mounted(self) -> Collection[Store]:
        """The stores of the mounted spaces."""
        return self._mounts.values()

    @property
    def url(self) -> str:
        mounts = (f"mount={quote(space, safe='')}:{quote(store.url, safe=':/')}" for space, store in self._ordered())
        joint = "&" if "?" in self.store.url else "?"
        return joint.join(filter(None, (self.store.url, "&".join(mounts))))

    def spaces(self) -> Sequence[str]:
        mounted = [space for space, store in self._ordered() if store.has_space(space)]
        own = [space for space in self.store.spaces() if space not in self._mounts]
        return sorted(own + mounted, key=order_key)

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        source, target = self._store(space), self._store(to_space)
        if source is target:
            return source.copy(space, content_id, to_space, to_content_id)
        info = source.info(space, content_id)
        with source.open(space, content_id) as stream:
            return target.put(
                to_space, to_content_id, stream, mimetype=info.mimetype, properties=info.properties,
                sha256=info.checksum(),
            )  # fmt: skip

    def _store(self, space: str) -> Store:
        return self._mounts.get(space, self.store)

    def _ordered(self) -> list[tuple[str, Store]]:
        return sorted(self._mounts.items(), key=lambda mount: order_key(mount[0]))


class MountedBulk:
    """The :class:`~millstream.stores.bulk.Bulk` of a store whose own one is *base*, with *mounts* by space.

    Items of a mount without bulk operations are errors: they must be written one by one.
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
    return [StoreError(f"items of the mounted space {space!r} must be written one at a time") for _ in range(count)]
