"""Drafts: files of a local store that are being written and are not in place yet.

Every store object that writes has its own folder under ``drafts``, beside a lock file that it holds for its lifetime. A
process that starts writing removes the folders of terminated ones, and so do workers that may have nothing to write.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import re
import resource
import secrets
import shutil
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from millstream.core.syncfs import can_sync_filesystem, sync_filesystem
from millstream.stores.folders import make_folder, open_plain

_MANY = 8
"""For fewer files than that a sync of each is cheaper than one of all that is written to their filesystem."""

_PARTS = 8
"""Folders over which the drafts of a writer are spread: the kernel makes and moves files of one folder one by one."""

UNNAMED = hasattr(os, "O_TMPFILE")
"""Whether new files of a group may be without names until they are in place."""

_LOCK = re.compile(r"[0-9a-f]{16}\.lock")
"""The name of the lock file of a writer."""

_OPEN_FILE = "/proc/self/fd/{}"
"""The path of the open files of a process on Linux."""

_SHARE = 4
"""A group of files without names may have this part (one in so many) of the files that a process may have open."""


class AtomicFiles:
    """The drafts folder of one writer, made at first use and removed when it is done. Thread-safe.

    Arguments: *root*, the store's folder; *names*, the path of the drafts below it.
    """

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        os.close(make_folder(root, names))
        base = Path(root, *names)
        clear_dead(base)
        self._token = secrets.token_hex(8)
        self._lock = _hold(base / f"{self._token}.lock")
        self._folders = _open_parts(make_folder(root, (*names, self._token)))
        self._whole = can_sync_filesystem(self._folders[0])
        self._links = self._whole and _can_link(self._folders[0])
        self._numbers = itertools.count(1)
        weakref.finalize(self, _leave, base / self._token, self._lock, self._folders, os.getpid())

    @contextlib.contextmanager
    def draft(self) -> Iterator[AtomicFile]:
        """A new draft, removed at the end of the block unless it was moved into place."""
        draft = AtomicFile(*self._new())
        try:
            yield draft
        finally:
            draft.discard()

    @contextlib.contextmanager
    def group(self, count: int) -> Iterator[AtomicFileGroup]:
        """About *count* small drafts and as many descriptions; drafts that were not moved into place are removed at the
        end of the block.

        Those of :meth:`AtomicFileGroup.write_new` have no names where the system has such files, and allows this
        process to have so many open.
        """
        part, name = self._new()
        folder = os.open(".", os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY, dir_fd=part)
        whole = self._whole and 2 * count >= _MANY
        group = AtomicFileGroup(folder, name, whole, unnamed=whole and self._links and may_be_open(count))
        try:
            yield group
        finally:
            group.discard()
            os.close(folder)

    def _new(self) -> tuple[int, str]:
        number = next(self._numbers)
        return self._folders[number % len(self._folders)], f"{os.getpid()}-{number}"


class WrittenFile:
    """A file whose bytes are written, and that is not in place yet."""

    def __init__(self, folder: int, name: str) -> None:
        self.folder, self.name, self._placed = folder, name, False

    def place(self, folder: int, name: str) -> None:
        """Move the finished file to *name* in *folder*, in the place of what was there, and make that durable."""
        self.move(folder, name)
        os.fsync(folder)

    def move(self, folder: int, name: str) -> None:
        """As :meth:`place`, but durable only once *folder* is synced."""
        os.rename(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
        self._placed = True

    def discard(self) -> None:
        """Remove the draft, if it is not in place."""
        if not self._placed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=self.folder)


class UnnamedFile(WrittenFile):
    """A file without a name, open as *handle* until it is in place: it is gone with the process.

    The kernel makes it and names it for less than it takes to make a file under one name and move it to another.
    """

    def __init__(self, folder: int, handle: int) -> None:
        super().__init__(folder, _OPEN_FILE.format(handle))
        self._handle = handle

    def move(self, folder: int, name: str) -> None:
        """Raises ``FileExistsError`` where *name* is not free."""
        os.link(self.name, name, dst_dir_fd=folder, follow_symlinks=True)
        self._placed = True
        os.close(self._handle)

    def discard(self) -> None:
        if not self._placed:
            os.close(self._handle)


class AtomicFileGroup:
    """Drafts that are written one after the other and brought onto the disk together.

    They lie in *folder*, opened for the group alone, under names that begin with *name*. With *whole* one sync of their
    filesystem stands for one of each file: a hundred syncs are a hundred turns of its journal.
    """

    def __init__(self, folder: int, name: str, whole: bool, *, unnamed: bool = False) -> None:
        self._folder, self._name, self._whole, self._unnamed = folder, name, whole, unnamed
        self._drafts: list[WrittenFile] = []

    def write_new(self, data: bytes) -> tuple[WrittenFile, os.stat_result]:
        """A new draft of *data* for a name that is free, and its status; durable only after :meth:`sync_all`."""
        if self._unnamed:
            handle = _create_unnamed(self._folder)
            draft: WrittenFile = UnnamedFile(self._folder, handle)
            self._drafts.append(draft)
            _write_whole(handle, data)
            return draft, os.fstat(handle)
        draft, handle = self._create()
        try:
            self._fill(handle, data)
            return draft, os.fstat(handle)
        finally:
            os.close(handle)

    def write_in_place(self, folder: int, name: str, data: bytes) -> None:
        """Write *data* into a new file *name* of *folder*, replacing an unneeded one; it is complete only after
        :meth:`sync_all`."""
        try:
            handle = _create(folder, name)
        except FileExistsError:
            os.unlink(name, dir_fd=folder)
            handle = _create(folder, name)
        try:
            self._fill(handle, data)
        finally:
            os.close(handle)

    def _create(self) -> tuple[WrittenFile, int]:
        draft = WrittenFile(self._folder, f"{self._name}-{len(self._drafts)}")
        handle = _create(draft.folder, draft.name)
        self._drafts.append(draft)
        return draft, handle

    def _fill(self, handle: int, data: bytes) -> None:
        _write_whole(handle, data)
        if not self._whole:
            os.fsync(handle)

    def sync_all(self, folders: Iterable[int]) -> None:
        """Bring all that was written onto the disk; *folders*, each once, have the files that were written in place."""
        if self._whole:
            sync_filesystem(self._folder)
            return
        for folder in folders:
            os.fsync(folder)

    def sync_folders(self, count: int, folders: Iterable[int]) -> None:
        """Make what was moved into these *count* open *folders* of the same filesystem durable."""
        if self._whole and count >= _MANY:
            sync_filesystem(self._folder)
            return
        for folder in folders:
            os.fsync(folder)

    def discard(self) -> None:
        """Remove the drafts that are not in place; one that cannot be removed keeps none of the others."""
        for draft in self._drafts:
            with contextlib.suppress(OSError):
                draft.discard()


class AtomicFile(WrittenFile):
    """One file that is being written: ``file`` takes the bytes."""

    def __init__(self, folder: int, name: str) -> None:
        super().__init__(folder, name)
        self.file: BinaryIO = io.BufferedWriter(io.FileIO(_create(folder, name), "wb"))

    def finish(self) -> os.stat_result:
        """Bring the bytes onto the disk; the file's status."""
        self.file.flush()
        os.fsync(self.file.fileno())
        status = os.fstat(self.file.fileno())
        self.file.close()
        return status

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # what is buffered does not fit on a full disk, and is not needed
            self.file.close()
        super().discard()


