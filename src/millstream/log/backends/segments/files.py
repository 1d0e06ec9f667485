"""Files as the segment store uses them: locks between processes, writes that are whole, errors with advice."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.core.clock import Clock
from millstream.core.lock_files import open_to_lock
from millstream.core.lock_holders import describe_lock_holders
from millstream.log.errors import StorageBusyError, StorageError, StorageFullError, StorageReadOnlyError

_WAIT = 60.0  # seconds for which a lock of another process is waited for
_POLL = 0.001  # seconds
_MOST_BUFFERS = 512  # below the IOV_MAX of every system

_KINDS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (
        StorageFullError,
        "free some space on its disk, or delete files if `df -i` shows no free inodes, then open the writer again",
    ),
    errno.EDQUOT: (StorageFullError, "raise the quota or free some space, then open the writer again"),
    errno.EFBIG: (StorageFullError, "raise the limit on the size of files, then open the writer again"),
    errno.EMFILE: (StorageError, "raise the limit on open files of this process (`ulimit -n`)"),
    errno.ENFILE: (StorageError, "raise the limit on open files of this machine (`sysctl fs.file-max`)"),
    errno.EROFS: (StorageReadOnlyError, "make its disk writable"),
    errno.EACCES: (StorageReadOnlyError, "check the rights of the folder and its files"),
    errno.EPERM: (StorageReadOnlyError, "check the rights of the folder and its files"),
}


class FileLock:
    """The exclusive lock on the file *path*, among the threads of this process and among processes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._threads = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def held(self, wait: float | None = None) -> Iterator[None]:
        """Hold the lock. Raises :class:`StorageBusyError` when another process has kept it for a minute, and
        :class:`StorageError` once it is closed. With *wait*, no thread or process is waited for longer (seconds).
        """
        with self._threads if wait is None else _held_within(self._threads, wait, self._path):
            if self._closed:
                raise StorageError(f"{self._path.parent} is closed: open the store again")
            handle = open_to_lock(self._path)
            try:
                self._take(handle, _WAIT if wait is None else wait)
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough
                os.close(handle)

    def close(self) -> None:
        """Wait until no thread of this process has the lock; none gets it any more."""
        with self._threads:
            self._closed = True

    def _take(self, handle: int, wait: float) -> None:
        deadline = self._clock.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if self._clock.monotonic() > deadline:
                    raise StorageBusyError(
                        f"{self._path} has been locked for {wait:.0f} seconds: {describe_lock_holders(self._path)}"
                    ) from error
                self._clock.sleep(_POLL)


@contextlib.contextmanager
def _held_within(lock: threading.Lock, seconds: float, path: Path) -> Iterator[None]:
    """Hold *lock*, of the file *path*, if it is free within *seconds*."""
    if not lock.acquire(timeout=seconds):
        raise StorageBusyError(f"{path} has been locked for {seconds:.0f} seconds by another thread of this process")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn an error of the system about a file at or below *path* into a :class:`StorageError` with advice."""
    try:
        yield
    except OSError as error:
        kind, advice = _KINDS.get(error.errno or 0, (StorageError, "check the disk for errors"))
        raise kind(f"{path}: {error.strerror or error}; {advice}") from error


def write_all(handle: int, buffers: Sequence[bytes], offset: int) -> int:
    """Write *buffers* one after the other from *offset* on; returns where they end."""
    for start in range(0, len(buffers), _MOST_BUFFERS):
        group = buffers[start : start + _MOST_BUFFERS]
        size = sum(map(len, group))
        written = os.pwritev(handle, group, offset)
        while written < size:
            written += os.pwrite(handle, b"".join(group)[written:], offset + written)
        offset += size
    return offset


def sync(handle: int) -> None:
    """Wait until the file's bytes and its length are on the disk. After a failure nothing written may be relied on."""
    os.fdatasync(handle)


def read_part(path: Path, offset: int, size: int) -> bytes:
    """At most *size* bytes of the file from *offset* on."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(handle, offset, size)
    finally:
        os.close(handle)


def read_at(handle: int, offset: int, size: int) -> bytes:
    """At most *size* bytes of the open file from *offset* on; fewer only where it ends."""
    data = os.pread(handle, size, offset)
    while len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
        data += more
    return data
