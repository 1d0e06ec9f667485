"""Drafts: files of a local store that are being written and are not in place yet.

Every store object that writes has a folder of its own under ``drafts``, beside a lock file that it holds for as long as
it lives. Whoever starts writing clears away the folders of the dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import secrets
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from millstream.stores.folders import make_folder


class Drafts:
    """The drafts folder of one writer, made at first use and removed when it is done. Thread-safe.

    Arguments: *root*, the store's folder; *names*, the path of the drafts below it.
    """

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        os.close(make_folder(root, names))
        base = Path(root, *names)
        _clear_dead(base)
        self._token = secrets.token_hex(8)
        self._lock = _hold(base / f"{self._token}.lock")
        self._folder = make_folder(root, (*names, self._token))
        self._numbers = itertools.count(1)
        weakref.finalize(self, _leave, base / self._token, self._lock, self._folder, os.getpid())

    @contextlib.contextmanager
    def draft(self) -> Iterator[Draft]:
        """A new draft, removed at the end of the block unless it was moved into place."""
        draft = Draft(self._folder, f"{os.getpid()}-{next(self._numbers)}")
        try:
            yield draft
        finally:
            draft.discard()


class Draft:
    """One file that is being written: ``file`` takes the bytes."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder, self._name, self._placed = folder, name, False
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
        self.file: BinaryIO = io.BufferedWriter(io.FileIO(handle, "wb"))

    def finish(self) -> os.stat_result:
        """Bring the bytes onto the disk; the file's status."""
        self.file.flush()
        os.fsync(self.file.fileno())
        status = os.fstat(self.file.fileno())
        self.file.close()
        return status

    def place(self, folder: int, name: str) -> None:
        """Move the finished file to *name* in *folder*, in the place of what was there, and make that durable."""
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)
        self._placed = True
        os.fsync(folder)

    def discard(self) -> None:
        """Remove the draft, if it is not in place."""
        self.file.close()
        if not self._placed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._folder)


def _hold(path: Path) -> int:
    """Make the lock file *path* and lock it; again, if a cleaner took it away in between."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)


def _clear_dead(base: Path) -> None:
    for lock in base.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError), lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove(lock.with_suffix(""))


def _remove(folder: Path) -> None:
    """Remove a drafts folder and its lock file; files in it first."""
    with contextlib.suppress(FileNotFoundError):
        for draft in folder.iterdir():
            draft.unlink(missing_ok=True)
        folder.rmdir()
    folder.with_suffix(".lock").unlink(missing_ok=True)


def _leave(folder: Path, lock: int, handle: int, owner: int) -> None:
    os.close(handle)
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            _remove(folder)
    os.close(lock)
