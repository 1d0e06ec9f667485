"""The object of a commit: a head with an index of its blocks, and the blocks (docs/formats/object-log.md)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

from millstream.core.decoding import prepared
from millstream.log.backend import Commit
from millstream.log.backends.objects.names import LogNames
from millstream.log.block_header import EncodedBlock
from millstream.log.errors import DamagedLogError

MAGIC = b"MSCO"
VERSION = 1
PREFIX = struct.Struct("<4sHHI32s")
"""Magic, version, zero, bytes of the head, SHA-256 of the head."""

MAX_HEAD_BYTES = 64 << 20


class BlockEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of a commit. ``offset`` is in bytes after the head; times are microseconds."""

    first_id: int
    last_id: int
    offset: int
    size: int
    min_event_time: int
    max_event_time: int
    min_received_at: int
    max_received_at: int
    sha256: bytes


class CommitHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a commit; a fence is a commit without blocks, by which a writer takes over.

    ``previous`` is the SHA-256 of the head of the commit before it, ``nonce`` a random number of the writer.
    """

    log: str
    number: int
    epoch: int
    nonce: str
    previous: bytes
    previous_id: int
    last_id: int
    received_at: int
    is_fence: bool = False
    producer: str = ""
    sequence: int | None = None
    blocks: tuple[BlockEntry, ...] = ()


class CommitObject(msgspec.Struct, frozen=True):
    """A head, its SHA-256 (``digest``), and at which byte of the object the blocks begin."""

    head: CommitHeader
    digest: bytes
    data_start: int


class HeadTooLongError(Exception):
    """The bytes end before the head does: ``needed`` are needed."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def encode_commit(head: CommitHeader, commit: Commit) -> tuple[CommitObject, bytes]:
    """The object with the *head*, which gets its index here, and the blocks of *commit*; and all its bytes."""
    head = msgspec.structs.replace(
        head,
        previous_id=commit.previous_id,
        last_id=commit.last_id,
        received_at=commit.received_at,
        producer=commit.producer,
        sequence=commit.sequence,
        blocks=tuple(_entries(commit.blocks)),
    )
    return encode_head(head, [block.data for block in commit.blocks])


def encode_head(head: CommitHeader, blocks: Sequence[bytes] = ()) -> tuple[CommitObject, bytes]:
    """The object with the *head* and the bytes of its *blocks*; and all its bytes."""
    encoded = msgspec.json.encode(head)
    digest = hashlib.sha256(encoded).digest()
    prefix = PREFIX.pack(MAGIC, VERSION, 0, len(encoded), digest)
    return CommitObject(head, digest, PREFIX.size + len(encoded)), b"".join([prefix, encoded, *blocks])


def decode_commit(log: str, number: int, data: bytes) -> CommitObject:
    """The object that begins with *data*. Raises :class:`HeadTooLongError`, :class:`DamagedLogError`."""
    where = commit_text(log, number)
    if len(data) < PREFIX.size:
        raise DamagedLogError(
            f"{where} is damaged: it has {len(data)} bytes, but its head has at least {PREFIX.size} bytes. {ADVICE}"
        )
    magic, version, _, length, digest = PREFIX.unpack_from(data)
    if magic != MAGIC or length > MAX_HEAD_BYTES:
        raise DamagedLogError(f"{where} is damaged: it does not begin with the head of a commit. {ADVICE}")
    if version != VERSION:
        remedy = ": upgrade Millstream" if version > VERSION else f". {ADVICE}"
        raise DamagedLogError(f"{where} has format {version}, but this release reads format {VERSION}{remedy}")
    start = PREFIX.size + length
    if len(data) < start:
        raise HeadTooLongError(start)
    encoded = data[PREFIX.size : start]
    if hashlib.sha256(encoded).digest() != digest:
        raise DamagedLogError(f"{where} is damaged: its head does not match its SHA-256. {ADVICE}")
    try:
        head = msgspec.json.decode(encoded, type=prepared(CommitHeader))
    except msgspec.DecodeError as error:
        raise DamagedLogError(f"{where} is damaged: {error}. {ADVICE}") from error
    if (head.log, head.number) != (log, number):
        raise DamagedLogError(f"{where} is damaged: it contains commit {head.number} of log {head.log!r}. {ADVICE}")
    return CommitObject(head, digest, start)


ADVICE = "Restore the object from a copy of the bucket"


def commit_text(log: str, number: int) -> str:
    """The object of a commit and the commit, for error texts."""
    return f"object {LogNames(log).commit(number)!r} (commit {number} of log {log!r})"


def _entries(blocks: Sequence[EncodedBlock]) -> list[BlockEntry]:
    entries, offset = [], 0
    for block in blocks:
        head = block.header
        entries.append(
            BlockEntry(
                head.first_id,
                head.last_id,
                offset,
                len(block.data),
                head.min_event_time,
                head.max_event_time,
                head.min_received_at,
                head.max_received_at,
                hashlib.sha256(block.data).digest(),
            )
        )
        offset += len(block.data)
    return entries
