"""Ordered listings of a folder that other programs wrote, a chunk at a time.

The names of a folder are cached, in order, as long as its change time proves that they are unchanged. So the memory is
bounded by the largest folder; sizes and times are always read again.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator
from typing import NamedTuple

from millstream.core.clock import Clock
from millstream.core.mounts import mount_of
from millstream.stores.exclusion import Exclusion
from millstream.stores.folder.path_names import encode_name
from millstream.stores.folder.tree import FORBIDDEN, GONE, SourceTree, open_file, open_to_list, step_down
from millstream.stores.folder_stamp import FolderStamp
from millstream.stores.names import MAX_CONTENT_ID_BYTES
from millstream.stores.protocol import Entry, EntryKind, StoreUnavailableError

Path = tuple[bytes, ...]

_FILE = EntryKind.FILE.value

_REMEMBERED_NAMES = 300_000
"""Names remembered in all; the folder listed last is remembered whatever its size."""

HUGE = 1 << 40
"""Of a larger file (in bytes) it is asked whether it has any content."""

_DENSITY = 1000
"""A huge file of which less than this part (one in so many) is on the disk is one of holes."""

_BLOCK = 512


class FolderColumns(NamedTuple):
    """Neighbouring entries of a listing, in columns: sizes in bytes, and the ``version`` and ``kind`` of each entry.

    ``versions`` has an empty text where an entry has none, which is so only with entries that cannot be read.
    """

    content_ids: list[str]
    sizes: list[int]
    versions: list[str]
    kinds: list[str]

    def add(self, entry: Entry) -> None:
        self.content_ids.append(entry.content_id)
        self.sizes.append(entry.size)
        self.versions.append(entry.version or "")
        self.kinds.append(entry.kind.value)


class FolderNames(NamedTuple):
    """The entries of one folder in the order of their keys, which are parts of ids; that of a folder ends with "/"."""

    stamp: FolderStamp
    read_at: int
    keys: list[bytes]
    names: list[bytes]


class _Level:
    """A folder on the way of a walk, and how far the walk is in it."""

    __slots__ = ("base", "folder", "path", "position")

    def __init__(self, path: Path, base: bytes, folder: FolderNames, low: bytes) -> None:
        self.path, self.base, self.folder = path, base, folder
        self.position = 0
        if low.startswith(base):
            rest = low[len(base) :]
            first = rest[: rest.find(b"/") + 1] or rest  # the folder that leads to *low*, or *low* itself
            self.position = bisect_left(folder.keys, first)

    def next(self) -> tuple[bytes, bytes] | None:
        """The key and the name of the next entry; None after the last."""
        if self.position == len(self.folder.keys):
            return None
        self.position += 1
        return self.folder.keys[self.position - 1], self.folder.names[self.position - 1]

    def next_files(self, most: int) -> tuple[list[bytes], list[bytes]]:
        """The keys and the names of the next entries, up to the next folder, and *most* of them."""
        start, keys = self.position, self.folder.keys
        end = min(start + most, len(keys))
        self.position = next((place for place in range(start, end) if keys[place].endswith(b"/")), end)
        return keys[start : self.position], self.folder.names[start : self.position]


class FolderListing:
    """The ordered entries of *tree* but for those that *exclusion* leaves out. Thread-safe."""

    def __init__(self, tree: SourceTree, exclusion: Exclusion, clock: Clock) -> None:
        self._tree, self._exclusion, self._clock = tree, exclusion, clock
        self._known: OrderedDict[Path, FolderNames] = OrderedDict()
        self._known_names = 0
        self._mount: tuple[int, str] | None = None  # that from which entries were listed last
        self._lock = threading.Lock()

    def walk(self, prefix: bytes, after: bytes) -> Generator[Entry]:
        """The entries whose ids begin with *prefix* and come after *after*. To be closed where it is not used up.

        Raises :class:`StoreUnavailableError` where the disk was unmounted, or another one mounted, during the walk, or
        since the listing began that goes on after *after*: what is not found then may be there.
        """
        low = max(prefix, after)
        with _OpenFolder(self._tree) as opened:
            root = self._names(opened, (), b"")
            mount = self._begin(opened, root, after)
            levels = [_Level((), b"", root, low)]
            while levels:
                level = levels[-1]
                row = level.next()
                if row is None:
                    levels.pop()
                    continue
                key, name = level.base + row[0], row[1]
                if key > prefix and not key.startswith(prefix):
                    break
                entry: Entry | _Level | None
                if key.endswith(b"/"):
                    entry = self._enter(opened, (*level.path, name), key, low)
                else:
                    entry = _read_entry(opened, level.path, name, key)
                if isinstance(entry, _Level):
                    levels.append(entry)
                elif entry is not None and key > after and key.startswith(prefix):
                    yield entry
            self._require_mount(mount)

    def columns(self, most: int) -> Generator[FolderColumns]:
        """All entries, at most *most* at a time. To be closed where it is not used up. Raises as :meth:`walk`."""
        run = FolderColumns([], [], [], [])
        with _OpenFolder(self._tree) as opened:
            root = self._names(opened, (), b"")
            mount = self._begin(opened, root, b"")
            levels = [_Level((), b"", root, b"")]
            while levels:
                level = levels[-1]
                _read_files(opened, level, most - len(run.sizes), run)
                if len(run.sizes) == most:
                    yield run
                    run = FolderColumns([], [], [], [])
                    continue
                row = level.next()
                if row is None:
                    levels.pop()
                    continue
                entry = self._enter(opened, (*level.path, row[1]), level.base + row[0], b"")
                if isinstance(entry, _Level):
                    levels.append(entry)
                elif entry is not None:
                    run.add(entry)
        if run.sizes:
            yield run
        self._require_mount(mount)

    def require_root(self) -> None:
        """Raise :class:`StoreUnavailableError` where there is no root, or it was listed from another disk."""
        self._require_mount(self._mount)

    def read(self, path: Path, base: bytes) -> FolderNames:
        """The entries of the folder *path*, whose ids begin with *base*. Raises ``OSError``."""
        with _OpenFolder(self._tree) as opened:
            return self._names(opened, path, base)

    def _begin(self, opened: _OpenFolder, root: FolderNames, after: bytes) -> tuple[int, str]:
        """The mount that is about to be listed; an empty *root* may be a mount point without its disk."""
        mount = mount_of(opened.get(()))
        if after and self._mount not in (None, mount):
            raise self._unmounted()
        if root.keys:
            self._mount = mount
        return mount

    def _require_mount(self, mount: tuple[int, str] | None) -> None:
        root = self._tree.open_root()
        try:
            if mount is not None and mount_of(root) != mount:
                raise self._unmounted()
        finally:
            os.close(root)

    def _unmounted(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the disk of the folder {self._tree.root} was unmounted, or another one was mounted there, after the "
            "folder had been listed: make sure that its disk is mounted, and run the command again"
        )

    def _names(self, opened: _OpenFolder, path: Path, base: bytes) -> FolderNames:
        handle = open_to_list(opened.get(path))
        try:
            stamp = FolderStamp.of(handle)
            with self._lock:
                known = self._known.get(path)
                if known is not None:
                    self._known.move_to_end(path)
            if known is None or known.stamp != stamp or not stamp.is_settled(known.read_at):
                read_at = self._clock.now() * 1000
                known = FolderNames(stamp, read_at, *_read_names(handle, base.decode("utf-8"), self._exclusion))
                self._remember(path, known)
            return known
        finally:
            os.close(handle)

    def _enter(self, opened: _OpenFolder, path: Path, base: bytes, low: bytes) -> _Level | Entry | None:
        """The folder to descend into, or an entry for it (if it is empty, or not to be listed); None if it is gone."""
        if len(base) > MAX_CONTENT_ID_BYTES:
            return Entry(base.decode("utf-8"), 0, kind=EntryKind.NAME_TOO_LONG)
        try:
            folder = self._names(opened, path, base)
            if folder.keys:
                return _Level(path, base, folder, low)
            return folder_entry(base.decode("utf-8"), folder.stamp[1])
        except OSError as error:
            if error.errno in FORBIDDEN:
                return Entry(base.decode("utf-8"), 0, kind=EntryKind.UNREADABLE)
            if error.errno in GONE:
                return None
            raise

    def _remember(self, path: Path, folder: FolderNames) -> None:
        with self._lock:
            replaced = self._known.pop(path, None)
            self._known[path] = folder
            self._known_names += _room(folder) - (_room(replaced) if replaced else 0)
            while self._known_names > _REMEMBERED_NAMES and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._known_names -= _room(oldest)


def folder_entry(content_id: str, mtime_ns: int) -> Entry:
    """The line of a listing for an empty folder."""
    return Entry(content_id, 0, mtime_ns // 1000, str(mtime_ns), EntryKind.FOLDER)


def file_entry(folder: int, name: bytes, content_id: str, status: os.stat_result) -> Entry | None:
    """The line of a listing for *name* in the open *folder*, whose status is *status*; None where it is a folder."""
    size, kind = 0, EntryKind.SPECIAL
    if stat.S_ISDIR(status.st_mode):
        return None
    if stat.S_ISLNK(status.st_mode):
        size, kind = status.st_size, EntryKind.SYMLINK
    elif stat.S_ISREG(status.st_mode):
        size, kind = status.st_size, _kind_of_file(folder, name, status)
    if len(content_id.encode("utf-8")) > MAX_CONTENT_ID_BYTES:
        kind = EntryKind.NAME_TOO_LONG
    return Entry(content_id, size, status.st_mtime_ns // 1000, str(status.st_mtime_ns), kind)


def _kind_of_file(folder: int, name: bytes, status: os.stat_result) -> EntryKind:
    """The kind of a plain file. Raises ``OSError`` as :func:`_may_read`."""
    if not _may_read(folder, name):
        return EntryKind.UNREADABLE
    if status.st_size <= HUGE or status.st_blocks * _BLOCK >= status.st_size // _DENSITY:
        return EntryKind.FILE
    try:
        handle = open_file(folder, name)
        try:
            # file systems on tapes and networks may state no blocks: those that know no holes have none before the end
            return EntryKind.SPARSE if os.lseek(handle, 0, os.SEEK_HOLE) < status.st_size else EntryKind.FILE
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno == errno.EINVAL:  # this file system knows no holes
            return EntryKind.FILE
        if error.errno in (*FORBIDDEN, *GONE):
            return EntryKind.UNREADABLE
        raise


def _may_read(folder: int, name: bytes) -> bool:
    """Whether this user may read the plain file. Raises ``OSError`` where the disk or its server does not answer."""
    if os.access(name, os.R_OK, dir_fd=folder, effective_ids=True):
        return True
    try:
        os.close(open_file(folder, name))  # which says why
    except OSError as error:
        if error.errno in (*FORBIDDEN, *GONE):
            return False
        raise
    return True


class _OpenFolder:
    """The folder that a walk is in, kept open from one entry to the next, and the root, from which all are reached."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._path: Path | None = None
        self._handle = self._root = -1

    def __enter__(self) -> _OpenFolder:
        self._root = self._tree.open_root()
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            os.close(self._handle)
            self._path = None
        os.close(self._root)

    def get(self, path: Path) -> int:
        """A descriptor of the folder *path*, which stays ours. Raises ``OSError``."""
        if path == self._path:
            return self._handle
        known, self._path = self._path, None
        if known is not None and path[: len(known)] == known:
            self._handle = step_down(self._handle, path[len(known) :])
        else:
            if known is not None:
                os.close(self._handle)
            self._handle = step_down(os.dup(self._root), path)
        self._path = path
        return self._handle


