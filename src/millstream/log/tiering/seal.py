"""Sealing a run of blocks into one object, and checking that an object is the one that was sealed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import BinaryIO

from crc32c import crc32c

from millstream.log.backend import StoredBlock
from millstream.log.block_header import log_hash
from millstream.log.errors import DamagedLogError
from millstream.log.reading.scan import open_block
from millstream.log.tiering.format import (
    HEAD_SIZE,
    TAIL_SIZE,
    SealError,
    decode_head,
    decode_index,
    encode_head,
    encode_index,
    entry_of,
    index_size,
    summarize,
)
from millstream.log.tiering.objects import TierObjects
from millstream.log.tiering.sealed_objects import ParquetCopy, SealedObject

PART_BYTES = 4 << 20
NAME_DIGITS = 32
"""How many hex digits of its SHA-256 the name of an object has."""
ABSENT = "it does not exist"
OTHER_TOTALS = "its ids and totals differ from those that the log records"
_OTHER_BYTES = "its SHA-256 does not match"


def seal(log: str, folder: str, blocks: Iterable[StoredBlock], target: BinaryIO, suffix: str = "") -> SealedObject:
    """Write *blocks* of *log*, each checked, as one object into *target*, and return its row.

    The name, in *folder*, says what the object holds, so that sealing the same blocks again gives the same object
    under the same name, which ends with *suffix*. Raises :class:`DamagedLogError`: what is damaged is never sealed.
    """
    digest = hashlib.sha256()
    entries: list[tuple[int, ...]] = []
    offset = HEAD_SIZE

    def write(data: bytes) -> None:
        target.write(data)
        digest.update(data)

    for stored in blocks:
        head = open_block(log, stored).header
        if not entries:
            write(encode_head(log_hash(log), head.first_id))
        elif head.first_id != entries[-1][1] + 1:
            raise DamagedLogError(
                f"ids {entries[-1][1] + 1} to {head.first_id - 1} of log {log!r} are missing, so later "
                "messages cannot be moved to a tier. Restore them from a backup; `millstream log "
                f"verify {log}` lists all damage"
            )
        entries.append(entry_of(head, offset, stored.data))
        write(stored.data)
        offset += len(stored.data)
    if not entries:
        raise DamagedLogError(
            f"blocks of log {log!r} are missing. Restore them from a backup; `millstream log verify {log}` lists all "
            "damage"
        )
    index = encode_index(entries)
    write(index)
    sums = summarize(decode_index(index))
    name = f"{folder}/{sums.first_id:020d}-{sums.last_id:020d}-{digest.hexdigest()[:NAME_DIGITS]}{suffix}.tier"
    return SealedObject(name=name, size=offset + len(index), sha256=digest.hexdigest(), sums=sums)


def find_fault(objects: TierObjects, log: str, row: SealedObject) -> str | None:
    """The fault of the object of *row*, read completely; None if there is none."""
    size = objects.size(row.name)
    if size != row.size:
        return ABSENT if size is None else size_fault(size, row.size)
    data, digest = _read_index(objects, row), hashlib.sha256()
    try:
        found, first_id = decode_head(_read(objects, row.name, 0, HEAD_SIZE))
        entries = decode_index(data)
        if (found, first_id) != (log_hash(log), row.first_id) or summarize(entries) != row.sums:
            return OTHER_TOTALS
    except SealError as error:
        return str(error)
    digest.update(_read(objects, row.name, 0, HEAD_SIZE))
    for begin, length, checksums in _parts(entries):
        part = _read(objects, row.name, begin, length)
        digest.update(part)
        if _checksums(part, checksums) != [checksum for _, checksum in checksums]:
            return f"the CRC32C of a block within bytes {begin:,} to {begin + length:,} does not match"
    digest.update(data)
    return None if digest.hexdigest() == row.sha256 else _OTHER_BYTES


def find_fault_of_parquet(objects: TierObjects, copy: ParquetCopy) -> str | None:
    """The fault of a Parquet file, read completely; None if there is none."""
    size = objects.size(copy.name)
    if size != copy.size:
        return ABSENT if size is None else size_fault(size, copy.size)
    digest = hashlib.sha256()
    for start in range(0, copy.size, PART_BYTES):
        digest.update(_read(objects, copy.name, start, PART_BYTES))
    return None if digest.hexdigest() == copy.sha256 else _OTHER_BYTES


def size_fault(size: int, written: int) -> str:
    """What is wrong with an object of *size* bytes of which *written* bytes were written."""
    return f"it has {size:,} bytes, but {written:,} were written"


def _read(objects: TierObjects, name: str, start: int, length: int) -> bytes:
    return objects.read(name, start, length) or b""


def _read_index(objects: TierObjects, row: SealedObject) -> bytes:
    """The index of an object with its tail; whatever is there where it has none."""
    tail = _read(objects, row.name, row.size - TAIL_SIZE, TAIL_SIZE)
    try:
        size = min(index_size(tail), row.size)
    except SealError:
        return tail
    return _read(objects, row.name, row.size - size, size)


def read_index(objects: TierObjects, row: SealedObject) -> bytes | None:
    """The index of an object with its tail, to be decoded; None where the object is gone."""
    tail = objects.read(row.name, row.size - TAIL_SIZE, TAIL_SIZE)
    if tail is None:
        return None
    size = index_size(tail)
    return objects.read(row.name, max(row.size - size, 0), size)


def _parts(entries: object) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """The blocks in runs of about 4 MiB: where a run begins, its bytes, and size and checksum of each block."""
    parts: list[tuple[int, int, list[tuple[int, int]]]] = []
    for offset, size, checksum in entries[["offset", "bytes", "checksum"]].tolist():  # type: ignore[index]
        if not parts or parts[-1][1] + size > PART_BYTES:
            parts.append((offset, 0, []))
        begin, length, blocks = parts[-1]
        parts[-1] = (begin, length + size, [*blocks, (size, checksum)])
    return parts


def _checksums(part: bytes, blocks: list[tuple[int, int]]) -> list[int]:
    view, found = memoryview(part), []
    for size, _ in blocks:
        found.append(crc32c(view[:size]))
        view = view[size:]
    return found
