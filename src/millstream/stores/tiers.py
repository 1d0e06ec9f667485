"""Storage providers as the place for the sealed objects of logs, and log stores that can reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.errors import LogInputError, StorageError, StorageUnavailableError
from millstream.log.store import LogStore, open_store
from millstream.stores.protocol import (
    AlreadyExistsError,
    ItemNotFoundError,
    SpaceNotFoundError,
    Store,
    StoreError,
    StoreInputError,
    all_entries,
)

SPACE = "tier"
"""The space of a provider in which sealed objects lie."""


class TierSpace:
    """The objects in a space of *store*; a :class:`millstream.log.tiering.TierObjects`.

    A space that does not exist belongs to a disk or volume that is not mounted: it is never an empty one, and only
    :meth:`create` makes it.
    """

    def __init__(self, store: Store, space: str = SPACE) -> None:
        self._store = store
        self._space = space

    @property
    def url(self) -> str:
        return self._store.url

    def create(self) -> None:
        from millstream.stores.providers import open_provider

        try:
            open_provider(self.url, create=True)
            self._store.create_space(self._space)
        except StoreError as error:
            raise _explained(self.url, error) from error

    def put(self, name: str, source: BinaryIO, *, sha256: str) -> None:
        try:
            self._store.put(self._space, name, source, sha256=sha256, create_only=True)
        except AlreadyExistsError:
            return
        except StoreError as error:
            raise _explained(self.url, error) from error

    def read(self, name: str, start: int, length: int) -> bytes | None:
        try:
            with self._store.open(self._space, name, start=start, length=length) as source:
                return source.read(length)
        except ItemNotFoundError:
            return None
        except StoreError as error:
            raise _explained(self.url, error) from error

    def size(self, name: str) -> int | None:
        try:
            return self._store.info(self._space, name).size
        except ItemNotFoundError:
            return None
        except StoreError as error:
            raise _explained(self.url, error) from error

    def delete(self, name: str) -> None:
        try:
            self._store.delete(self._space, name)
        except ItemNotFoundError:
            return
        except StoreError as error:
            raise _explained(self.url, error) from error

    def names(self, prefix: str) -> Iterator[str]:
        try:
            for entry in all_entries(self._store, self._space, prefix=prefix):
                yield entry.content_id
        except StoreError as error:
            raise _explained(self.url, error) from error


def open_tier(url: str) -> TierSpace:
    """The objects at the provider that *url* names. Raises :class:`LogInputError`."""
    from millstream.stores.providers import open_provider

    try:
        return TierSpace(open_provider(url))
    except StoreInputError as error:
        raise LogInputError(f"invalid URL of a tier: {error}") from error
    except StoreError as error:
        raise _explained(url, error) from error


def open_log_store(url: str, clock: Clock | None = None, **options: Any) -> LogStore:
    """As :func:`millstream.log.open_store`, with logs in buckets, and blocks that were moved to other providers."""
    return open_store(url, clock, open_objects=open_tier, open_bucket=open_bucket, **options)


def open_bucket(url: str) -> Bucket:
    """The bucket of the log store at *url*. Raises :class:`LogInputError`."""
    from millstream.stores.s3.log_bucket import open_log_bucket

    return open_log_bucket(url)


def _explained(url: str, error: StoreError) -> StorageError:
    if isinstance(error, SpaceNotFoundError):
        return StorageUnavailableError(
            f"the objects of logs at {url}: there is no space {SPACE!r}: mount its disk or volume, or restore the "
            "space from a backup"
        )
    kind = StorageUnavailableError if error.transient else StorageError
    return kind(f"the objects of logs at {url}: {error}")
