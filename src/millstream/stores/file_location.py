"""The location of the file of a content item, which may not exist yet, held by the descriptor of its folder."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from types import TracebackType

from millstream.stores.folders import file_status, make_folder, open_folder


class FileLocation:
    """A file's place: ``path`` below the root, the open ``folder``, and the file's ``status`` (None: not there yet)."""

    def __init__(self, path: tuple[str, ...], folder: int, status: os.stat_result | None) -> None:
        self.path, self.folder, self.status = path, folder, status

    def __enter__(self) -> FileLocation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.folder)

    def read_status(self) -> os.stat_result | None:
        """The file's status now."""
        return file_status(self.folder, self.path[-1])

    def open(self) -> io.FileIO:
        """The file's bytes, unbuffered."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return io.FileIO(os.open(self.path[-1], flags, dir_fd=self.folder), "rb")

    def remove(self) -> None:
        """Remove the file, durably."""
        os.unlink(self.path[-1], dir_fd=self.folder)
        os.fsync(self.folder)


def find_file(root: str, paths: Sequence[tuple[str, ...]]) -> FileLocation | None:
    """The first of *paths* (relative to *root*) where a plain file is."""
    for path in paths:
        place = _look_at(root, path)
        if place is not None:
            return place
    return None


def make_file_location(root: str, paths: Sequence[tuple[str, ...]]) -> FileLocation:
    """The first of *paths* where a file can be put; folders after the first name of the path are made.

    Raises ``FileNotFoundError`` where the first folder is missing, ``NotADirectoryError`` where no path is free.
    """
    for path in paths:
        try:
            folder = make_folder(root, path[:-1], existing=1)
        except NotADirectoryError:
            continue
        if not _is_folder(folder, path[-1]):
            return FileLocation(path, folder, None)
        os.close(folder)
    raise NotADirectoryError(
        f"cannot create {root}/{'/'.join(paths[-1])}: a folder has this name, or a parent of the path is not a folder: "
        "move the obstacle away"
    )


def _look_at(root: str, path: tuple[str, ...]) -> FileLocation | None:
    try:
        folder = open_folder(root, path[:-1])
    except (FileNotFoundError, NotADirectoryError):
        return None
    status = None
    try:
        status = file_status(folder, path[-1])
    finally:
        if status is None:
            os.close(folder)
    return None if status is None else FileLocation(path, folder, status)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
