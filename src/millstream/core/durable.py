"""Files that are either whole and on the disk, or not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)

_DRAFT_BYTES = 237
"""The longest part of a file's name in the name of its draft: file systems allow 255 bytes in all."""

_ABANDONED = 86_400
"""Seconds without a write after which a draft belongs to no process that runs."""


def draft_name(name: str) -> str:
    """A new name for a draft of the file *name*, in the same folder."""
    begin = name[:100]
    while len(os.fsencode(begin)) > _DRAFT_BYTES:
        begin = begin[:-1]
    return f".{begin}.{secrets.token_hex(6)}.tmp"


def remove_abandoned_drafts(
    folder: Path, is_ours: Callable[[str], bool], now: int, *, stopped: Callable[[], bool] = bool
) -> None:
    """Remove the drafts in *folder* that killed processes left: of files whose names are *is_ours*, a day old.

    *now* in microseconds. What cannot be removed stays, and also the rest once *stopped* returns True: all names in the
    folder are read, which takes seconds for each million.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if stopped():
                return
            draft = _DRAFT.fullmatch(entry.name) if entry.name.startswith(".") else None
            if draft is not None and is_ours(draft[1]) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now / 1_000_000 - _ABANDONED:
                        Path(entry.path).unlink()


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True, mode: int = 0o666, folder: int | None = None) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of *path* when the block ends well, and vanishes when it does not.

    *mode* says who may read it, as far as the process's own mask allows. With the descriptor *folder*, *path* is a name
    in that folder. With *sync* the bytes and the folder entry are on the disk when the block is left.
    """
    draft = path.with_name(draft_name(path.name))
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode, dir_fd=folder)) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
    if sync:
        sync_folder(path.parent) if folder is None else os.fsync(folder)


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """:func:`replacing` for a file that a user names: a symbolic link is followed, and a device or a pipe, such as
    /dev/null, is written to and not replaced."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    else:
        with replacing(path.resolve()) as file:
            yield file


def write_durably(path: Path, data: bytes, *, folder: int | None = None) -> None:
    """Put *data* at *path*, or at this name in the open *folder*, whole and synced, or not at all."""
    with replacing(path, folder=folder) as file:
        file.write(data)


def rewrite_durably(path: Path, data: bytes) -> None:
    """:func:`write_durably` for a file that others may have made: a symbolic link is followed, and the file keeps its
    mode and, as far as this process may give it away, its owner and group; a group that it cannot have loses its
    rights."""
    target = path.resolve()
    try:
        found = target.stat()
    except FileNotFoundError:
        write_durably(target, data)
        return
    with replacing(target, mode=0o600) as file:
        os.fchmod(file.fileno(), _give(file.fileno(), found))
        file.write(data)


def _give(handle: int, found: os.stat_result) -> int:
    """Give the open file to the owner and the group of *found*; the mode that it may have there."""
    for owner in (found.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.fchown(handle, owner, found.st_gid)
            return stat.S_IMODE(found.st_mode)
    return stat.S_IMODE(found.st_mode) & ~stat.S_IRWXG


@contextlib.contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Wait for the file *lock*, made where it is absent, and keep other threads and processes off while the block runs.

    It is released when its holder dies.
    """
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough


def sync_folder(folder: Path) -> None:
    """Make the entries of *folder* survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def nearest_existing(path: Path) -> Path:
    """*path* where there is something, or the nearest folder above it that there is."""
    return next(each for each in (path, *path.parents) if each.exists())


def may_write(path: Path) -> bool:
    """Whether this process may write at *path*, or where it would be made."""
    return os.access(nearest_existing(path), os.W_OK)


def is_on_read_only_disk(path: Path) -> bool:
    """Whether nothing can be written at *path*, or where it would be made, by anybody on this machine."""
    return bool(os.statvfs(nearest_existing(path)).f_flag & os.ST_RDONLY)
