"""The source of an adoption as a storage provider: it lists what was adopted, with the checksums of the catalog."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NoReturn

import sqlalchemy as sa

from millstream.mill.adoption.catalog import AdoptedItem, AdoptionCatalog
from millstream.mill.adoption.sources import SourceItem, item_of, opened
from millstream.mill.errors import ChangedSinceAdoptionError, ItemLeftOutError
from millstream.stores.bulk import SMALL, NewItem
from millstream.stores.hashing import Digests, hash_stream
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Checksum,
    ChecksumOrigin,
    Entry,
    ItemInfo,
    ItemNotFoundError,
    SpaceAccess,
    Store,
    StoreError,
    StoreInputError,
    StoreRefusedError,
)
from millstream.stores.provider_schemes import provider_scheme
from millstream.stores.sources import is_source_url

_REQUESTS = 8
"""Items of a bucket that are read at the same time."""


class AdoptedStore:
    """The store *source*, called *name*, as *catalog* has it: what was adopted and is still listed, only to be read.

    An item that changed since it was adopted is listed as it was, and cannot be opened: its new bytes are adopted
    first. ``modified`` is when an item was adopted. The methods are those of :class:`Store`.
    """

    def __init__(self, source: Store, name: str, catalog: AdoptionCatalog) -> None:
        self.source, self.name, self.catalog = source, name, catalog
        self.bulk = AdoptedBulk(self)

    @property
    def url(self) -> str:
        """The URL of the source itself."""
        return self.source.url

    def spaces(self) -> Sequence[str]:
        return self.source.spaces()

    def has_space(self, space: str) -> bool:
        return self.source.has_space(space)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        if limit <= 0:
            return []
        page = self.catalog.page(self.name, space, prefix=prefix, after=after, limit=limit)
        if not page and not prefix and not after and self.source.has_space(space):
            self.source.entries(space, limit=1)  # raises where it is not there: nothing adopted is not an answer then
        return [Entry(item.content_id, item.size, item.adopted_at) for item in page]

    def info(self, space: str, content_id: str) -> ItemInfo:
        found = self.infos(space, [content_id])[0]
        if isinstance(found, StoreError):
            raise found
        return found

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        """:meth:`info` of each item, or its error."""
        items = self.catalog.get_many(self.name, space, content_ids)
        return [self._info(space, content_id, items.get(content_id)) for content_id in content_ids]

    def _info(self, space: str, content_id: str, item: AdoptedItem | None) -> ItemInfo | StoreError:
        if item is not None and item.excluded_at is not None:
            return ItemLeftOutError(
                f"{content_id!r} in {self.url}/{space} is excluded from protection: change the patterns with "
                "`millstream protect --exclude`, or remove them with --no-exclude"
            )
        if item is None:
            return ItemNotFoundError(f"{content_id!r} in {self.url}/{space} was not adopted: run `millstream protect`")
        if not item.is_there:
            return ItemNotFoundError(
                f"{content_id!r} in {self.url}/{space} has vanished from the source: get the item from another copy"
            )
        sums = {"sha256": item.sha256, **item.sums}
        return ItemInfo(
            content_id,
            item.size,
            tuple(Checksum(algorithm, value, ChecksumOrigin.COMPUTED) for algorithm, value in sums.items()),
            item.mimetype,
            item.properties,
            item.adopted_at,
        )

    @contextlib.contextmanager
    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> Iterator[BinaryIO]:
        row = self.catalog.get_many(self.name, space, [content_id]).get(content_id)
        if start == 0 and length is None:
            with self.opened(space, content_id, row) as file:
                yield file
            return
        self._require_same(space, content_id, row, item_of(self.source, space, content_id))
        with self.source.open(space, content_id, start=start, length=length) as file:
            yield file

    @contextlib.contextmanager
    def opened(self, space: str, content_id: str, adopted: AdoptedItem | None) -> Iterator[BinaryIO]:
        """All bytes of the version that was *adopted*."""
        with opened(self.source, space, content_id) as (file, now):
            self._require_same(space, content_id, adopted, now)
            yield file

    def _require_same(self, space: str, content_id: str, adopted: AdoptedItem | None, now: SourceItem | None) -> None:
        """Raise :class:`ChangedSinceAdoptionError` where the source has another version than was *adopted*."""
        if adopted is None or now is None or not adopted.is_there:
            raise ItemNotFoundError(
                f"{content_id!r} in {self.url}/{space} was not adopted, is excluded, or has vanished from the source: "
                "run `millstream protect`"
            )
        if (adopted.size, adopted.version) != (now.size, now.version):
            raise ChangedSinceAdoptionError(
                f"{content_id!r} in {self.url}/{space} changed since it was adopted: run `millstream protect` again"
            )

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        return self.source.space_acls(space)

    def create_space(self, space: str) -> None:
        if not self.source.has_space(space):
            self._refuse()

    def delete_space(self, space: str) -> None:  # noqa: ARG002
        self._refuse()

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:  # noqa: ARG002
        self._refuse()

    def put(
        self,
        space: str,  # noqa: ARG002
        content_id: str,  # noqa: ARG002
        source: BinaryIO,  # noqa: ARG002
        *,
        mimetype: str = DEFAULT_MIMETYPE,  # noqa: ARG002
        properties: Mapping[str, str] | None = None,  # noqa: ARG002
        sha256: str | None = None,  # noqa: ARG002
        create_only: bool = False,  # noqa: ARG002
    ) -> ItemInfo:
        self._refuse()

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:  # noqa: ARG002
        self._refuse()

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:  # noqa: ARG002
        self._refuse()

    def delete(self, space: str, content_id: str) -> None:  # noqa: ARG002
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreRefusedError(
            f"{self.url} is a source that other programs write: Millstream never writes there; choose another store"
        )


class AdoptedBulk:
    """Operations of an adopted store on many small items."""

    def __init__(self, store: AdoptedStore) -> None:
        self._store = store

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        """The row of each item in the catalog."""
        return self._store.infos(space, content_ids)

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        """The bytes of each item, or an error where it changed or is large."""
        rows = self._store.catalog.get_many(self._store.name, space, content_ids)
        if len(content_ids) <= 1 or not provider_scheme(self._store.url).is_remote:
            return [self._read(space, content_id, rows.get(content_id)) for content_id in content_ids]
        with ThreadPoolExecutor(min(_REQUESTS, len(content_ids)), thread_name_prefix="mill-source") as pool:
            return list(pool.map(lambda one: self._read(space, one, rows.get(one)), content_ids))

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        """The size and SHA-256 of each item, or an error where it changed or is large."""
        found = self.read(space, content_ids)
        return [data if isinstance(data, StoreError) else hash_stream(io.BytesIO(data)) for data in found]

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:  # noqa: ARG002
        """Nothing is ever written."""
        return [
            StoreRefusedError(
                f"{self._store.url} is a source that other programs write: Millstream never writes there; "
                "choose another store"
            )
            for _ in items
        ]

    def _read(self, space: str, content_id: str, row: AdoptedItem | None) -> bytes | StoreError:
        try:
            with self._store.opened(space, content_id, row) as file:
                data = file.read(SMALL + 1)
        except StoreError as error:
            return error
        except OSError as error:
            return StoreError(f"cannot read {content_id!r} in {self._store.url}/{space}: {error.strerror}")
        return (
            data
            if len(data) <= SMALL
            else StoreInputError(
                f"{content_id!r} in {self._store.url}/{space} is larger than {SMALL:,} bytes, the limit of a bulk "
                "read: read the item alone"
            )
        )


def with_adopted_sources(stores: Mapping[str, Store], engine: Callable[[], sa.Engine]) -> dict[str, Store]:
    """*stores* by id, those that other programs write to as the catalog in the database of *engine* has them."""
    sources = [name for name, store in stores.items() if is_source_url(store.url)]
    if not sources:
        return dict(stores)
    catalog = AdoptionCatalog(engine())
    return {name: AdoptedStore(one, name, catalog) if name in sources else one for name, one in stores.items()}


def find_adopted_store(store: Store) -> AdoptedStore | None:
    """The adopted store that *store* is, below its decorators; None where it is none."""
    found: object = store
    while found is not None and not isinstance(found, AdoptedStore):
        found = getattr(found, "store", None)
    return found


def adopted_store(store: Store) -> AdoptedStore:
    """The same. Raises :class:`StoreInputError` where it is none."""
    found = find_adopted_store(store)
    if found is None:
        raise StoreInputError(
            f"{store.url} is not configured as a source that other programs write, so it has no recorded listing: "
            "name single items instead, or configure the store as folder:///PATH?space=NAME or "
            "s3://BUCKET/PREFIX?space=NAME"
        )
    return found
