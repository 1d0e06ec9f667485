"""One store in which some spaces live elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO
from urllib.parse import quote

from millstream.stores.bulk import Bulk, bulk_of
from millstream.stores.mounted_bulk import MountedBulk
from millstream.stores.names import check_space, order_key
from millstream.stores.protocol import DEFAULT_MIMETYPE, Entry, ItemInfo, SpaceAccess, Store, StoreInputError


class MountedStore:
    """The store *base*, in which the spaces named in *mounts* are those of the same names in other stores.

    Its URL is that of *base* with one ``mount=SPACE:URL`` a mount in the query. A mounted space hides one of that name
    in *base*. *base* itself must not be a mounted store. The methods are those of :class:`Store`; ``bulk`` does many
    items at once, where *base* does.
    """

    def __init__(self, base: Store, mounts: Mapping[str, Store]) -> None:
        if isinstance(base, MountedStore):
            raise StoreInputError(f"{base.url} has mounts already: name all of them in one MountedStore")
        self._base = base
        self._mounts = {check_space(space): store for space, store in mounts.items()}
        own = bulk_of(base)
        self.bulk: Bulk | None = None if own is None else MountedBulk(own, self._mounts)

    @property
    def url(self) -> str:
        mounts = (f"mount={quote(space, safe='')}:{quote(store.url, safe=':/')}" for space, store in self._ordered())
        joint = "&" if "?" in self._base.url else "?"
        return joint.join(filter(None, (self._base.url, "&".join(mounts))))

    def spaces(self) -> Sequence[str]:
        mounted = [space for space, store in self._ordered() if store.has_space(space)]
        own = [space for space in self._base.spaces() if space not in self._mounts]
        return sorted(own + mounted, key=order_key)

    def has_space(self, space: str) -> bool:
        return self._store(space).has_space(space)

    def create_space(self, space: str) -> None:
        self._store(space).create_space(space)

    def delete_space(self, space: str) -> None:
        self._store(space).delete_space(space)

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        return self._store(space).space_acls(space)

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        self._store(space).set_space_acls(space, acls)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        return self._store(space).entries(space, prefix=prefix, after=after, limit=limit)

    def info(self, space: str, content_id: str) -> ItemInfo:
        return self._store(space).info(space, content_id)

    def open(
        self, space: str, content_id: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BinaryIO]:
        return self._store(space).open(space, content_id, start=start, length=length)

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
    ) -> ItemInfo:
        return self._store(space).put(
            space,
            content_id,
            source,
            mimetype=mimetype,
            properties=properties,
            sha256=sha256,
            create_only=create_only,
        )

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        return self._store(space).set_properties(space, content_id, properties)

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        source, target = self._store(space), self._store(to_space)
        if source is target:
            return source.copy(space, content_id, to_space, to_content_id)
        info = source.info(space, content_id)
        with source.open(space, content_id) as stream:
            return target.put(to_space, to_content_id, stream, mimetype=info.mimetype, properties=info.properties)

    def delete(self, space: str, content_id: str) -> None:
        self._store(space).delete(space, content_id)

    def _store(self, space: str) -> Store:
        return self._mounts.get(space, self._base)

    def _ordered(self) -> list[tuple[str, Store]]:
        return sorted(self._mounts.items(), key=lambda mount: order_key(mount[0]))
