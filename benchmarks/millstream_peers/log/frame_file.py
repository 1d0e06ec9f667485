"""The minimal program: messages in one file, as durable and as checked as our log, and nothing else.

A commit is one frame: the first id, the number of messages, the size and the CRC-32 of what follows, the length of each
body, and the bodies. Once a frame is synced its end is written to a second file, so that readers see only what is
durable. There is one log to a file, no compression, no event time, no source, no trimming, and one writer that nothing
guards.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream_peers.log.grouped import GroupingSender

_HEADER: Final = struct.Struct("<QIII")
_END: Final = struct.Struct("<Q")
_NAP: Final = 0.001  # seconds until a reader looks again


class FrameFileSender(GroupingSender):
    """Appends frames and syncs each."""

    most_rows = 65_536

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._file = os.open(place.url, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._end_file = os.open(f"{place.url}.end", os.O_WRONLY | os.O_CREAT, 0o600)
        self._end = 0

    def close(self) -> None:
        super().close()
        os.close(self._file)
        os.close(self._end_file)

    def _commit(self, bodies: list[bytes], first: int) -> None:
        lengths = array("I", map(len, bodies)).tobytes()
        content = lengths + b"".join(bodies)
        frame = _HEADER.pack(first, len(bodies), len(content), zlib.crc32(content)) + content
        if os.write(self._file, frame) != len(frame):
            raise OSError("the disk is full")
        os.fdatasync(self._file)
        self._end += len(frame)
        os.pwrite(self._end_file, _END.pack(self._end), 0)


class FrameFileReceiver:
    """Reads frames up to the published end, checks each, and syncs how far it has come."""

    def __init__(self, place: QueueLocation) -> None:
        self._file = os.open(place.url, os.O_RDONLY | os.O_CREAT, 0o600)
        self._end_file = os.open(f"{place.url}.end", os.O_RDONLY | os.O_CREAT, 0o600)
        self._position_file = os.open(f"{place.url}.position", os.O_WRONLY | os.O_CREAT, 0o600)
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        """The messages from the first one to the one *total*, waiting for those that are not there yet."""
        position = last = 0
        while last < total:
            end = int.from_bytes(os.pread(self._end_file, _END.size, 0), "little")
            if end == position:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)
                continue
            while position < end:
                first, bodies, position = self._read(position)
                last = first + len(bodies) - 1
                yield range(first, last + 1), bodies
            os.pwrite(self._position_file, _END.pack(last), 0)
            os.fdatasync(self._position_file)

    def close(self) -> None:
        for file in (self._file, self._end_file, self._position_file):
            os.close(file)

    def _read(self, position: int) -> tuple[int, list[bytes], int]:
        """The first id and the bodies of the frame at *position*, and the position after it."""
        first, count, size, checksum = _HEADER.unpack(os.pread(self._file, _HEADER.size, position))
        content = os.pread(self._file, size, position + _HEADER.size)
        if len(content) != size or zlib.crc32(content) != checksum:
            raise OSError(f"the frame at byte {position:,} is damaged")
        data = content[4 * count :]
        ends = accumulate(array("I", content[: 4 * count]), initial=0)
        return first, [data[begin:end] for begin, end in pairwise(ends)], position + _HEADER.size + size
