"""The seam of storage providers: spaces of content items with properties.

Every implementation passes :class:`millstream.testing.stores.StoreConformance`, or, where it is content-addressed,
:class:`millstream.testing.stores.CommonStoreConformance`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import msgspec

from millstream.core.errors import InputError, MillstreamError, NotFoundError

DEFAULT_MIMETYPE = "application/octet-stream"


class StoreError(MillstreamError):
    """The storage provider could not do what was asked."""


class StoreUnavailableError(StoreError):
    """The storage provider did not answer; the same call may succeed later."""

    transient = True


class StoreInputError(StoreError, InputError):
    """The storage provider refuses this name, URL or value."""

    permanent = True


class StoreCredentialsError(StoreInputError):
    """There are no credentials for the storage provider."""

    permanent = False


class NoSuchStoreError(StoreError, NotFoundError):
    """No store of that id is configured."""


class SpaceNotFoundError(StoreError, NotFoundError):
    """There is no such space."""


class ItemNotFoundError(StoreError, NotFoundError):
    """There is no such content item."""


def space_not_found(space: str, url: str) -> SpaceNotFoundError:
    """The error of a *space* that the store at *url* does not have."""
    return SpaceNotFoundError(
        f"there is no space {space!r} in {url}: `millstream store list STORE` lists the spaces, and `millstream store "
        "create STORE SPACE` creates one"
    )


def item_not_found(content_id: str, space: str, url: str) -> ItemNotFoundError:
    """The error of an item that is not in *space* of the store at *url*."""
    return ItemNotFoundError(
        f"there is no item {content_id!r} in space {space!r} of {url}: `millstream store list STORE SPACE` lists the "
        "items"
    )


def already_exists(content_id: str, space: str, url: str) -> AlreadyExistsError:
    """The error of an item that is to be created in *space* of the store at *url* (or with that name), but exists."""
    return AlreadyExistsError(
        f"item {content_id!r} already exists in space {space!r} of {url}: choose another id, or omit create-only to "
        "replace the item"
    )


class SpaceNotEmptyError(StoreError):
    """The space still holds content items."""


class ChecksumMismatchError(StoreError):
    """The bytes that arrived are not the bytes that were promised; nothing was stored."""


class AlreadyExistsError(StoreError):
    """A content item of that name exists, and the caller asked to create only."""


class StoreRefusedError(StoreError):
    """The provider does not allow this change in the item's present state (archived, read-only, content-addressed)."""


class AccessDeniedError(StoreError):
    """The account that runs Millstream, or its credentials, may not do this at the storage provider."""


class UnreadableError(StoreError):
    """The bytes of a content item cannot be read (no right to them, archived, special); trying again does not help."""


READ_REFUSALS = (UnreadableError, StoreRefusedError, AccessDeniedError, PermissionError)
"""Errors of reading that say nothing against the bytes: the store does not give them out in their present state."""


class ItemChangedError(StoreUnavailableError):
    """The content item changed while it was read: the bytes that were read belong to no version. Read it again."""


class ContentIdTooLongError(StoreInputError):
    """The content id is longer than the provider keeps; the same call never succeeds."""


class ContentTooLargeError(StoreInputError):
    """The content is larger than the provider keeps; the same call never succeeds."""


class DamagedRecordError(StoreError):
    """The provider's record of an item (its checksum and properties) or of a space (its access list) is damaged;
    ``record`` names it."""

    def __init__(self, message: str, record: str = "") -> None:
        super().__init__(message)
        self.record = record


def damaged_acls(damage: str, record: str) -> DamagedRecordError:
    """The error of an access list whose *record* has this *damage*; only a whole new list can replace it."""
    return DamagedRecordError(
        f"{damage}: write the whole access list again with `millstream store acl STORE SPACE --replace --set "
        "NAME=ACCESS`",
        record,
    )


class ChecksumOrigin(enum.StrEnum):
    """The origin of a checksum."""

    PROVIDER = "provider"  # the storage provider recorded it when the bytes arrived
    USER = "user"  # it came with the upload, as a property
    COMPUTED = "computed"  # the bytes were just read


class SpaceAccess(enum.StrEnum):
    """The permissions in a space; write includes read."""

    READ = "read"
    WRITE = "write"


class Checksum(msgspec.Struct, frozen=True, gc=False):
    """A checksum (``value`` in lower-case hex) and where it comes from. An ETag is never one."""

    algorithm: str
    value: str
    origin: ChecksumOrigin


