"""Opening files that several processes lock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NOT_WRITABLE = (errno.EACCES, errno.EISDIR, errno.EPERM, errno.EROFS)


def open_to_lock(path: Path | str, *, flags: int = 0, dir_fd: int | None = None) -> int:
    """A descriptor of the existing *path* for an exclusive ``flock``; *flags* are added to those of the call.

    A file on NFS can be locked exclusively only through a descriptor that may write. What this process cannot write,
    such as a folder or a file of another user, is opened for reading.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=dir_fd)
