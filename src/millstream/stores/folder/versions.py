"""Many small files of a folder that other programs wrote, hashed in one go where they are still as they were listed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable

from millstream.stores.bulk import SMALL
from millstream.stores.folder.path_names import decode_path
from millstream.stores.folder.tree import SourceTree, open_file
from millstream.stores.protocol import StoreError

Version = tuple[str, int, str]
"""A content id, and the size and the time of change (nanoseconds) that are listed of it."""


def hash_versions(root: str, versions: Iterable[Version]) -> list[str | None]:
    """The SHA-256 of each of *versions* in the folder *root*; None for what is large, or no plain file of that version.

    Whatever is out of the ordinary with an item is found again, and said, by who reads it alone.
    """
    with _Reader(root) as reader:
        return [reader.hash(*version) for version in versions]


class _Reader:
    """Keeps the folder open that the last item was in: they come in the order of a listing."""

    def __init__(self, root: str) -> None:
        self._tree = SourceTree(root)
        self._path: bytes | None = None
        self._folder = -1

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def hash(self, content_id: str, size: int, version: str) -> str | None:
        path = None if size > SMALL else decode_path(content_id)
        if path is None:
            return None
        above, _, name = path.rpartition(b"/")
        try:
            data = self._read(above, name, size, version)
        except (OSError, StoreError):
            return None
        return None if data is None else hashlib.sha256(data).hexdigest()

    def _read(self, above: bytes, name: bytes, size: int, version: str) -> bytes | None:
        folder = self._enter(above)
        handle = open_file(folder, name)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            data = os.read(handle, size + 1)
            while len(data) <= size and (more := os.read(handle, size + 1 - len(data))):
                data += more
        finally:
            os.close(handle)
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        same = stat.S_ISREG(now.st_mode) and now.st_size == len(data) == size and str(now.st_mtime_ns) == version
        return data if same else None

    def _enter(self, above: bytes) -> int:
        if self._path != above:
            self._close()
            self._folder = self._tree.enter(above.split(b"/") if above else ())
            self._path = above
        return self._folder

    def _close(self) -> None:
        if self._path is not None:
            os.close(self._folder)
            self._path = None
