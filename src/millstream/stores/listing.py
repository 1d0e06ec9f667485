"""Ordered listings of a local space, a chunk at a time, without walking the whole tree for every chunk.

A chunk begins in the middle: every folder on the way is entered by bisection. What a folder holds is remembered, in
order, for as long as the folder's time of change proves that it still holds the same.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream.core.clock import Clock
from millstream.stores.folder_stamp import FolderStamp
from millstream.stores.folders import open_folder
from millstream.stores.names import MAX_CONTENT_ID_BYTES
from millstream.stores.path_encoding import FLAT_FOLDER, decode_flat_name, decode_name, encoded_paths
from millstream.stores.protocol import Entry, StoreUnavailableError

Names = tuple[str, ...]

_PLAIN = 255
"""Ids of this many bytes are kept under their own names."""

_REMEMBERED_NAMES = 300_000
"""How many names are remembered in all; the folder listed last is remembered whatever its size."""


class EntryColumns(NamedTuple):
    """Listed items in columns: ids, sizes in bytes, and times of change (microseconds)."""

    ids: list[str]
    sizes: list[int]
    times: list[int]


@dataclass(slots=True)
class _Folder:
    """The names of one folder with their keys (UTF-8 ids, or beginnings of ids), sorted by key."""

    stamp: FolderStamp
    read_at: int
    keys: list[bytes]
    names: list[str]
    folders: set[int]  # positions that are folders; natural ones have keys that end with "/"
    pieces: list[int]  # positions of folders whose keys end in mid-segment, or are empty

    def __len__(self) -> int:
        return len(self.keys) + 1  # an empty folder takes room, too


class OrderedListing:
    """The ordered ids of spaces, whose folders are *depth* names below *root*. Thread-safe."""

    def __init__(self, root: str, clock: Clock, *, depth: int = 1) -> None:
        self._root, self._clock, self._depth = root, clock, depth
        self._known: OrderedDict[Names, _Folder] = OrderedDict()
        self._known_names = 0
        self._lock = threading.Lock()

    def walk(self, space: Names, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, Names]]:
        """The ids in the folder *space* above *after* that begin with *prefix*, and where below root their files are.

        Raises ``FileNotFoundError`` or ``NotADirectoryError`` where there is no such folder.
        """
        heap: list[_Cursor] = []
        low = max(prefix, after)
        self._enter(heap, space, b"", low)
        last = after
        while heap:
            key = heap[0].current()[0]
            if key > prefix and not key.startswith(prefix):
                return
            found = self._step(heap, last, low)
            if found is not None and key.startswith(prefix):
                last = key
                yield found

    def _step(self, heap: list[_Cursor], last: bytes, low: bytes) -> tuple[bytes, Names] | None:
        """Take the first entry of *heap*: a folder is entered, what is an item of ours above *last* is returned."""
        cursor = heap[0]
        key, name, is_folder = cursor.current()
        if cursor.advance():
            heapq.heapreplace(heap, cursor)
        else:
            heapq.heappop(heap)
        path = (*cursor.path, name)
        if is_folder and len(key) <= MAX_CONTENT_ID_BYTES:  # below a longer one is no item: others may nest without end
            self._enter(heap, path, key, low)
        elif not is_folder and key > last and _is_ours(key, path[self._depth :]):
            return key, path
        return None

    def first_ids(self, space: Names, after: bytes, most: int) -> list[str]:
        """The first *most* ids of :meth:`walk` above *after*: neighbouring files of a folder cost little each."""
        ids = list[str]()
        for _, keys, _ in self._runs(space, after, most):
            ids += [key.decode("utf-8") for key in keys[: most - len(ids)]]
            if len(ids) >= most:
                break
        return ids

    def first_columns(self, space: Names, after: bytes, most: int) -> EntryColumns:
        """As :meth:`first_ids`, of files that are still there, with their sizes and times of change."""
        found = EntryColumns([], [], [])
        for path, keys, names in self._runs(space, after, most):
            try:
                folder = open_folder(self._root, path)
            except (FileNotFoundError, NotADirectoryError):  # gone meanwhile
                continue
            try:
                for key, name in zip(keys, names, strict=True):
                    try:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found.ids.append(key.decode("utf-8"))
                    found.sizes.append(status.st_size)
                    found.times.append(status.st_mtime_ns // 1000)
                    if len(found.ids) == most:
                        return found
            finally:
                os.close(folder)
        return found

    def _runs(self, space: Names, after: bytes, most: int) -> Iterator[tuple[Names, Sequence[bytes], Sequence[str]]]:
        """The ids of :meth:`walk` above *after*, some with neighbouring files at a time (*most* at most): the folder of
        the files, the ids, and the names of the files."""
        heap: list[_Cursor] = []
        self._enter(heap, space, b"", after)
        last = after
        while heap:
            cursor = heap[0]
            keys, names = cursor.plain_files(heap, last, most, self._depth)
            if keys:
                last = keys[-1]
                if cursor.is_at_end:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, cursor)
                yield cursor.path, keys, names
                continue
            found = self._step(heap, last, after)
            if found is not None:
                last, path = found
                yield path[:-1], (last,), path[-1:]

    def _enter(self, heap: list[_Cursor], path: Names, base: bytes, low: bytes) -> None:
        try:
            folder = self._folder(path, base)
        except (FileNotFoundError, NotADirectoryError):
            if len(path) == self._depth:
                raise
            return
        for cursor in _cursors(path, folder, base, low):
            heapq.heappush(heap, cursor)

    def _folder(self, path: Names, base: bytes) -> _Folder:
        handle = open_folder(self._root, path)
        try:
            stamp = FolderStamp.of(handle)
            with self._lock:
                known = self._known.get(path)
            if known is None or known.stamp != stamp or not stamp.is_settled(known.read_at):
                known = _read_folder(handle, path[self._depth :], base, stamp, self._clock.now() * 1000)
                self._remember(path, known)
            return known
        finally:
            os.close(handle)

    def _remember(self, path: Names, folder: _Folder) -> None:
        with self._lock:
            replaced = self._known.pop(path, None)
            self._known[path] = folder
            self._known_names += len(folder) - (len(replaced) if replaced else 0)
            while self._known_names > _REMEMBERED_NAMES and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._known_names -= len(oldest)


def first_entries(root: str, items: Iterable[tuple[bytes, Names]], limit: int) -> list[Entry]:
    """The first *limit* of the *items* of a walk that are still there."""
    found: list[Entry] = []
    for key, names in items if limit > 0 else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone meanwhile
            status = os.lstat("/".join((root, *names)))
            found.append(Entry(key.decode("utf-8"), status.st_size, status.st_mtime_ns // 1000))
        if len(found) >= limit:
            break
    return found


@contextlib.contextmanager
def whole_listing(root: str, names: Names) -> Iterator[None]:
    """Lists a part of the folder *names* below *root* in the block: what is missing was removed from it.

    Raises :class:`StoreUnavailableError` where another folder is there at the end, as after its disk was unmounted.
    """
    folder = open_folder(root, names)  # held, so that no other folder gets its number
    try:
        yield
        now = open_folder(root, names)
        try:
            is_same = os.path.samestat(os.fstat(folder), os.fstat(now))
        finally:
            os.close(now)
    finally:
        os.close(folder)
    if not is_same:
        shown = "/".join((root, *names))
        raise StoreUnavailableError(
            f"the folder {shown} was replaced by another one while it was listed: is its disk mounted? Run the command "
            "again"
        )


class _Cursor:
    """A position in the names of one folder."""

    __slots__ = ("_order", "_place", "folder", "path")

    def __init__(self, path: Names, folder: _Folder, order: list[int] | range) -> None:
        self.path, self.folder, self._order, self._place = path, folder, order, 0

    def current(self) -> tuple[bytes, str, bool]:
        position = self._order[self._place]
        return self.folder.keys[position], self.folder.names[position], position in self.folder.folders

    def advance(self) -> bool:
        self._place += 1
        return self._place < len(self._order)

    @property
    def is_at_end(self) -> bool:
        return self._place >= len(self._order)

    def plain_files(
        self, heap: Sequence[_Cursor], last: bytes, most: int, depth: int
    ) -> tuple[Sequence[bytes], Sequence[str]]:
        """Take the next keys and names, *most* at most, if they are files of plain names, and come before all else in
        *heap*.

        *self* is the first of *heap*; the keys are above *last*, in order. Nothing is taken where there are none.
        """
        path = self.path[depth:]
        if not isinstance(self._order, range) or FLAT_FOLDER in path[:1] or any(name.endswith("%") for name in path):
            return (), ()
        keys, folders = self.folder.keys, self.folder.folders
        start = bisect_right(keys, last, self._order[self._place])
        end = min(start + most, len(keys))
        for other in heap[1:3]:
            end = bisect_left(keys, other.current()[0], start, end)
        if folders:
            end = next((place for place in range(start, end) if place in folders), end)
        run = keys[start:end]
        if start != self._order[self._place] or len(set(run)) != len(run) or any(len(key) > _PLAIN for key in run):
            return (), ()
        self._place += len(run)
        return run, self.folder.names[start:end]

    def __lt__(self, other: _Cursor) -> bool:
        return self.current()[0] < other.current()[0]


def _cursors(path: Names, folder: _Folder, base: bytes, low: bytes) -> Iterator[_Cursor]:
    """Cursors in *folder* that together reach every id from *low* on, also those in subfolders."""
    start = bisect_left(folder.keys, low)
    if start < len(folder.keys):
        yield _Cursor(path, folder, range(start, len(folder.keys)))
    before = [position for position in folder.pieces if position < start and low.startswith(folder.keys[position])]
    slash = low.find(b"/", len(base))
    if slash >= 0:
        position = bisect_left(folder.keys, low[: slash + 1])
        end = bisect_right(folder.keys, low[: slash + 1])
        before += [p for p in range(position, min(end, start)) if p in folder.folders and p not in before]
    if before:
        yield _Cursor(path, folder, sorted(before))


def _read_folder(handle: int, path: Names, base: bytes, stamp: FolderStamp, read_at: int) -> _Folder:
    rows = []
    read = decode_flat_name if FLAT_FOLDER in path[:1] else decode_name
    with os.scandir(handle) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                continue
            row = _read_entry(entry.name, is_folder, base, read, not path)
            if row is not None:
                rows.append(row)
    rows.sort()
    folders = {position for position, row in enumerate(rows) if row[2]}
    pieces = [position for position in sorted(folders) if rows[position][3]]
    return _Folder(stamp, read_at, [row[0] for row in rows], [row[1] for row in rows], folders, pieces)


def _read_entry(
    name: str, is_folder: bool, base: bytes, read: Callable[[str], bytes | None], at_top: bool
) -> tuple[bytes, str, bool, bool] | None:
    """The key of a name, the name, whether it is a folder, and one that ends in mid-segment; None if not ours."""
    if not is_folder:
        text = read(name)
        return None if text is None else (base + text, name, False, False)
    if at_top and name == FLAT_FOLDER:
        return b"", name, True, True
    if name.endswith("%"):
        text = read(name[:-1]) if len(name) > 1 else None
        return None if text is None else (base + text, name, True, True)
    text = read(name) if read is decode_name else None
    return None if text is None else (base + text + b"/", name, True, False)


def _is_ours(key: bytes, path: Names) -> bool:
    """Whether *path* is where the id *key* is kept; only long, flat and divided paths can be anything else."""
    if len(key) <= _PLAIN and FLAT_FOLDER not in path[:1] and "%/" not in "/".join(path):
        return True
    return len(key) <= MAX_CONTENT_ID_BYTES and path in encoded_paths(key.decode("utf-8"))
