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


_NO_NAMES = ("", ".", "..")


def hash_versions(root: str, versions: Iterable[Version]) -> list[str | None]:
    """The SHA-256 of each of *versions* in the folder *root*; None for what is large, or no plain file of that version.

    Whatever is out of the ordinary with an item is found and reported again when the item is read alone.
    """
    with _Reader(root) as reader:
        return [reader.hash(*version) for version in versions]


class _Reader:
    """Keeps the folder open that the last item was in: they come in the order of a listing."""

    def __init__(self, root: str) -> None:
        self._tree = SourceTree(root)
        self._path: str | None = None
        self._folder = -1

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def hash(self, content_id: str, size: int, version: str) -> str | None:
        if size > SMALL or content_id.startswith("/"):
            return None
        above, _, name = content_id.rpartition("/")
        try:
            folder = self._enter(above)
            path = decode_path(name) if "%" in name or name in _NO_NAMES else name.encode("utf-8")
            data = None if folder is None or path is None else _read(folder, path, size, int(version))
        except (OSError, StoreError, ValueError):  # a NUL in a name, a version that is no time
            return None
        return None if data is None else hashlib.sha256(data).hexdigest()

    def _enter(self, above: str) -> int | None:
        """A descriptor of the folder whose path has the id *above*; None where no path has it."""
        if self._path != above:
            path = decode_path(above) if above else b""
            if path is None or above.endswith("/"):
                return None
            self._close()
            self._folder = self._tree.enter(path.split(b"/") if path else ())
            self._path = above
        return self._folder

    def _close(self) -> None:
        if self._path is not None:
            os.close(self._folder)
            self._path = None


def _read(folder: int, name: bytes, size: int, version: int) -> bytes | None:
    """All bytes of a plain file of *size* bytes, whose time of change is *version* before and after it is read."""
    handle = open_file(folder, name)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or (status.st_size, status.st_mtime_ns) != (size, version):
            return None
        data = os.read(handle, size + 1)
        while len(data) <= size and (more := os.read(handle, size + 1 - len(data))):
            data += more
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return data if (status.st_size, status.st_mtime_ns) == (size, version) and len(data) == size else None
