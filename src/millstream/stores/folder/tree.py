"""A folder that belongs to others: opened without a trace, and never left through a symbolic link."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from millstream.stores.protocol import StoreUnavailableError

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""The errors of a path that leads nowhere, or through something that is not a folder any more."""

FORBIDDEN = (errno.EACCES, errno.EPERM)


class SourceTree:
    """The folder *root*. Nothing below it is written; access times stay as they are where the system allows it.

    Folders are named by the file names on the way to them. All descriptors that are returned are the caller's to close.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def enter(self, names: Sequence[bytes]) -> int:
        """A descriptor through which entries of the folder can be reached; it needs no right to list it.

        Raises ``OSError``, for which see :data:`GONE`, and :class:`StoreUnavailableError` where there is no root.
        """
        return step_down(self.open_root(), names)

    def open_root(self) -> int:
        """A descriptor of the root, as of :meth:`enter`.

        Through it a walk reaches every folder: what is mounted at the root's path meanwhile, or is not any more, is
        none of its business.
        """
        try:
            return os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreUnavailableError(
                f"the folder {self.root} does not exist: mount its disk, or correct the path"
            ) from error


def step_down(folder: int, names: Sequence[bytes]) -> int:
    """From the open *folder*, which is closed, down to another one. Raises ``OSError``, as for a symbolic link."""
    for name in names:
        try:
            below = os.open(name, _STEP, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def open_to_list(folder: int) -> int:
    """A descriptor by which the entered *folder* can be listed."""
    return open_untouched(b".", _LIST, folder)


def open_file(folder: int, name: bytes) -> int:
    """A descriptor of the file *name* in *folder*; opening it never waits, whatever it turns out to be."""
    return open_untouched(name, _READ, folder)


def open_untouched(name: bytes, flags: int, folder: int) -> int:
    """Open *name* without changing its access time where this user may do so."""
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=folder)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        return os.open(name, flags, dir_fd=folder)
