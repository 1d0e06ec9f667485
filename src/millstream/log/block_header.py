"""The header of a block, and what names a block (docs/formats/block.md). Nothing here decodes one, so that a program
that only asks what a log has loads neither NumPy nor Arrow.
"""

from __future__ import annotations

import functools
import hashlib
import struct

import msgspec

from millstream.log.kinds import SYSTEM

MAGIC = b"MSBK"
VERSION = 1
HEADER = struct.Struct("<4sHBBIIQQQqqqqQQII")
MAX_COUNT = 65_536
MAX_RAW_BYTES = 256 << 20
"""Larger blocks are never written and are refused before anything is allocated for them."""


class BlockError(ValueError):
    """These bytes are no block, or not the block that was written."""


class BlockHeader(msgspec.Struct, frozen=True):
    """The header of a block. Times are microseconds.

    ``log`` is the :func:`log_hash` of its log, ``producer`` the :func:`name_hash` of who wrote it.
    """

    sections: int
    count: int
    log: int
    epoch: int
    first_id: int
    min_event_time: int
    max_event_time: int
    min_received_at: int
    max_received_at: int
    producer: int
    sequence: int
    raw_bytes: int
    stored_bytes: int

    @property
    def last_id(self) -> int:
        return self.first_id + self.count - 1


class EncodedBlock(msgspec.Struct, frozen=True):
    """A block on its way to the store: its header, and all its bytes (the header's included)."""

    header: BlockHeader
    data: bytes


class BlockOrigin(msgspec.Struct, frozen=True):
    """The origin of a block: the names of log and producer, the writer's epoch, the producer's sequence."""

    log: str
    epoch: int = 0
    producer: str = ""
    sequence: int = 0


@functools.lru_cache(maxsize=1024)
def name_hash(name: str) -> int:
    """The number that stands for *name* in a block header: the first eight bytes of its SHA-256, little-endian."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") if name else 0


def log_hash(log: str) -> int:
    """The number that stands for *log* in its blocks: a system log has that of its name without ``system:``."""
    return name_hash(log.removeprefix(SYSTEM))


def read_header(data: bytes) -> BlockHeader:
    """The header at the beginning of *data*, whose checksum is not looked at. Raises :class:`BlockError`."""
    if len(data) < HEADER.size:
        raise BlockError(f"{len(data)} bytes are too few for a block, which has at least {HEADER.size} bytes")
    magic, version, sections, flags, _, *rest = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BlockError("the data does not begin with the magic number of a block")
    if version != VERSION or flags:
        remedy = " (if a newer release wrote the block, upgrade Millstream)" if version >= VERSION else ""
        raise BlockError(
            f"the block has format {version} with flags {flags}, but this release reads format {VERSION} without "
            f"flags{remedy}"
        )
    header = BlockHeader(sections, *rest)
    if not 1 <= header.count <= MAX_COUNT or header.raw_bytes > MAX_RAW_BYTES:
        raise BlockError(
            f"the header of the block states {header.count:,} messages in {header.raw_bytes:,} bytes; the limits are "
            f"{MAX_COUNT:,} messages and {MAX_RAW_BYTES:,} bytes"
        )
    return header