class EntryKind(enum.StrEnum):
    """The kind of an entry of a listing; all but ``file`` occur only in sources of other programs."""

    FILE = "file"
    SYMLINK = "symlink"  # its bytes are the link's target
    FOLDER = "folder"  # an empty folder: no bytes, and an id that ends with "/"
    UNREADABLE = "unreadable"  # no permission to read the file, or to list the folder
    SPECIAL = "special"  # a fifo, a socket or a device
    ARCHIVED = "archived"  # in a storage class that has to be restored before it can be read
    NAME_TOO_LONG = "name_too_long"  # no content id can be so long
    SPARSE = "sparse"  # a huge file that is nearly all holes

    @property
    def is_readable(self) -> bool:
        """Whether there are bytes to read."""
        return self in (EntryKind.FILE, EntryKind.SYMLINK, EntryKind.FOLDER)


class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One line of a listing. ``modified`` is in microseconds since the epoch, or None where the provider has none.

    ``version`` is a text that changes with the item, as far as the provider can tell without reading the bytes; only
    sources that other programs wrote have it.
    """

    content_id: str
    size: int
    modified: int | None = None
    version: str | None = None
    kind: EntryKind = EntryKind.FILE


class ItemInfo(msgspec.Struct, frozen=True, gc=False):
    """The provider's metadata of a content item, without reading its bytes. ``modified`` is in microseconds."""

    content_id: str
    size: int
    checksums: tuple[Checksum, ...]
    mimetype: str
    properties: Mapping[str, str]
    modified: int | None = None
    etag: str | None = None

    def checksum(self, algorithm: str = "sha256") -> str | None:
        """The value under *algorithm*, the provider's own before the user's; None where there is none."""
        first = self._first_checksum(algorithm)
        return None if first is None else first.value

    def checksum_origin(self, algorithm: str = "sha256") -> ChecksumOrigin | None:
        """The origin of :meth:`checksum`; None where there is none."""
        first = self._first_checksum(algorithm)
        return None if first is None else first.origin

    def _first_checksum(self, algorithm: str) -> Checksum | None:
        first = None
        for one in self.checksums:
            if one.algorithm == algorithm and (first is None or first.origin != ChecksumOrigin.PROVIDER == one.origin):
                first = one
        return first


class Store(Protocol):
    """A storage provider. Thread-safe.

    Names of spaces and content ids are text; a content id may hold any characters but NUL, up to 1,024 bytes in
    UTF-8. Listings are in the order of the UTF-8 bytes. A write is whole and durable, or has not happened.
    """

    @property
    def url(self) -> str:
        """The URL of the store, from which :func:`millstream.stores.open_provider` opens it in any process."""
        ...

    def spaces(self) -> Sequence[str]: ...

    def has_space(self, space: str) -> bool: ...

    def create_space(self, space: str) -> None:
        """Make the space; nothing happens where it exists."""
        ...

    def delete_space(self, space: str) -> None:
        """Remove an empty space. Raises :class:`SpaceNotEmptyError`, :class:`SpaceNotFoundError`."""
        ...

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        """The access list of the space, by name of a user or, as ``group-NAME``, of a group. Kept, not enforced.

        Raises :class:`SpaceNotFoundError`, and :class:`DamagedRecordError` where the record of the list is damaged.
        """
        ...

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        """Replace the access list of the space, also a damaged one.

        Raises :class:`StoreRefusedError` where the provider keeps none.
        """
        ...

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        """Up to *limit* entries whose ids begin with *prefix* and come after *after*. Fewer means the end."""
        ...

    def info(self, space: str, content_id: str) -> ItemInfo:
        """Raises :class:`ItemNotFoundError` or :class:`SpaceNotFoundError`."""
        ...

    def open(
        self, space: str, content_id: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BinaryIO]:
        """The bytes, or *length* of them from *start*.

        Raises :class:`ItemNotFoundError`, :class:`SpaceNotFoundError`; reading them may raise :class:`StoreError`.
        """
        ...

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
        """Store the bytes of *source* and return what was stored, its provider checksum included.

        Raises :class:`ChecksumMismatchError` where the bytes do not hash to *sha256*, :class:`AlreadyExistsError`
        with *create_only*, :class:`SpaceNotFoundError`.
        """
        ...

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        """Replace all properties. Raises :class:`StoreRefusedError` where the provider does not allow it."""
        ...

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        """Copy bytes, mimetype and properties within the store.

        Raises :class:`ItemNotFoundError`, and :class:`ChecksumMismatchError` where the bytes are not those that the
        recorded checksum is of: damage never becomes a new item.
        """
        ...

    def delete(self, space: str, content_id: str) -> None:
        """Raises :class:`ItemNotFoundError` where there is none."""
        ...


def all_entries(store: Store, space: str, *, prefix: str = "", chunk: int = 1000) -> Iterator[Entry]:
    """Every entry of *space*, chunk by chunk."""
    after = ""
    while True:
        entries = store.entries(space, prefix=prefix, after=after, limit=chunk)
        yield from entries
        if len(entries) < chunk:
            return
        after = entries[-1].content_id
