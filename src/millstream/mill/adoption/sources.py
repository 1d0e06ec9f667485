"""The interface of a source for adoption: a listing with a mark of each item's version, and unreadable entries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.mill.adoption.catalog import FindingKind
from millstream.mill.column_join import ItemColumns
from millstream.mill.merge_join import groups
from millstream.stores.folder.properties import MTIME, parse_time
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Checksum,
    ChecksumOrigin,
    Entry,
    EntryKind,
    ItemInfo,
    ItemNotFoundError,
    Store,
    all_entries,
)
from millstream.stores.sources import problem_of

_PROBLEMS = {"unreadable": FindingKind.UNREADABLE}
_PAGE = 1_000


LISTED_COLUMNS = 3
"""The columns of :func:`listed_columns`: size, version, kind."""


class SourceEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of a source's listing. As long as kind, size and ``version`` are the same, so should be the bytes."""

    content_id: str
    size: int
    version: str
    kind: str = EntryKind.FILE.value


class SourceItem(msgspec.Struct, frozen=True, gc=False):
    """The present metadata of one item at a source."""

    size: int
    version: str
    mimetype: str = DEFAULT_MIMETYPE
    properties: Mapping[str, str] = {}
    checksums: tuple[Checksum, ...] = ()


def listed_columns(source: Store, space: str) -> Iterator[ItemColumns]:
    """Everything in *space*, in the order of the ids' UTF-8 bytes: size (bytes), version and kind of each.

    A kind may be one that cannot be read (:func:`problem_of_kind`). Raises :class:`StoreError`.
    """
    columns = getattr(source, "columns", None)
    if columns is not None:
        for run in columns(space):
            yield ItemColumns(run.content_ids, (run.sizes, run.versions, run.kinds))
        return
    for entries in groups(all_entries(source, space), _PAGE):
        rows = [(entry.size, _listed_version(entry), entry.kind.value) for entry in entries]
        yield ItemColumns([entry.content_id for entry in entries], tuple(map(list, zip(*rows, strict=True))))


def problem_of_kind(content_id: str, kind: str) -> tuple[FindingKind, str] | None:
    """The reason why entries of *kind* cannot be read, as a word and a sentence; None if they can."""
    problem = problem_of(Entry(content_id, 0, kind=EntryKind(kind)))
    return None if problem is None else (_PROBLEMS.get(kind, FindingKind.NOT_SUPPORTED), problem.reason)


def count_bytes(source: Store, space: str) -> int:
    """The bytes of everything in *space* that can be read. Raises :class:`StoreError`."""
    return sum(entry.size for entry in all_entries(source, space) if entry.kind.is_readable)


def item_of(source: Store, space: str, content_id: str) -> SourceItem | None:
    """The present metadata of an item at *source*; None if it is absent.

    Raises :class:`StoreError`, also where *space* itself is absent: it is unknown then what it holds.
    """
    try:
        return _described(source.info(space, content_id))
    except ItemNotFoundError:
        return None


@contextlib.contextmanager
def opened(source: Store, space: str, content_id: str) -> Iterator[tuple[BinaryIO, SourceItem]]:
    """All bytes of an item, and what *source* says of it. Raises :class:`StoreError`, ``ItemNotFoundError``."""
    together = getattr(source, "open_described", None)
    if together is None:
        item = _described(source.info(space, content_id))
        with source.open(space, content_id) as file:
            yield file, item
        return
    file, info = together(space, content_id)
    with file:
        yield file, _described(info)


def _described(info: ItemInfo) -> SourceItem:
    sums = tuple(one for one in info.checksums if one.origin == ChecksumOrigin.PROVIDER)
    return SourceItem(info.size, _version(info), info.mimetype, info.properties, sums)


def _listed_version(entry: Entry) -> str:
    """What tells the versions of a listed item apart, as :func:`_version` says it."""
    if entry.version is None:
        return str(entry.modified)
    etag, at, _ = entry.version.rpartition("@")
    return _object_version(etag, entry.modified) if at else entry.version


def _version(info: ItemInfo) -> str:
    """What tells the versions of an item apart: the nanoseconds of its last change, or ETag and seconds."""
    if info.etag is not None:
        return _object_version(info.etag, info.modified)
    changed_at = parse_time(info.properties.get(MTIME))
    return str(info.modified if changed_at is None else changed_at)


def _object_version(etag: str, modified: int | None) -> str:
    """Listings of S3 have times that are finer than those of single objects."""
    return f"{etag}@{(modified or 0) // MICROSECONDS}"
