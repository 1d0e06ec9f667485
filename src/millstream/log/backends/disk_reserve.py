"""Disk space that a store in files reserves, so that it still works when the disk is full. Messages never use it. It is
released when trimming, acknowledging or the release of a lease finds no space, and reserved again when there is enough.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.log.errors import StorageFullError

SHARES, SHARE_BYTES = 4, 4 << 20
"""The bytes that are released at a time: other programs may take the rest before the next call needs it. The whole
reserve is as large as the part of SQLite's write-ahead log that may not be in the file yet."""

_TIMES = 4
"""A disk with less room than this many reserves is left alone."""

P = ParamSpec("P")
R = TypeVar("R")


class DiskReserve:
    """The files *path*-1, *path*-2, …, which say nothing and take room."""

    def __init__(self, path: Path) -> None:
        self._shares = [path.with_name(f"{path.name}-{number}") for number in range(1, SHARES + 1)]

    def keep(self) -> None:
        """Take the room that is not taken, if the disk has plenty; nothing happens where that does not succeed."""
        with contextlib.suppress(OSError):
            for share in self._shares:
                if _is_whole(share):
                    continue
                if shutil.disk_usage(share.parent).free <= _TIMES * SHARES * SHARE_BYTES:
                    return
                handle = os.open(share, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(handle, 0, SHARE_BYTES)
                finally:
                    os.close(handle)

    def give_up(self) -> bool:
        """Leave a share of the room to others; whether there was any."""
        for share in reversed(self._shares):
            with contextlib.suppress(OSError):
                share.unlink()
                return True
        return False


def _is_whole(share: Path) -> bool:
    """Whether the room was taken, and not only begun to be."""
    return share.exists() and share.stat().st_size >= SHARE_BYTES


def retry_with_reserve(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """*method* of an object with a ``_reserve``: where the disk is full, it is called again without a share of that.

    What it did before it failed must not count.
    """

    @functools.wraps(method)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            try:
                return method(self, *args, **kwargs)
            except StorageFullError as error:
                if getattr(error.__cause__, "errno", None) == errno.EFBIG or not self._reserve.give_up():
                    raise  # room on the disk is of no use to a file that has reached its limit

    return called
