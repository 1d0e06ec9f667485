"""The ``records`` protocol, first half: an event batch as lines under a Merkle root (docs/formats/records.md).

:func:`encode_batch` is pure: the same batch gives the same bytes in this process and in a Spark executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.decoding import prepared
from millstream.core.message import Message, MessageError, decode_line, encode_line

if TYPE_CHECKING:
    from millstream.batching import EventBatch

PROTOCOL = "records/1"
"""The protocol name in manifests of this version."""


Kind = Literal["batch", "side", "amendment"]
"""What a batch is made of (``millstream.batching.event``)."""

_PLAIN: Kind = "batch"


class BatchHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, gc=False):
    """The first line of a batch. ``root`` is the Merkle root (hex) over its ``count`` message lines.

    ``start``, ``end`` and ``closed_at`` are event times and the deciding time in the log's unit (microseconds);
    ``closed_at`` is None where the batch was flushed; ``kind`` is left out of the line where it is ``batch``. Members
    stand in the order of their names, so what msgspec writes is canonical.
    """

    batch: str
    closed_at: int | None
    count: int
    cut: str
    end: int
    kind: Kind = _PLAIN
    root: str
    source: str
    start: int

    def __post_init__(self) -> None:
        if self.kind == _PLAIN:  # msgspec leaves out what *is* the default, not what equals it
            msgspec.structs.force_setattr(self, "kind", _PLAIN)


class EncodedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch ready to be anchored: its header, its message lines (each ends with a newline) and its message ids."""

    header: BatchHeader
    lines: bytes
    ids: tuple[int, ...]

    @property
    def batch(self) -> str:
        """The batch id."""
        return self.header.batch

    @property
    def root(self) -> str:
        """The Merkle root (hex) over the message lines."""
        return self.header.root

    @property
    def header_line(self) -> bytes:
        """The bytes of the header in the batch file, without the newline."""
        return encode_header(self.header)


_Number = Annotated[int, msgspec.Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]


class _PlainLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The line of a message whose body is text and that has no headers, as nearly all are."""

    body: str
    event_time: _Number
    id: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAFE_INTEGER)]
    key: str
    received_at: _Number
    source: str


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(prepared(BatchHeader))
_plain_decoder = msgspec.json.Decoder(prepared(_PlainLine))


def encode_batch(batch: EventBatch, messages: Sequence[Message]) -> EncodedBatch:
    """The lines and the Merkle root of *batch*, whose *messages* may come in any order.

    Raises :class:`BatchFormatError` where the messages are not exactly those that the batch lists, or where a number
    is beyond what JSON keeps exact (2^53 − 1).
    """
    ordered = _in_batch_order(batch, messages)
    lines = list(map(encode_line, ordered))
    header = BatchHeader(
        batch=batch.batch,
        closed_at=batch.closed_at,
        count=len(lines),
        cut=str(batch.cut),
        end=batch.end,
        kind=batch.kind,
        root=merkle_root(list(map(leaf_hash, lines))).hex(),
        source=batch.source,
        start=batch.start,
    )
    _check_numbers(header)
    return EncodedBatch(header, b"\n".join(lines) + b"\n", tuple(batch.events))


def encode_header(header: BatchHeader) -> bytes:
    """The canonical line of *header*, without a newline."""
    return _encoder.encode(header)


def decode_header(line: bytes) -> BatchHeader:
    """The header of one canonical line (no newline). Raises :class:`BatchFormatError`."""
    try:
        header = _header_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatchFormatError(f"invalid header of a batch: {error}") from error
    if encode_header(header) != line:
        raise BatchFormatError(f"the header of batch {header.batch[:80]!r} is not canonical JSON")
    _check_numbers(header)
    return header


def decode_message(line: bytes) -> Message:
    """The message of one canonical line (no newline). Raises :class:`BatchFormatError`."""
    try:
        message = decode_line(line)
    except MessageError as error:
        raise BatchFormatError(str(error)) from error
    if encode_line(message) != line:
        raise BatchFormatError(f"the line of message {message.id} is not canonical JSON")
    _check_message(message)
    return message


def plain_ids(lines: bytes) -> list[int] | None:
    """The message ids of canonical *lines*, each with its newline, by all rules of :func:`decode_message`.

    None where a line is not that of a plain message, or is wrong: only line by line can it be said. It is a fifth of
    the work, since no line is handled in Python.
    """
    try:
        found = _plain_decoder.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return [line.id for line in found] if _encoder.encode_lines(found) == lines else None


def _check_numbers(header: BatchHeader) -> None:
    """Raise :class:`BatchFormatError` where *header* counts no message or has a number that JSON cannot keep."""
    if header.count < 1:
        raise BatchFormatError(
            f"batch {header.batch[:80]!r} states {header.count} messages, but a batch must have at least one"
        )
    for number in (header.closed_at or 0, header.count, header.end, header.start):
        if not -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
            raise BatchFormatError(
                f"the header of batch {header.batch[:80]!r} contains {number}, which is outside -(2^53 - 1) to 2^53 - 1"
            )


def _in_batch_order(batch: EventBatch, messages: Sequence[Message]) -> Sequence[Message]:
    for message in messages:
        _check_message(message)
    if tuple([message.id for message in messages]) == tuple(batch.events):
        return messages
    by_id = {message.id: message for message in messages}
    if len(by_id) != len(messages) or len(messages) != len(batch.events) or by_id.keys() != set(batch.events):
        raise BatchFormatError(
            f"the given messages ({len(messages):,}) are not the {len(batch.events):,} messages that batch "
            f"{batch.batch!r} lists"
        )
    return [by_id[number] for number in batch.events]


def _check_message(message: Message) -> None:
    event_time, received_at = message.event_time, message.received_at
    if event_time is None or received_at is None:
        raise BatchFormatError(
            f"message {message.id} has no event time or no receive time: pass messages as they were read from the log"
        )
    if not (
        0 < message.id <= MAX_SAFE_INTEGER
        and -MAX_SAFE_INTEGER <= event_time <= MAX_SAFE_INTEGER
        and -MAX_SAFE_INTEGER <= received_at <= MAX_SAFE_INTEGER
    ):
        raise BatchFormatError(
            f"message {message.id} has an id outside 1 to 2^53 - 1, or a time outside -(2^53 - 1) to 2^53 - 1"
        )
