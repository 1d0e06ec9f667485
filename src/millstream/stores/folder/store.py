"""A folder that other programs wrote, as a provider that is read and never written to."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec

from millstream.core.clock import SystemClock
from millstream.core.decoding import prepared
from millstream.stores.folder.listing import FolderColumns, FolderListing, file_entry, folder_entry
from millstream.stores.folder.path_names import decode_path, encode_name
from millstream.stores.folder.properties import describe_entry
from millstream.stores.folder.tree import FORBIDDEN, GONE, SourceTree, open_file
from millstream.stores.folder.versions import Version, hash_versions
from millstream.stores.names import check_content_id, order_key
from millstream.stores.os_errors import translated
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.stores.processes.frames import BulkReply, BulkRequest
from millstream.stores.protocol import (
    Entry,
    EntryKind,
    ItemChangedError,
    ItemInfo,
    StoreInputError,
    StoreUnavailableError,
    UnreadableError,
    item_not_found,
)
from millstream.stores.ranges import RangeReader, check_range
from millstream.stores.sources import ReadOnlySource, problem_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_hashes = msgspec.msgpack.Decoder(prepared(BulkReply[str]))


class FolderStore(ReadOnlySource):
    """The folder *root*, whichever program writes it, as a store with one *space* (by default the name of the folder).

    Its items are the files, symbolic links and empty folders below *root* but for those that a glob of *exclude* leaves
    out. Nothing is ever written below *root*. Many small files are hashed in *processes*, where there are some. The
    methods are those of :class:`~millstream.stores.protocol.Store`; see ``docs/formats/sources.md`` for ids, kinds of
    entries and properties.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        space: str | None = None,
        exclude: Iterable[str] = (),
        processes: BulkProcesses | None = None,
    ) -> None:
        self._processes = processes
        self._root = str(Path(root).absolute())
        super().__init__(encode_name(os.fsencode(Path(self._root).name)) if space is None else space, exclude)
        self._tree = SourceTree(self._root)
        self._listing = FolderListing(self._tree, self.exclusion, SystemClock())

    @property
    def url(self) -> str:
        return folder_url(self._root, self.space, self.exclusion.globs)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        self.require_space(space)
        walk = self._listing.walk(order_key(prefix), order_key(after))
        with translated(f"listing {self.url}"), contextlib.closing(walk):
            return list(itertools.islice(walk, max(limit, 0)))

    def columns(self, space: str, *, most: int = 1000) -> Iterator[FolderColumns]:
        """All :meth:`entries` in columns, at most *most* at a time, for a fraction of the time."""
        self.require_space(space)
        with translated(f"listing {self.url}"), contextlib.closing(self._listing.columns(most)) as columns:
            yield from columns

    def info(self, space: str, content_id: str) -> ItemInfo:
        with self._located(space, content_id) as found:
            return describe_entry(found.entry)

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        check_range(start, length)
        with self._located(space, content_id) as found:
            problem = problem_of(found.entry)
            if problem is not None:
                raise UnreadableError(f"cannot read {content_id!r} in {self.url}: {problem.reason}")
            if found.entry.kind == EntryKind.FILE:
                return self._open_file(content_id, found, start, length)
            data = os.readlink(found.name, dir_fd=found.folder) if found.entry.kind == EntryKind.SYMLINK else b""
        return io.BufferedReader(RangeReader(io.BytesIO(data), start, length))

    def _open_file(self, content_id: str, found: _Located, start: int, length: int | None) -> io.BufferedReader:
        file = io.FileIO(open_file(found.folder, found.name), "rb")
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            file.close()
            raise ItemChangedError(
                f"{content_id!r} in {self.url} was replaced while it was opened: read the item again"
            )
        return io.BufferedReader(_WatchedReader(file, f"{content_id!r} in {self.url}", start, length))

    def hash_versions(self, versions: Sequence[Version]) -> Sequence[str | None]:
        """:func:`~millstream.stores.folder.versions.hash_versions` for items of this folder."""
        if self._processes is not None and versions:
            try:
                request = BulkRequest("versions", self._root, "", versions=versions)
                answer = self._processes.ask(msgspec.msgpack.encode(request), len(versions))
                if answer is not None and (found := _hashes.decode(answer)).error is None:
                    return found.found
            except (UnicodeEncodeError, StoreUnavailableError):  # an odd path of the root, or the child was killed
                pass
        return hash_versions(self._root, versions)

    def file_status(self, space: str, content_id: str) -> os.stat_result:
        """The status of the file, link or folder that an item is. Raises :class:`ItemNotFoundError`."""
        with self._located(space, content_id) as found:
            return os.stat(found.name, dir_fd=found.folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _located(self, space: str, content_id: str) -> Iterator[_Located]:
        """The item's folder, held open, and what stands there."""
        self.require_space(space)
        path = decode_path(check_content_id(content_id))
        with translated(f"reading {content_id!r} in {self.url}"):
            try:
                found = None
                if path is not None and not self.exclusion.covers(content_id):
                    found = self._find_folder(path) if path.endswith(b"/") else self._find_file(path, content_id)
                if found is None:
                    raise item_not_found(content_id, space, self.url)
                with found.held():
                    yield found
            except OSError as error:
                if error.errno in FORBIDDEN:
                    raise UnreadableError(f"cannot read {content_id!r} in {self.url}: {error.strerror}") from error
                if error.errno in GONE:
                    self._listing.require_root()
                    raise item_not_found(content_id, space, self.url) from error
                raise

    def _find_file(self, path: bytes, content_id: str) -> _Located | None:
        *above, name = path.split(b"/")
        folder = self._tree.enter(above)
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            entry = file_entry(folder, name, content_id, status)
        except BaseException:
            os.close(folder)
            raise
        if entry is None:
            os.close(folder)
            return None
        return _Located(folder, name, entry)

    def _find_folder(self, path: bytes) -> _Located | None:
        """A folder, which is an item where nothing in it is."""
        names = tuple(path.removesuffix(b"/").split(b"/"))
        base = encode_name(path)
        folder = self._listing.read(names, order_key(base))
        if folder.keys:
            return None
        return _Located(self._tree.enter(names[:-1]), names[-1], folder_entry(base, folder.stamp[1]))


class _Located(NamedTuple):
    """An entry that was found: the open folder in which it stands, and its name there."""

    folder: int
    name: bytes
    entry: Entry

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Close the folder at the end of the block."""
        try:
            yield
        finally:
            os.close(self.folder)


class _WatchedReader(RangeReader):
    """Reads a file, and raises :class:`ItemChangedError` at the end where it changed meanwhile."""

    def __init__(self, file: io.FileIO, shown: str, start: int, length: int | None) -> None:
        self._watched, self._shown = file, shown
        self._before = _state(file)
        super().__init__(file, start, length)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer)
        if count == 0 and _state(self._watched) != self._before:
            raise ItemChangedError(f"{self._shown} changed while it was read: read the item again")
        return count


def _state(file: io.FileIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def folder_url(root: str | os.PathLike[str], space: str | None = None, exclude: Iterable[str] = ()) -> str:
    """The URL by which :func:`~millstream.stores.open_provider` opens the folder *root* as a source."""
    path = quote(os.fsencode(Path(root).absolute()))
    options = [] if space is None else [f"space={quote(space, safe='')}"]
    options += [f"exclude={quote(glob, safe='/*')}" for glob in exclude]
    return f"folder://{path}" + (f"?{'&'.join(options)}" if options else "")


def parse_folder_options(url: str, pairs: Iterable[tuple[str, str]]) -> tuple[str | None, list[str]]:
    """The space and the globs in the query of *url*. Raises :class:`StoreInputError`."""
    space: str | None = None
    exclude: list[str] = []
    for name, value in pairs:
        if name == "exclude" and value:
            exclude.append(value)
        elif name == "space" and value and space is None:
            space = value
        else:
            raise StoreInputError(
                f"invalid store URL {url!r}: option {name!r} is unknown, empty or given twice; write "
                "folder:///path?space=NAME&exclude=GLOB"
            )
    return space, exclude
