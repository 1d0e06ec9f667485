"""Messages about a source: a store that other programs write, and that is only read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from millstream.stores.exclusion import Exclusion
from millstream.stores.names import check_space
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Entry,
    EntryKind,
    ItemInfo,
    SpaceAccess,
    SpaceNotFoundError,
    Store,
    StoreRefusedError,
    all_entries,
)
from millstream.stores.provider_schemes import object_prefix, provider_scheme

_REASONS = {
    EntryKind.UNREADABLE: (
        "the account that runs Millstream may not read it: grant the right to read, or exclude the entry"
    ),
    EntryKind.SPECIAL: "it is a fifo, a socket or a device and has no bytes to copy: remove or exclude it",
    EntryKind.ARCHIVED: "it is in an archive storage class: restore it to a class that can be read, or exclude it",
    EntryKind.NAME_TOO_LONG: "its content id would be longer than 1,024 bytes: shorten the path, or exclude it",
    EntryKind.SPARSE: (
        "it is a sparse file of more than 1 TiB with less than a thousandth of its size on the disk, and reading it "
        "would take hours or years: remove, shorten or exclude it"
    ),
}


class Problem(msgspec.Struct, frozen=True):
    """An entry of a source that cannot be copied, and why."""

    content_id: str
    kind: EntryKind
    reason: str


def is_source_url(url: str) -> bool:
    """Whether *url* names a folder or a bucket that other programs write to: nothing is ever written there."""
    parts = urlsplit(url)
    named = provider_scheme(parts).is_source
    return named == "always" or (named == "with-space" and "space" in dict(parse_qsl(parts.query)))


def local_folder(url: str) -> Path | None:
    """The folder of this machine in which the store at *url* keeps its items; None for a store elsewhere."""
    parts = urlsplit(url)
    return Path(os.fsdecode(unquote_to_bytes(parts.path))) if provider_scheme(parts).in_folder else None


def place_of(url: str) -> object:
    """Where the store at *url* keeps its items, the same for all URLs that lead there: the objects of a bucket, or a
    folder without links."""
    folder = local_folder(url)
    return object_prefix(url) if folder is None else os.path.realpath(folder)


def absence_question(url: str) -> str:
    """The remedy if the store at *url* answers and lists nothing, although it should have items."""
    return "are its bucket, prefix and endpoint right?" if local_folder(url) is None else "is its disk mounted?"


def problem_of(entry: Entry) -> Problem | None:
    """Why *entry* cannot be copied; None where it can."""
    if entry.kind.is_readable:
        return None
    reason = _REASONS[entry.kind]
    if entry.kind == EntryKind.NAME_TOO_LONG and entry.content_id.endswith("/"):
        reason += "; the files in this folder are not listed, so the pattern must name the folder"
    return Problem(entry.content_id, entry.kind, reason)


def find_problems(store: Store, space: str) -> Iterator[Problem]:
    """All entries of *space* that cannot be copied, in the order of their ids."""
    for entry in all_entries(store, space):
        problem = problem_of(entry)
        if problem is not None:
            yield problem


def find_entry(store: Store, space: str, content_id: str) -> Entry | None:
    """The line that a listing of *space* has for *content_id*; None where it has none."""
    entries = store.entries(space, prefix=content_id, limit=1)
    return entries[0] if entries and entries[0].content_id == content_id else None


def exclusion_of(store: Store) -> Exclusion:
    """The exclusions of *store*, below its decorators."""
    found: object = store
    while found is not None and not isinstance(found, ReadOnlySource):
        found = getattr(found, "store", None)
    return Exclusion() if found is None else found.exclusion


def needs_adoption(store: Store) -> bool:
    """Whether other programs write *store*, so that no checksums were recorded when its bytes arrived."""
    return bool(getattr(store, "needs_adoption", False))


class ReadOnlySource(ABC):
    """The part of :class:`~millstream.stores.protocol.Store` that is the same for all sources: one space, no writing.

    What a glob of *exclude* matches is left out. Every method that would change something raises
    :class:`StoreRefusedError`.
    """

    needs_adoption = True

    def __init__(self, space: str, exclude: Iterable[str] = ()) -> None:
        self.space = check_space(space)
        self.exclusion = Exclusion(exclude)

    @property
    @abstractmethod
    def url(self) -> str: ...

    def spaces(self) -> list[str]:
        return [self.space]

    def has_space(self, space: str) -> bool:
        return check_space(space) == self.space

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        self.require_space(space)
        return {}

    def create_space(self, space: str) -> None:
        if not self.has_space(space):
            self._refuse()

    def delete_space(self, space: str) -> None:
        self.require_space(space)
        self._refuse()

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:  # noqa: ARG002 - refused
        self.require_space(space)
        self._refuse()

    def put(
        self,
        space: str,
        content_id: str,  # noqa: ARG002 - refused
        source: BinaryIO,  # noqa: ARG002
        *,
        mimetype: str = DEFAULT_MIMETYPE,  # noqa: ARG002
        properties: Mapping[str, str] | None = None,  # noqa: ARG002
        sha256: str | None = None,  # noqa: ARG002
        create_only: bool = False,  # noqa: ARG002
    ) -> ItemInfo:
        self.require_space(space)
        self._refuse()

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:  # noqa: ARG002
        self.require_space(space)
        self._refuse()

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:  # noqa: ARG002
        self.require_space(space)
        self._refuse()

    def delete(self, space: str, content_id: str) -> None:  # noqa: ARG002 - refused
        self.require_space(space)
        self._refuse()

    def require_space(self, space: str) -> None:
        """Raise :class:`SpaceNotFoundError` where *space* is not the one of this source."""
        if not self.has_space(space):
            raise SpaceNotFoundError(f"there is no space {space!r} in {self.url}; its only space is {self.space!r}")

    def _refuse(self) -> NoReturn:
        raise StoreRefusedError(
            f"{self.url} is a source that other programs write: Millstream never writes there; choose another store"
        )
