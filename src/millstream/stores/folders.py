"""Folders below a root, reached step by step so that no planted symbolic link leads out of it."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millstream.core.durable import sync_folder
from millstream.core.lock_files import open_to_lock

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY


def open_folder(root: str, names: Sequence[str]) -> int:
    """A descriptor of the folder ``root/names[0]/names[1]/…``; the caller closes it.

    Raises ``FileNotFoundError``, or ``NotADirectoryError`` where a step is a file or a symbolic link.
    """
    folder = os.open(root, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
    for name in names:
        folder = _step(folder, name)
    return folder


def make_folder(root: str, names: Sequence[str], *, existing: int = 0) -> int:
    """As :func:`open_folder`, but folders that are missing after the first *existing* names are made, durably."""
    folder = open_folder(root, names[:existing])
    for name in names[existing:]:
        try:
            folder = _step(folder, name, keep_on_missing=True)
        except FileNotFoundError:
            folder = _make(folder, name)
    return folder


MOST_OPEN = 64
"""Folders that :class:`OpenFolders` keeps open: a process may have a thousand files open in all."""


class OpenFolders:
    """Folders below *root* that stay open for a block; of many the :data:`MOST_OPEN` that were used last.

    Not to be kept: folders may be removed. Every step refuses symbolic links, as :func:`open_folder` does.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._open: dict[tuple[str, ...], int | None] = {}  # the one used last is the last one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._open.values():
            if folder is not None:
                os.close(folder)
        self._open.clear()

    def get(self, names: tuple[str, ...]) -> int | None:
        """A descriptor of the folder ``root/names[0]/…``, which stays ours; None where there is none.

        It is to be used at once: it is closed after many others were asked for.
        """
        if names in self._open:
            folder = self._open[names] = self._open.pop(names)
            return folder
        return self._keep(names, self._get(names))

    def make(self, names: tuple[str, ...], *, existing: int = 0) -> int:
        """As :meth:`get`, but folders that are missing after the first *existing* names are made, durably.

        Raises ``FileNotFoundError``, or ``NotADirectoryError`` where a step is a file or a symbolic link.
        """
        folder = self.get(names)
        if folder is None:
            folder = make_folder(self.root, names, existing=existing)
            self._keep(names, folder)
        return folder

    def _keep(self, names: tuple[str, ...], folder: int | None) -> int | None:
        self._open.pop(names, None)
        self._open[names] = folder
        while len(self._open) > MOST_OPEN:
            oldest = self._open.pop(next(iter(self._open)))
            if oldest is not None:
                os.close(oldest)
        return folder

    def _get(self, names: tuple[str, ...]) -> int | None:
        """Descend from the nearest folder that is open; those between are not kept, since an id may have hundreds."""
        if not names:
            return os.open(self.root, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
        self.get(names[:1] if names[1:] else ())
        depth = next(depth for depth in range(len(names) - 1, -1, -1) if names[:depth] in self._open)
        above = self._open[names[:depth]]
        if above is None:
            return None
        folder = os.dup(above)
        try:
            for name in names[depth:]:
                folder = _step(folder, name)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return None
        return folder


def make_root(root: Path) -> None:
    """Make the folder *root*, and those above it, where they are missing; durably."""
    if root.is_dir():
        return
    make_root(root.parent)
    root.mkdir(exist_ok=True)
    sync_folder(root.parent)


def remove_empty_folders(root: str, names: Sequence[str], keep: int) -> None:
    """Remove the folder ``root/names…`` if it is empty, then its parents, down to the first *keep* names."""
    for depth in range(len(names), keep, -1):
        try:
            parent = open_folder(root, names[: depth - 1])
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            os.rmdir(names[depth - 1], dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                raise
            return
        finally:
            os.close(parent)


class NotPlainFileError(FileNotFoundError):
    """Something else than a plain file stands there, such as a symbolic link."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ENOENT, "not a regular file", str(path))


def open_plain(path: Path, *, folder: int | None = None, to_lock: bool = False) -> io.FileIO:
    """The plain file *path* for reading. What else may stand there is neither followed nor waited for.

    With the descriptor *folder*, *path* is a name in that folder. With *to_lock* it is opened so that it can be locked
    exclusively (:func:`open_to_lock`). Raises ``FileNotFoundError`` where there is none, :class:`NotPlainFileError`
    where there is something else.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        if to_lock:
            handle = open_to_lock(path, flags=flags, dir_fd=folder)
        else:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise
        raise NotPlainFileError(path) from error
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return io.FileIO(handle, "rb")
    os.close(handle)
    raise NotPlainFileError(path)


def file_status(folder: int, name: str) -> os.stat_result | None:
    """The status of the plain file *name* in *folder*; None where there is none (folders and links are none)."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _step(folder: int, name: str, keep_on_missing: bool = False) -> int:
    """Descend: open *name* in *folder* and close *folder* (also on errors, unless told to keep it)."""
    try:
        below = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not keep_on_missing:
            os.close(folder)
        raise
    except OSError as error:
        os.close(folder)
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link", name) from error
        raise
    os.close(folder)
    return below


def _make(folder: int, name: str) -> int:
    try:
        os.mkdir(name, dir_fd=folder)
        os.fsync(folder)
    except FileExistsError:
        pass  # another thread or process was faster
    except OSError:
        os.close(folder)
        raise
    return _step(folder, name)
