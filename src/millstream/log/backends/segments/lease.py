"""The lease of a log's writer, in a small file that is replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from crc32c import crc32c

from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.log.backends.segments.files import read_part
from millstream.log.errors import DamagedLogError

_MOST_BYTES = 16 << 10  # of the file


class LeaseRecord(msgspec.Struct, frozen=True):
    """The writer, its epoch, the end of its lease, and the last id that was confirmed by then."""

    epoch: int = 0
    holder: bytes = b""
    until: int = 0
    last_id: int = 0


class LeaseFile:
    """The lease at *path*, which is read again only when the file was replaced. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._version = (0, 0)
        self._lease = LeaseRecord()

    def read(self) -> LeaseRecord:
        """The present lease. Raises like :func:`read_lease`."""
        if self._handle is None or _version(self.path.stat()) != self._version:
            self.close()
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # while it is open, no other has its inode
            self._lease = read_lease(self.path)
            self._version = _version(os.fstat(self._handle))  # comes last: a signal may interrupt before
        return self._lease

    def close(self) -> None:
        """Close the file; :meth:`read` opens it again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def write_lease(path: Path, lease: LeaseRecord) -> None:
    """Put *lease* at *path*, durably: its CRC32C in hexadecimal, a space, JSON."""
    data = msgspec.json.encode(lease)
    write_durably(path, b"%08x %s\n" % (crc32c(data), data))


def read_lease(path: Path) -> LeaseRecord:
    """The lease at *path*. Raises :class:`DamagedLogError`, FileNotFoundError."""
    checksum, _, data = read_part(path, 0, _MOST_BYTES).rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32c(data):
        raise DamagedLogError(f"{path} is damaged: its CRC32C does not match. Restore it from a backup")
    return msgspec.json.decode(data, type=prepared(LeaseRecord))


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns
