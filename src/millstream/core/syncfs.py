"""One sync for many new files, where kernel and filesystem promise by it what they promise by a sync of each."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_TRUSTED = frozenset({"ext4", "xfs"})
"""Filesystems of which one sync brings everything that was written before onto the disk; of a mounted cloud or a
filesystem in user space it may not."""

_REPORTS_ERRORS = (5, 8)
"""Since this version of Linux, syncfs(2) tells of data that could not be written."""

_MOUNTS = Path("/proc/self/mountinfo")


def can_sync_filesystem(folder: int) -> bool:
    """Whether :func:`sync_filesystem` may be relied on for files on the filesystem of the open *folder*."""
    return _kernel() >= _REPORTS_ERRORS and _kind(os.fstat(folder).st_dev) in _TRUSTED


def sync_filesystem(folder: int) -> None:
    """Bring all that was written so far to the filesystem of the open *folder* onto the disk, by any process.

    Raises ``OSError``, also where anything that was written since *folder* was opened could not be brought there: so
    each writer opens its own folder before it writes.
    """
    if _libc.syncfs(folder):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)


def _kernel() -> tuple[int, int]:
    name = os.uname()
    try:
        major, minor = (int("".join(filter(str.isdigit, part))) for part in name.release.split(".")[:2])
    except ValueError:
        return (0, 0)
    return (major, minor) if name.sysname == "Linux" else (0, 0)


def _kind(device: int) -> str | None:
    """The type of the filesystem on *device*; None where that cannot be told."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in mounts:
        place, _, filesystem = mount.partition(" - ")
        if place.split(" ")[2] == number:
            return filesystem.split(" ")[0]
    return None
