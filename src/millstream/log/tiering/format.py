"""A sealed object as bytes: blocks one after the other, and an index of them (docs/formats/tier.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from crc32c import crc32c

from millstream.log.backend import BlockStatistics
from millstream.log.block_header import BlockHeader

VERSION = 1
HEAD_MARK, INDEX_MARK = b"MSTR", b"MSTI"

_HEAD = struct.Struct("<4sHHIIQQ")  # mark, version, 0, CRC, 0, log, first id
_INDEX = struct.Struct("<4sHHIIQQQqqqq")  # mark, version, 0, CRC, blocks, first id, last id, bytes, times
_TAIL = struct.Struct("<4sIQ")  # mark, 0, bytes of the index with this tail
_CRC = struct.Struct("<I")
_CRC_AT = 8

HEAD_SIZE, TAIL_SIZE = _HEAD.size, _TAIL.size
MOST_INDEX_BYTES = 64 << 20

ENTRY = np.dtype(
    [(name, "<u8") for name in ("first_id", "last_id", "offset")]
    + [(name, "<u4") for name in ("bytes", "checksum")]
    + [(name, "<i8") for name in ("min_event_time", "max_event_time", "min_received_at", "max_received_at")]
)
"""The entry of one block in the index; ``offset`` from the beginning of the object, ``checksum`` of all its bytes."""


class SealError(ValueError):
    """These bytes are no sealed object, or not the one that was written."""


def encode_head(log: int, first_id: int) -> bytes:
    """The beginning of the object of *log* (a name hash) whose first block begins at *first_id*."""
    return _sealed(_HEAD.pack(HEAD_MARK, VERSION, 0, 0, 0, log, first_id))


def decode_head(data: bytes) -> tuple[int, int]:
    """The log and the first id in the head *data*. Raises :class:`SealError`."""
    _, _, _, log, first_id = _unpacked(_HEAD, HEAD_MARK, data)
    _check(data)
    return log, first_id


def entry_of(head: BlockHeader, offset: int, data: bytes) -> tuple[int, ...]:
    """The entry of the block with *head* and the bytes *data*, at *offset*."""
    times = (head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at)
    return (head.first_id, head.last_id, offset, len(data), crc32c(data), *times)


def encode_index(entries: Sequence[tuple[int, ...]]) -> bytes:
    """The index that ends an object, its tail included."""
    rows = np.array(entries, ENTRY)
    found = summarize(rows)
    times = (found.min_event_time, found.max_event_time, found.min_received_at, found.max_received_at)
    sums = (found.blocks, found.first_id, found.last_id, found.bytes, *times)
    head = _INDEX.pack(INDEX_MARK, VERSION, 0, 0, *sums)
    index = _sealed(head + rows.tobytes())
    return index + _TAIL.pack(INDEX_MARK, 0, len(index) + _TAIL.size)


def index_size(tail: bytes) -> int:
    """How many bytes the index has, with the *tail* it ends in. Raises :class:`SealError`."""
    if len(tail) != _TAIL.size or tail[:4] != INDEX_MARK:
        raise SealError("the index at the end of the object is missing")
    size: int = _TAIL.unpack(tail)[2]
    least = _INDEX.size + ENTRY.itemsize + _TAIL.size
    if not least <= size <= MOST_INDEX_BYTES:
        raise SealError(
            f"the object states an index of {size:,} bytes; an index has {least:,} to {MOST_INDEX_BYTES:,} bytes"
        )
    return size


def decode_index(data: bytes) -> Any:
    """The array of :data:`ENTRY` in an index with its tail. Raises :class:`SealError`."""
    *_, blocks, first_id, last_id, total, _, _, _, _ = _unpacked(_INDEX, INDEX_MARK, data)
    if len(data) != _INDEX.size + blocks * ENTRY.itemsize + _TAIL.size or not blocks:
        raise SealError("the index does not have the size that it states")
    _check(data[: -_TAIL.size])
    rows = np.frombuffer(data, ENTRY, blocks, _INDEX.size)
    dense = bool((rows["first_id"][1:] == rows["last_id"][:-1] + 1).all())
    sums = summarize(rows)
    if not dense or (sums.first_id, sums.last_id, sums.bytes) != (first_id, last_id, total):
        raise SealError("the entries of the index are inconsistent")
    return rows


def summarize(rows: Any) -> BlockStatistics:
    """The totals of the blocks *rows* (an array of :data:`ENTRY`, not empty)."""
    first_id, last_id = int(rows["first_id"][0]), int(rows["last_id"][-1])
    return BlockStatistics(
        first_id=first_id,
        last_id=last_id,
        count=last_id - first_id + 1,
        blocks=len(rows),
        bytes=int(rows["bytes"].sum(dtype=np.int64)),
        min_event_time=int(rows["min_event_time"].min()),
        max_event_time=int(rows["max_event_time"].max()),
        min_received_at=int(rows["min_received_at"].min()),
        max_received_at=int(rows["max_received_at"].max()),
    )


def _unpacked(kind: struct.Struct, mark: bytes, data: bytes) -> tuple[Any, ...]:
    if len(data) < kind.size:
        raise SealError(f"the object has {len(data):,} bytes, but needs at least {kind.size}")
    found, version, *rest = kind.unpack_from(data)
    if found != mark:
        raise SealError("the magic number at the beginning is missing")
    if version != VERSION:
        remedy = ": upgrade Millstream" if version > VERSION else ""
        raise SealError(f"the object has version {version}, but this release reads version {VERSION}{remedy}")
    return tuple(rest)


def _sealed(data: bytes) -> bytes:
    sealed = bytearray(data)
    _CRC.pack_into(sealed, _CRC_AT, _checksum(sealed))
    return bytes(sealed)


def _check(data: bytes) -> None:
    if _CRC.unpack_from(data, _CRC_AT)[0] != _checksum(data):
        raise SealError("the CRC32C does not match the content")


def _checksum(data: bytes | bytearray) -> int:
    view = memoryview(data)
    checksum: int = crc32c(view[_CRC_AT + _CRC.size :], crc32c(view[:_CRC_AT]))
    return checksum