def _create(folder: int, name: str) -> int:
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)


def _create_unnamed(folder: int) -> int:
    return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)


def _write_whole(handle: int, data: bytes) -> None:
    done = os.write(handle, data)
    while done < len(data):
        done += os.write(handle, memoryview(data)[done:])


def _can_link(folder: int) -> bool:
    """Whether a file that was made in *folder* without a name can be given one."""
    if not UNNAMED:
        return False
    try:
        file = UnnamedFile(folder, _create_unnamed(folder))
    except OSError:
        return False
    name = secrets.token_hex(8)
    try:
        file.move(folder, name)
    except OSError:
        return False
    finally:
        file.discard()
    os.unlink(name, dir_fd=folder)
    return True


def may_be_open(count: int) -> bool:
    """Whether this process may well have *count* more files open, and several threads of it at once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most == resource.RLIM_INFINITY or _SHARE * count <= most


def _hold(path: Path) -> int:
    """Make the lock file *path* and lock it; again, if a cleaner took it away in between."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)


def clear_dead(base: Path) -> None:
    """Remove the drafts in the folder *base* whose writers have ended."""
    for lock in base.glob("*.lock"):
        if not _LOCK.fullmatch(lock.name):  # "..lock" would name the folder of all drafts, "...lock" the one above it
            continue
        with contextlib.suppress(FileNotFoundError), open_plain(lock, to_lock=True) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its writer is alive, or it is of another user on NFS
                continue
            _remove(lock.with_suffix(""))


def _open_parts(folder: int) -> list[int]:
    """The parts of a drafts folder, made and opened; *folder* itself is closed."""
    try:
        for part in range(_PARTS):
            os.mkdir(str(part), dir_fd=folder)
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY
        return [os.open(str(part), flags, dir_fd=folder) for part in range(_PARTS)]
    finally:
        os.close(folder)


def _remove(folder: Path) -> None:
    """Remove a drafts folder and its lock file; what is in it first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".lock").unlink(missing_ok=True)


def _leave(folder: Path, lock: int, parts: list[int], owner: int) -> None:
    for handle in parts:
        os.close(handle)
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            _remove(folder)
    os.close(lock)