def _read_files(opened: _OpenFolder, level: _Level, most: int, run: FolderColumns) -> None:
    """Add the next entries of *level* that are no folders to *run*, at most *most*: plain files with little ado."""
    base, room = level.base.decode("utf-8"), MAX_CONTENT_ID_BYTES - len(level.base)
    keys, names = level.next_files(most)
    folder = _get_or_none(opened, level.path) if keys else None
    ids, sizes, versions = run.content_ids, run.sizes, run.versions
    for key, name in zip(keys, names, strict=True):
        status = None if folder is None or len(key) > room else _plain_status(name, folder)
        if status is None:
            entry = _read_entry(opened, level.path, name, level.base + key)
            if entry is not None:
                run.kinds.extend([_FILE] * (len(ids) - len(run.kinds)))
                run.add(entry)
            continue
        ids.append(base + key.decode("utf-8"))
        sizes.append(status.st_size)
        versions.append(str(status.st_mtime_ns))
    run.kinds.extend([_FILE] * (len(ids) - len(run.kinds)))


def _get_or_none(opened: _OpenFolder, path: Path) -> int | None:
    try:
        return opened.get(path)
    except OSError:  # which it is, and what it means, shows with each entry
        return None


def _plain_status(name: bytes, folder: int) -> os.stat_result | None:
    """The status of a plain file that may be read and is not :data:`HUGE`; None for all else."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    plain = (
        stat.S_ISREG(status.st_mode)
        and status.st_size <= HUGE
        and os.access(name, os.R_OK, dir_fd=folder, effective_ids=True)
    )
    return status if plain else None


def _read_entry(opened: _OpenFolder, path: Path, name: bytes, key: bytes) -> Entry | None:
    """The entry, or None where it is gone meanwhile."""
    content_id = key.decode("utf-8")
    try:
        folder = opened.get(path)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in FORBIDDEN:  # a folder that may be listed, and not entered
            return Entry(content_id, 0, kind=EntryKind.UNREADABLE)
        if error.errno in GONE:
            return None
        raise
    return file_entry(folder, name, content_id, status)


def _read_names(handle: int, base: str, exclusion: Exclusion) -> tuple[list[bytes], list[bytes]]:
    rows, globs = [], bool(exclusion)
    with os.scandir(handle) as entries:
        for entry in entries:
            text, is_folder = entry.name, _is_folder(entry)
            if text.isascii() and "%" not in text:
                key = name = text.encode("ascii")
            else:
                name = os.fsencode(text)
                text = encode_name(name)
                key = text.encode("utf-8")
            if globs and exclusion.leaves_out(base + text, is_folder=is_folder):
                continue
            rows.append((key + b"/" if is_folder else key, name))
    rows.sort()
    return [row[0] for row in rows], [row[1] for row in rows]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:
        if error.errno in (*FORBIDDEN, errno.EIO):  # what it is shows when its status is read
            return False
        raise


def _room(folder: FolderNames) -> int:
    return len(folder.keys) + 1  # an empty folder takes room, too
