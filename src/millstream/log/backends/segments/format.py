"""The records of a segment store, as bytes (docs/formats/segments.md). Nothing here reads or writes a file."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from millstream.core.decoding import prepared
from millstream.log.backend import BlockStatistics, Commit, VersionedValue

VERSION = 1

_SEGMENT = struct.Struct("<4sHHIIQQqQ")  # mark, version, 0, CRC, snapshot bytes, log, first id, received at, 0
_COMMIT = struct.Struct(
    "<4sHHIIQQQqQQ"
)  # mark, version, name bytes, CRC, blocks, epoch, ids, received at, sequence, size
_FOOTER = struct.Struct("<4sHHIIQQQqqqq")  # mark, version, 0, CRC, blocks, first id, last id, bytes, times
_TAIL = struct.Struct("<4sIQ")  # mark, 0, bytes of the footer with this tail
_END = struct.Struct("<4sHHIIQQQQq")  # mark, version, 0, CRC, 0, boot, segment, offset, last id, received at

SEGMENT_HEAD, COMMIT_HEAD, FOOTER_TAIL, END_SIZE = _SEGMENT.size, _COMMIT.size, _TAIL.size, _END.size
SEGMENT_MARK, COMMIT_MARK, FOOTER_MARK, END_MARK = b"MSSG", b"MSCM", b"MSFT", b"MSND"
MOST_SNAPSHOT_BYTES = 64 << 20
MOST_NAME_BYTES = 4096

ENTRY = np.dtype(
    [(name, "<u8") for name in ("first_id", "last_id", "offset", "bytes")]
    + [(name, "<i8") for name in ("min_event_time", "max_event_time", "min_received_at", "max_received_at")]
)
"""The entry of one block in the index of a segment; ``offset`` from the beginning of the file."""

_CRC = struct.Struct("<I")
_CRC_AT = 8


class FormatError(ValueError):
    """These bytes are not the record that should be there."""


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a segment: what it continues."""

    log: int
    first_id: int
    received_at: int
    producers: Mapping[str, VersionedValue]
    size: int


class CommitHead(msgspec.Struct, frozen=True, kw_only=True):
    """What precedes the blocks of one commit. ``size`` is that of the head with the name, ``bytes`` of the blocks."""

    blocks: int
    epoch: int
    previous_id: int
    last_id: int
    received_at: int
    sequence: int
    bytes: int
    producer: str
    size: int


class CommittedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the confirmed commits: in the segment that begins at id ``segment``, at ``offset``."""

    boot: int = 0
    segment: int = 1
    offset: int = 0
    last_id: int = 0
    received_at: int = 0


def encode_segment(log: int, first_id: int, received_at: int, producers: Mapping[str, VersionedValue]) -> bytes:
    """The beginning of a segment, with the sequences of all producers so far."""
    snapshot = msgspec.json.encode({name: (state.version, state.value.decode()) for name, state in producers.items()})
    snapshot += b" " * (-len(snapshot) % 8)
    return _seal(_SEGMENT.pack(SEGMENT_MARK, VERSION, 0, 0, len(snapshot), log, first_id, received_at, 0), snapshot)


def snapshot_size(data: bytes) -> int:
    """How many bytes follow the fixed part of the segment head *data*. Raises :class:`FormatError`."""
    size: int = _unpack(_SEGMENT, SEGMENT_MARK, data)[2]
    if size > MOST_SNAPSHOT_BYTES:
        raise FormatError(
            f"the snapshot of producers has {size:,} bytes, more than the limit of {MOST_SNAPSHOT_BYTES:,} bytes"
        )
    return size


def decode_segment(data: bytes) -> SegmentHead:
    """The head of a segment from all its bytes. Raises :class:`FormatError`."""
    _, _, size, log, first_id, received_at, _ = _unpack(_SEGMENT, SEGMENT_MARK, data)
    _check(data[: _SEGMENT.size + size], _SEGMENT.size + size)
    rows = msgspec.json.decode(data[_SEGMENT.size : _SEGMENT.size + size], type=prepared(dict[str, tuple[int, str]]))
    producers = {name: VersionedValue(version, value.encode()) for name, (version, value) in rows.items()}
    return SegmentHead(
        log=log, first_id=first_id, received_at=received_at, producers=producers, size=_SEGMENT.size + size
    )


def head_of(commit: Commit) -> CommitHead:
    """The head of *commit*."""
    name = len(commit.producer.encode())
    return CommitHead(
        blocks=len(commit.blocks),
        epoch=commit.epoch,
        previous_id=commit.previous_id,
        last_id=commit.last_id,
        received_at=commit.received_at,
        sequence=commit.sequence or 0,
        bytes=sum([len(block.data) for block in commit.blocks]),
        producer=commit.producer,
        size=_COMMIT.size + name + -name % 8,
    )


def encode_commit(head: CommitHead) -> bytes:
    """*head* as the bytes before the blocks of a commit."""
    name = head.producer.encode()
    numbers = head.epoch, head.previous_id, head.last_id, head.received_at, head.sequence, head.bytes
    return _seal(_COMMIT.pack(COMMIT_MARK, VERSION, len(name), 0, head.blocks, *numbers), name + bytes(-len(name) % 8))


def name_size(data: bytes) -> int:
    """How many bytes follow the fixed part of the commit head *data*. Raises :class:`FormatError`."""
    size: int = _unpack(_COMMIT, COMMIT_MARK, data)[0]
    if size > MOST_NAME_BYTES:
        raise FormatError(
            f"the name of the producer has {size:,} bytes, more than the limit of {MOST_NAME_BYTES:,} bytes"
        )
    return size + -size % 8


def decode_commit(data: bytes) -> CommitHead:
    """The head of a commit from all its bytes. Raises :class:`FormatError`."""
    length, _, blocks, epoch, previous_id, last_id, received_at, sequence, stored = _unpack(_COMMIT, COMMIT_MARK, data)
    size = _COMMIT.size + length + -length % 8
    _check(data[:size], size)
    producer = data[_COMMIT.size : _COMMIT.size + length].decode()
    return CommitHead(
        blocks=blocks,
        epoch=epoch,
        previous_id=previous_id,
        last_id=last_id,
        received_at=received_at,
        sequence=sequence,
        bytes=stored,
        producer=producer,
        size=size,
    )


def encode_footer(entries: Any) -> bytes:
    """The footer that seals a segment with the blocks *entries* (an array of :data:`ENTRY`)."""
    found = summarize(entries)
    times = (found.min_event_time, found.max_event_time, found.min_received_at, found.max_received_at)
    sums = (found.blocks, found.first_id, found.last_id, found.bytes, *times)
    head = _FOOTER.pack(FOOTER_MARK, VERSION, 0, 0, *sums)
    index = entries.tobytes()
    return _seal(head, index) + _TAIL.pack(FOOTER_MARK, 0, _FOOTER.size + len(index) + _TAIL.size)


def footer_size(tail: bytes) -> int:
    """How many bytes the footer has that ends in *tail*. Raises :class:`FormatError`."""
    if len(tail) < _TAIL.size or tail[:4] != FOOTER_MARK:
        raise FormatError("the footer is missing")
    size: int = _TAIL.unpack(tail)[2]
    return size


def decode_footer(data: bytes) -> Any:
    """The array of :data:`ENTRY` in a footer. Raises :class:`FormatError`."""
    blocks = _unpack(_FOOTER, FOOTER_MARK, data)[2]
    if len(data) != _FOOTER.size + blocks * ENTRY.itemsize + _TAIL.size:
        raise FormatError("the size of the footer differs from the size it states")
    _check(data[: -_TAIL.size], len(data) - _TAIL.size)
    return np.frombuffer(data, ENTRY, blocks, _FOOTER.size)


def summarize(entries: Any) -> BlockStatistics:
    """The totals of the blocks *entries*."""
    if not len(entries):
        return BlockStatistics()
    least = [int(entries[name].min()) for name in ("min_event_time", "min_received_at")]
    most = [int(entries[name].max()) for name in ("max_event_time", "max_received_at")]
    return BlockStatistics(
        first_id=int(entries["first_id"][0]),
        last_id=int(entries["last_id"][-1]),
        count=int((entries["last_id"] - entries["first_id"]).sum()) + len(entries),
        blocks=len(entries),
        bytes=int(entries["bytes"].sum()),
        min_event_time=least[0],
        max_event_time=most[0],
        min_received_at=least[1],
        max_received_at=most[1],
    )


def encode_end(end: CommittedEnd) -> bytes:
    """*end* as the record that says it."""
    return _seal(_END.pack(END_MARK, VERSION, 0, 0, 0, *msgspec.structs.astuple(end)))


def decode_end(data: bytes) -> CommittedEnd:
    """The end in a record. Raises :class:`FormatError`."""
    _, _, _, boot, segment, offset, last_id, received_at = _unpack(_END, END_MARK, data)
    _check(data, _END.size)
    return CommittedEnd(boot=boot, segment=segment, offset=offset, last_id=last_id, received_at=received_at)


def _unpack(kind: struct.Struct, mark: bytes, data: bytes) -> tuple[Any, ...]:
    """The fields after mark and version, the checksum among them."""
    if len(data) < kind.size:
        raise FormatError(f"the record is incomplete: {len(data)} bytes, at least {kind.size} needed")
    found, version, *rest = kind.unpack_from(data)
    if found != mark:
        raise FormatError("the record does not begin with its magic number")
    if version != VERSION:
        remedy = ": upgrade Millstream" if version > VERSION else ""
        raise FormatError(f"the record has version {version}, but this release reads version {VERSION}{remedy}")
    return tuple(rest)


def _seal(head: bytes, rest: bytes = b"") -> bytes:
    data = bytearray(head + rest)
    _CRC.pack_into(data, _CRC_AT, _checksum(data))
    return bytes(data)


def _check(data: bytes, size: int) -> None:
    if len(data) != size:
        raise FormatError(f"the record has {len(data):,} bytes instead of the {size:,} bytes that it states")
    if _CRC.unpack_from(data, _CRC_AT)[0] != _checksum(data):
        raise FormatError("the CRC32C of the record does not match")


def _checksum(data: bytes | bytearray) -> int:
    view = memoryview(data)
    checksum: int = crc32c(view[_CRC_AT + _CRC.size :], crc32c(view[:_CRC_AT]))
    return checksum
