"""Small states of a log, such as the positions of consumers: a journal of what was written, the last one counts."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from crc32c import crc32c

from millstream.core.clock import Clock
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.log.backend import VersionedValue
from millstream.log.backends.segments.files import FileLock, read_at, read_part, sync, write_all
from millstream.log.backends.segments.scan import has_unwritten_sector
from millstream.log.errors import DamagedLogError

MARK = b"MSST\x01\x00\x00\x00"
COMPACT_BYTES = 1 << 20
"""A journal is rewritten when it is larger than this and than four times its necessary content."""

_RECORD = struct.Struct("<II")  # length of what follows, its CRC32C


class _StateRecord(msgspec.Struct, frozen=True, array_like=True):
    key: str
    version: int
    value: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(prepared(_StateRecord))


class StateJournal:
    """The states in the file ``states`` of *folder*; several processes may write, each under the file's lock."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / "states"
        self._lock = FileLock(folder / "states.lock", clock)
        self._view = threading.RLock()
        self._states: dict[str, VersionedValue] = {}
        self._offset = 0
        self._file = (0, 0, 0)  # inode, size and time of the last change, when it was read
        self._first = self._last = (0, b"")  # where the first and the last record begin, and their lengths and CRC32Cs
        self._compact_above = COMPACT_BYTES
        if not self._refresh(strict=False):  # another process is writing the end, or it is damaged
            with self._lock.held():
                self._refresh(strict=True)

    @staticmethod
    def create(folder: Path, states: Mapping[str, VersionedValue] | None = None) -> None:
        """Make a journal of *states*, and its lock."""
        (folder / "states.lock").touch()
        write_durably(folder / "states", MARK + b"".join(_encode(*item) for item in (states or {}).items()))

    def all(self) -> Mapping[str, VersionedValue]:
        """Every state by its key, as of now."""
        with self._view:
            self._refresh(strict=False)
            return dict(self._states)

    def get(self, key: str) -> VersionedValue:
        """The state *key* as of now."""
        with self._view:
            self._refresh(strict=False)
            return self._states.get(key, VersionedValue())

    def put(self, key: str, value: bytes, *, version: int) -> bool:
        """Write version *version* + 1 durably, if the present version is *version*."""
        with self._lock.held(), self._view:
            self._refresh(strict=True)
            if self._states.get(key, VersionedValue()).version != version:
                return False
            record = _encode(key, VersionedValue(version + 1, value))
            self._append(record)
            self._take(_StateRecord(key, version + 1, value), record[: _RECORD.size], len(record))
            with contextlib.suppress(OSError):  # what was asked for is durable; a shorter journal can wait for room
                self._compact()
            return True

    def _append(self, record: bytes) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(handle, self._offset)
            write_all(handle, [record], self._offset)
            sync(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._offset)
            raise
        finally:
            os.close(handle)

    def _compact(self) -> None:
        if self._offset <= self._compact_above:
            return
        records = b"".join(_encode(key, state) for key, state in self._states.items())
        # Readers tell by the first record that the file is another one: it may get the inode of a deleted one.
        data = MARK + _encode("", VersionedValue(0, os.urandom(8))) + records
        if 4 * len(data) < self._offset:
            write_durably(self._path, data)
        self._compact_above = max(COMPACT_BYTES, 4 * len(data))

    def _refresh(self, *, strict: bool) -> bool:
        """Take in what was written since; whether that is all of the file. With *strict*, which needs the lock, damage
        raises.
        """
        status = self._path.stat()
        if _version(status) == self._file and status.st_size == self._offset:
            return True
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not self._goes_on(handle, status):
                self._states, self._offset, self._first, self._last = {}, 0, (0, b""), (0, b"")
            data = read_at(handle, self._offset, status.st_size - self._offset)
        finally:
            os.close(handle)
        if self._offset == 0:
            if not data.startswith(MARK):
                raise self._damage("the file is not a journal of states")
            self._offset, data = len(MARK), data[len(MARK) :]
        position = 0
        for entry, size in _entries(data):
            self._take(entry, data[position : position + _RECORD.size], size)
            position += size
        self._file = _version(status)
        if strict and self._offset < status.st_size and not self._is_torn(status.st_size):
            raise self._damage(f"the data at byte {self._offset} differs from what was written")
        return self._offset == status.st_size

    def _take(self, entry: _StateRecord, head: bytes, size: int) -> None:
        """Take in the record *entry* of *size* bytes, which begins with *head* and follows the last one."""
        if entry.version:  # else it only tells journals apart
            self._states[entry.key] = VersionedValue(entry.version, entry.value)
        self._last = (self._offset, head)
        self._first = self._first if self._first[1] else self._last
        self._offset += size

    def _goes_on(self, handle: int, status: os.stat_result) -> bool:
        """Whether the open file has what was read of it, and perhaps more: it was neither replaced nor cut."""
        if status.st_ino != self._file[0] or status.st_size < self._offset:
            return False
        return all(read_at(handle, offset, len(head)) == head for offset, head in (self._first, self._last))

    def _is_torn(self, end: int) -> bool:
        """Whether the rest looks like one write that never ended: nothing whole comes after it."""
        rest = read_part(self._path, self._offset, end - self._offset)
        if any(next(_entries(rest, start), None) for start in range(1, len(rest))):
            return False
        cut_short = len(rest) < _RECORD.size or len(rest) - _RECORD.size < _RECORD.unpack_from(rest)[0]
        return cut_short or has_unwritten_sector(self._path, self._offset, end)

    def _damage(self, what: str) -> DamagedLogError:
        return DamagedLogError(f"{self._path} is damaged: {what}. Restore the file from a backup")


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _encode(key: str, state: VersionedValue) -> bytes:
    payload = _encoder.encode(_StateRecord(key, state.version, state.value))
    return _RECORD.pack(len(payload), crc32c(payload)) + payload


def _entries(data: bytes, offset: int = 0) -> Iterator[tuple[_StateRecord, int]]:
    """The records of *data* from *offset* on that are whole, each with the bytes it takes."""
    while offset + _RECORD.size <= len(data):
        length, checksum = _RECORD.unpack_from(data, offset)
        if not 0 < length <= len(data) - offset - _RECORD.size:
            return
        payload = data[offset + _RECORD.size : offset + _RECORD.size + length]
        if crc32c(payload) != checksum:
            return
        yield _decoder.decode(payload), _RECORD.size + length
        offset += _RECORD.size + length
