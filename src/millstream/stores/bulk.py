"""The seam for many small items in one go: a provider that has it saves opening, locking and syncing for each of them.

It knows the plain case only. Whatever is out of the ordinary with an item comes back as its error, and is done by the
store's own methods, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import msgspec

from millstream.stores.hashing import Digests
from millstream.stores.protocol import DEFAULT_MIMETYPE, ItemInfo, Store, StoreError

SMALL = 1024 * 1024
"""Items of more bytes are not held in memory: they go by themselves."""


class NewItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An item that is to be stored under an id that is free, and the SHA-256 (hex) that its bytes must have.

    With ``folder`` the bytes are those of the same item in the local store in that folder, and ``data`` is empty:
    the store that stores the item reads them itself (see :func:`takes_files`).
    """

    content_id: str
    data: bytes
    sha256: str
    mimetype: str = DEFAULT_MIMETYPE
    properties: Mapping[str, str] = {}
    folder: str | None = None


class Reading(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """The store's metadata of an item, and its bytes: the provider's checksum and theirs (SHA-256, hex).

    ``size`` is that of the bytes that were read, ``modified`` in microseconds since the epoch, UTC, ``links`` the
    number of names that their file has.
    """

    provider: str | None
    sha256: str
    size: int
    modified: int | None
    links: int
    mimetype: str = DEFAULT_MIMETYPE
    properties: Mapping[str, str] = {}


class ReadsAtOnce(Protocol):
    """A :class:`Bulk` that looks at items and reads their bytes in one go."""

    def readings(
        self, space: str, content_ids: Sequence[str], expected: Sequence[str | None] = ()
    ) -> Sequence[int | Reading | StoreError]:
        """What each item is; an error where it has more bytes than :data:`SMALL`, or its bytes cannot be had.

        Bytes that differ from what the provider recorded of them are no error.

        *expected* has a checksum (SHA-256, hex) of each item, or None. Where the bytes and what the provider recorded
        of them are as expected, and the file has no other name, the answer is the number of bytes alone.
        """
        ...


class FetchedItem(NamedTuple):
    """The store's metadata of an item, and its bytes, from one answer."""

    info: ItemInfo
    data: bytes


class FetchesAtOnce(Protocol):
    """A :class:`Bulk` that returns metadata and bytes of items in one go."""

    def fetch(self, space: str, sizes: Mapping[str, int]) -> Sequence[FetchedItem | StoreError]:
        """The items that *sizes* names; an error where an item has more bytes than *sizes* says.

        Bytes that differ from a checksum of the provider may be an error.
        """
        ...


class Bulk(Protocol):
    """Operations of a store on many items of one space. Thread-safe. Results are in the order of the items, one for
    each: one that fails does not prevent the others from being done.
    """

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        """The result of :meth:`Store.info` for each item."""
        ...

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        """The bytes of each item, or an error where it has more than :data:`SMALL`."""
        ...

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        """The size and SHA-256 of the bytes of each item as they are now; an error where there are more than
        :data:`SMALL`."""
        ...

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:
        """Store *items*, of different ids, and say what was stored, the provider's checksum included.

        All that was stored is durable when this returns. An id that is not free gives an
        :class:`~millstream.stores.protocol.AlreadyExistsError`, and what is there stays as it is.
        """
        ...


def listed_infos(bulk: Bulk, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
    """What *bulk* says of each item, for callers that put items: an item that was put a moment ago may be missing."""
    own = getattr(bulk, "listed_infos", bulk.infos)
    return cast("Sequence[ItemInfo | StoreError]", own(space, content_ids))


def find_absent(bulk: Bulk, space: str, content_ids: Sequence[str]) -> Sequence[str]:
    """Those of *content_ids* of which *bulk* sees at a glance that they are not there; of others it may be so, too."""
    own = getattr(bulk, "absent", None)
    return [] if own is None else cast("Sequence[str]", own(space, content_ids))


def reads_at_once(bulk: Bulk) -> ReadsAtOnce | None:
    """*bulk* as one that looks and reads in one go; None where it does not."""
    return cast("ReadsAtOnce", bulk) if getattr(bulk, "readings", None) is not None else None


def fetches_at_once(bulk: Bulk) -> FetchesAtOnce | None:
    """*bulk* as one that returns metadata and bytes in one go; None where it does not."""
    return cast("FetchesAtOnce", bulk) if getattr(bulk, "fetch", None) is not None else None


def takes_files(bulk: Bulk) -> bool:
    """Whether *bulk* stores items whose bytes are named by :attr:`NewItem.folder`."""
    return bool(getattr(bulk, "takes_files", False))


def folder_of(bulk: Bulk) -> str | None:
    """The folder of the local store whose items *bulk* reads; None where it is of another kind."""
    return cast("str | None", getattr(bulk, "folder", None))


def bulk_of(store: Store) -> Bulk | None:
    """The bulk operations of *store*; None if it has none."""
    return cast("Bulk | None", getattr(store, "bulk", None))
