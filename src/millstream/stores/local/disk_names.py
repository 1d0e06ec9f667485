"""Names on disks that do not distinguish all spellings: exFAT, FAT, NTFS and many network shares ignore case, and some
file systems ignore how accented letters are composed.

On such a disk a name may lead to the file of another item, so only a name that the disk lists is that of an item. On
other disks nothing is listed for that.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from millstream.stores.folders import make_folder, open_folder
from millstream.stores.protocol import StoreInputError

Names = tuple[str, ...]
Item = TypeVar("Item")

_PROBE = "Probe-\u00e9"
"""An empty file in the hidden folder of a store: under which other spellings the disk finds it says what it ignores."""


class DiskNames:
    """The names in folders below *root* as the disk lists them, each folder listed once: for one operation."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._listed: dict[Names, set[str]] = {}

    def has(self, path: Names) -> bool:
        """Whether each step of *path* is there, and is spelled so."""
        return all(name in self._list(path[:depth]) for depth, name in enumerate(path))

    def misleads(self, path: Names) -> bool:
        """Whether a step of *path* leads to what is there under another spelling."""
        for depth, name in enumerate(path):
            if name not in self._list(path[:depth]):
                if not self._is_found(path[: depth + 1]):
                    return False
                self._listed.pop(path[:depth], None)  # it may have been made between the listing and the look
                if name not in self._list(path[:depth]):
                    return True
        return False

    def add(self, path: Names) -> None:
        """Say that the folder *path* was made."""
        for depth, name in enumerate(path):
            if path[:depth] in self._listed:
                self._listed[path[:depth]].add(name)

    def clear(self) -> None:
        """List all folders anew: others may have changed them."""
        self._listed.clear()

    def _list(self, path: Names) -> set[str]:
        if path in self._listed:
            return self._listed[path]
        try:
            folder = open_folder(self._root, path)
        except (FileNotFoundError, NotADirectoryError):
            return set()
        try:
            with os.scandir(folder) as entries:
                names = self._listed[path] = {entry.name for entry in entries}
        finally:
            os.close(folder)
        return names

    def _is_found(self, path: Names) -> bool:
        try:
            folder = open_folder(self._root, path[:-1])
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(folder)
        return True


class SpellingProbe:
    """Tells whether the disk of the store at *root*, which has the folder *hidden*, ignores spellings. Thread-safe."""

    def __init__(self, root: str, hidden: str) -> None:
        self._root, self._hidden = root, hidden
        self._probe = f"{root}/{hidden}/{_PROBE}"
        self._known: tuple[tuple[int, int], bool] | None = None

    def write(self) -> None:
        """Leave the file by which the disk is probed; where there can be none, the name of the folder serves."""
        with contextlib.suppress(OSError):
            folder = make_folder(self._root, (self._hidden,))
            try:
                os.close(os.open(_PROBE, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder))
            finally:
                os.close(folder)

    def names(self) -> DiskNames | None:
        """The names on the disk, for one operation; None where it distinguishes all spellings."""
        return DiskNames(self._root) if self._ignores_spelling() else None

    def _ignores_spelling(self) -> bool:
        try:
            status = os.lstat(self._probe)
        except OSError:  # not written to by this release
            return self._is_there(self._hidden.upper())
        disk = status.st_dev, status.st_ino
        known = self._known
        if known is None or known[0] != disk:  # or another disk is mounted there now
            others = (_PROBE.lower(), _PROBE.upper(), unicodedata.normalize("NFD", _PROBE))
            known = self._known = disk, any(self._is_there(self._hidden, name) for name in others)
        return known[1]

    def _is_there(self, *names: str) -> bool:
        return os.path.lexists(Path(self._root, *names))


def similar_apart(items: Iterable[tuple[str, Item]]) -> Iterator[list[Item]]:
    """Parts of *items*, given with their ids: ids that a disk may take for the same are in different parts."""
    parts: list[list[Item]] = []
    counts: dict[str, int] = {}
    for content_id, item in items:
        key = "/".join(name.rstrip(". ") for name in unicodedata.normalize("NFC", content_id).casefold().split("/"))
        number = counts[key] = counts.get(key, -1) + 1
        if number == len(parts):
            parts.append([])
        parts[number].append(item)
    return iter(parts)


def same_name(content_id: str, space: str, url: str) -> StoreInputError:
    """The error of an item that has no name of its own on the disk."""
    return StoreInputError(
        f"cannot store {content_id!r} in space {space!r} of {url}: the disk does not distinguish its name from that of "
        "another file or folder, or changes it: rename one of them, or use a disk whose file system distinguishes all "
        "names, such as ext4"
    )
