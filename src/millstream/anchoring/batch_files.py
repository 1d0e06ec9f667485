"""The ``records`` protocol, second half: batches and rejects packed into files, and read back line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from millstream.anchoring.batch_records import BatchHeader, EncodedBatch, decode_header, decode_message, plain_ids
from millstream.anchoring.cut_manifest import MAX_FILE_BYTES
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.decoding import prepared

_REASON = re.compile(r"[a-z_]{1,40}")


class PackedFile(msgspec.Struct, frozen=True):
    """The bytes of a file, and how many entries (batches or rejects) and messages it holds."""

    data: bytes
    entries: int
    messages: int


class BatchFilePart(msgspec.Struct, frozen=True, gc=False):
    """A batch on its way into a file: header line and message lines (with their newlines), and the messages' count."""

    header_line: bytes
    lines: bytes
    messages: int

    @property
    def size(self) -> int:
        """The bytes it takes in a file."""
        return len(self.header_line) + 1 + len(self.lines)


class BatchFileEntry(msgspec.Struct, frozen=True, gc=False):
    """A batch as it lies in a batch file, from byte ``offset`` on for ``size`` bytes.

    ``text`` has its message lines unchanged, ``lines`` the same without newlines.
    """

    header: BatchHeader
    header_line: bytes
    text: bytes
    lines: Sequence[bytes]
    offset: int
    size: int


class RejectLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is in no batch; members stand in the order of their names."""

    reason: str
    rejected: int


_encoder = msgspec.json.Encoder()
_reject_decoder = msgspec.json.Decoder(prepared(RejectLine))


def pack_batches(parts: Iterable[BatchFilePart], limit: int = MAX_FILE_BYTES) -> Iterator[PackedFile]:
    """*parts* in files of at most *limit* bytes, never splitting one. A part is at most *limit* bytes by itself."""
    chunks, size, entries, messages = list[bytes](), 0, 0, 0
    for part in parts:
        if entries and size + part.size > limit:
            yield PackedFile(b"".join(chunks), entries, messages)
            chunks, size, entries, messages = [], 0, 0, 0
        chunks += (part.header_line, b"\n", part.lines)
        size, entries, messages = size + part.size, entries + 1, messages + part.messages
    if entries:
        yield PackedFile(b"".join(chunks), entries, messages)


def check_size(size: int, limit: int) -> None:
    """Raise :class:`BatchFormatError` where a batch of *size* bytes fits in no file of *limit* bytes."""
    if size > limit:
        raise BatchFormatError(
            f"the batch has {size:,} bytes; the limit of a batch file is {limit:,} bytes: raise anchoring.file_bytes "
            "(at most 4,000,000), or set a lower batching.max_bytes for later batches"
        )


def pack_rejects(rejects: Iterable[tuple[int, str]], limit: int = MAX_FILE_BYTES) -> Iterator[PackedFile]:
    """*rejects* (message id, reason), ascending by id, in files of at most *limit* bytes."""
    lines, size = list[bytes](), 0
    for number, reason in rejects:
        line = _encoder.encode(RejectLine(reason, number)) + b"\n"
        if lines and size + len(line) > limit:
            yield PackedFile(b"".join(lines), len(lines), 0)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield PackedFile(b"".join(lines), len(lines), 0)


def split_batches(data: bytes) -> Iterator[BatchFileEntry]:
    """The batches of a batch file; message lines are cut out, not read. Raises :class:`BatchFormatError`."""
    lines, at, offset = _lines(data), 0, 0
    while at < len(lines):
        header = decode_header(lines[at])
        own = lines[at + 1 : at + 1 + header.count]
        if len(own) != header.count:
            name = header.batch[:80]
            raise BatchFormatError(f"batch {name!r} states {header.count:,} messages, but {len(own):,} lines follow")
        size = len(lines[at]) + 1 + sum(map(len, own)) + len(own)
        text = data[offset + len(lines[at]) + 1 : offset + size]
        yield BatchFileEntry(header, lines[at], text, own, offset, size)
        at, offset = at + 1 + header.count, offset + size


def message_ids(batch: BatchFileEntry) -> list[int]:
    """The ids of the messages of *batch*, after a check of every line and of the root over them.

    Raises :class:`BatchFormatError`.
    """
    if merkle_root(list(map(leaf_hash, batch.lines))).hex() != batch.header.root:
        raise BatchFormatError(f"the messages of batch {batch.header.batch[:80]!r} do not match its Merkle root")
    ids = plain_ids(batch.text)
    return [decode_message(line).id for line in batch.lines] if ids is None else ids


def checked_batch(batch: EncodedBatch) -> EncodedBatch:
    """*batch*, after a check that its lines and ids are what its header says. Raises :class:`BatchFormatError`."""
    stored = BatchFileEntry(batch.header, batch.header_line, batch.lines, _lines(batch.lines), 0, len(batch.lines))
    decode_header(stored.header_line)
    if len(stored.lines) != batch.header.count or tuple(message_ids(stored)) != tuple(batch.ids):
        raise BatchFormatError(f"the messages of batch {batch.batch[:80]!r} differ in number or ids from its header")
    return batch


def read_rejects(data: bytes) -> Iterator[RejectLine]:
    """The rejects of a reject file. Raises :class:`BatchFormatError`."""
    for number, line in enumerate(_lines(data), start=1):
        try:
            reject = _reject_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BatchFormatError(f"line {number} is not a rejected message: {error}") from error
        if _encoder.encode(reject) != line:
            raise BatchFormatError(f"line {number}, of rejected message {reject.rejected}, is not canonical JSON")
        if not 0 < reject.rejected <= MAX_SAFE_INTEGER:
            raise BatchFormatError(f"line {number}: the message id {reject.rejected} is outside 1 to 2^53 - 1")
        check_reason(reject.reason)
        yield reject


def check_reason(reason: str) -> str:
    """*reason*, which must be 1 to 40 of a–z and "_". Raises :class:`BatchFormatError`."""
    if not _REASON.fullmatch(reason):
        raise BatchFormatError(f"invalid reject reason {reason[:80]!r}: use 1 to 40 characters of a-z and '_'")
    return reason


def _lines(data: bytes) -> list[bytes]:
    if not data.endswith(b"\n"):
        raise BatchFormatError("the last line does not end with a newline: the file is truncated")
    return data[:-1].split(b"\n")
