"""The configured stores by id, with every call to a provider in a retry loop (seed document, "Duplication Task
Processor": "All calls to providers occur within a retry loop")."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.mill.column_join import ItemColumns
from millstream.mill.errors import ItemLeftOutError, UnknownStoreError
from millstream.mill.item_ref import ItemRef
from millstream.mill.mount_check import MountCheck
from millstream.stores.audit import AuditedStore
from millstream.stores.bulk import Reading, bulk_of, reads_at_once
from millstream.stores.hashing import Digests, hash_stream
from millstream.stores.local.store import LocalStore
from millstream.stores.protocol import (
    ContentIdTooLongError,
    Entry,
    ItemInfo,
    ItemNotFoundError,
    SpaceNotFoundError,
    Store,
    StoreError,
)
from millstream.stores.sources import is_source_url

Answer = TypeVar("Answer")

SYSTEM_PREFIX = "x-"
"""Spaces of the system itself, such as the quarantine: never duplicated, never swept (reference mill §1.3)."""

QUARANTINE = "x-quarantine"
"""The space of each store where bad copies are kept."""


_CHUNK = 1000


class ConfiguredStores(Mapping[str, Store]):
    """Stores by id. Looking up an id that is not configured raises :class:`UnknownStoreError`.

    *retry* says how often a call is made that fails for a transient reason; its pauses are taken on *clock*. With
    *mount_check* looking up a store that should hold items, and is empty, raises :class:`StoreUnavailableError`; going
    through all of them does not.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        clock: Clock,
        retry: RetryPolicy | None = None,
        *,
        mount_check: MountCheck | None = None,
    ) -> None:
        self._stores = dict(stores)
        self._retry = retry or RetryPolicy()
        self._mount_check = mount_check
        self.clock = clock

    def __getitem__(self, store: str) -> Store:
        self.require(store)
        found = self._stores[store]
        if self._mount_check is not None:
            self._mount_check.require(store, found, lambda: self.call(found.spaces))
        return found

    def require(self, store: str) -> None:
        """Raise :class:`UnknownStoreError` if *store* is not configured."""
        if store not in self._stores:
            known = ", ".join(sorted(self._stores)) or "none"
            raise UnknownStoreError(f"unknown store {store!r}; the configured stores are {known}", store)

    def items(self) -> ItemsView[str, Store]:
        return self._stores.items()

    def values(self) -> ValuesView[Store]:
        return self._stores.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def __contains__(self, store: object) -> bool:
        return store in self._stores

    @property
    def unchecked(self) -> Mapping[str, Store]:
        """The same stores, looked up without the mount check: also those whose disk is not mounted."""
        return MappingProxyType(self._stores)

    def is_read_only(self, store: str) -> bool:
        """Whether other programs write *store*, so that nothing is ever written there."""
        return store in self._stores and is_source_url(self._stores[store].url)

    def is_left_out(self, place: ItemRef) -> bool:
        """Whether other programs write the store of an item, and the item is left out on purpose."""
        if not self.is_read_only(place.store):
            return False
        try:
            self.call(lambda: self._stores[place.store].info(place.space, place.content_id))
        except ItemLeftOutError:
            return True
        except StoreError:
            return False
        return False

    def call(self, function: Callable[[], Answer]) -> Answer:
        """The result of *function*, retried while it fails for a transient reason."""
        return self._retry.call(function, self.clock)

    def make_space(self, store: str, space: str) -> None:
        """Make *space* in *store*, where it is not there, once it is certain that the store itself is.

        So nothing is ever written below the mount point of a disk that went away a moment ago.
        """
        provider = self[store]
        if self._mount_check is not None:
            self._mount_check.require(store, provider, lambda: self.call(provider.spaces), seconds=0)
        self.call(lambda: provider.create_space(space))

    def find(self, place: ItemRef) -> ItemInfo | None:
        """The provider's metadata of the item at *place*; None if the item or space does not exist, or cannot exist."""
        store = self[place.store]
        try:
            return self.call(lambda: store.info(place.space, place.content_id))
        except (ItemNotFoundError, SpaceNotFoundError, ContentIdTooLongError):
            return None

    def find_many(self, store: str, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | None]:
        """:meth:`find` for each of *content_ids*, all at once where the store has a way to do that."""
        found = self.head_many(store, space, content_ids)
        return [info or self.find(ItemRef(store, space, name)) for name, info in zip(content_ids, found, strict=True)]

    def head_many(self, store: str, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | None]:
        """The store's metadata of those of *content_ids* that it has and can examine as a group; None for the
        others."""
        bulk = bulk_of(self[store])
        if bulk is None or not content_ids:
            return [None] * len(content_ids)
        found = self.call(lambda: bulk.infos(space, content_ids))
        return [one if isinstance(one, ItemInfo) else None for one in found]

    def readings(
        self, store: str, space: str, content_ids: Sequence[str], expected: Sequence[str | None] = ()
    ) -> Sequence[int | Reading | None] | None:
        """What those of *content_ids* are that the store can look at and read in one go, None for others.

        Of an item that is in every way as *expected* only the size (:meth:`ReadsAtOnce.readings`). None for all of them
        where the store has no way to do that.
        """
        bulk = bulk_of(self[store])
        at_once = None if bulk is None else reads_at_once(bulk)
        if at_once is None:
            return None
        found = self.call(lambda: at_once.readings(space, content_ids, expected)) if content_ids else []
        return [None if isinstance(one, StoreError) else one for one in found]

    def hash_many(self, store: str, space: str, content_ids: Sequence[str]) -> Sequence[Digests | None]:
        """:meth:`hash` for those of *content_ids* that the store can read together; None for the others."""
        bulk = bulk_of(self[store])
        if bulk is None or not content_ids:
            return [None] * len(content_ids)
        found = self.call(lambda: bulk.hashes(space, content_ids))
        return [one if isinstance(one, Digests) else None for one in found]

    def spaces(self, store: str) -> Sequence[str]:
        """The spaces that *store* lists."""
        provider = self[store]
        return self.call(provider.spaces)

    def runs(self, store: str, space: str, *, after: str = "") -> Iterator[ItemColumns]:
        """The same in columns: sizes, and times of change."""
        provider = self[store]
        own = find_listing(provider)
        if own is not None:
            if not self.call(lambda: provider.has_space(space)):
                return
            while True:
                found = self.call(partial(own.columns, space, after=after))
                yield ItemColumns(found.ids, (found.sizes, found.times))
                if len(found.ids) < _CHUNK:
                    return
                after = found.ids[-1]
        for page in self.pages(store, space, after=after):
            yield ItemColumns([e.content_id for e in page], ([e.size for e in page], [e.modified for e in page]))

    def id_runs(self, store: str, space: str) -> Iterator[ItemColumns]:
        """The ids that *store* lists, without any column; one of them may be gone where that saves looking at it."""
        provider = self[store]
        own = find_listing(provider)
        if own is None or not self.call(lambda: provider.has_space(space)):
            for page in self.pages(store, space):
                yield ItemColumns([entry.content_id for entry in page], ())
            return
        after = ""
        while True:
            found = self.call(partial(own.ids, space, after=after))
            yield ItemColumns(found, ())
            if len(found) < _CHUNK:
                return
            after = found[-1]

    def hash(self, place: ItemRef) -> Digests:
        """The size and SHA-256 of the bytes at *place* as they are now."""
        store = self[place.store]

        def read() -> Digests:
            with store.open(place.space, place.content_id) as file:
                return hash_stream(file)

        return self.call(read)

    def entries(
        self, store: str, space: str, *, prefix: str = "", after: str = "", chunk: int = 1000
    ) -> Iterator[Entry]:
        """Every entry above *after* whose id begins with *prefix*, in the order of the ids' bytes, *chunk* a call.

        None where there is no space.
        """
        for page in self.pages(store, space, prefix=prefix, after=after, chunk=chunk):
            yield from page

    def pages(
        self, store: str, space: str, *, prefix: str = "", after: str = "", chunk: int = 1000
    ) -> Iterator[Sequence[Entry]]:
        """The same, as they come: *chunk* entries together."""
        provider = self[store]
        if not self.call(lambda: provider.has_space(space)):
            return
        while True:
            found = self.call(partial(provider.entries, space, prefix=prefix, after=after, limit=chunk))
            yield found
            if len(found) < chunk:
                return
            after = found[-1].content_id


def find_listing(store: Store) -> LocalStore | None:
    """The local store that *store* is, below its audit; None where it is none."""
    while isinstance(store, AuditedStore):
        store = store.store
    return store if isinstance(store, LocalStore) else None


def is_system(space: str) -> bool:
    """Whether *space* belongs to the system itself."""
    return space.startswith(SYSTEM_PREFIX)
