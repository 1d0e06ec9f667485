"""Events in and batches out as JSON lines, the form in which ``millstream batch`` speaks.

A line may also be a whole message, as ``millstream log read --jsonl`` prints it: the event is the batcher's view of it.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Annotated, Protocol

import msgspec

from millstream.batching.errors import EventLineError
from millstream.batching.event import Event, EventBatch, Reject
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.core.decoding import prepared
from millstream.core.message import Message, MessageError, decode_line
from millstream.core.plain_reasons import field_reason

LONGEST_LINE = 1 << 20
"""Bytes of one line at most, so that input without line ends cannot fill the memory."""

_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _MessageLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _Integer
    key: str
    event_time: _Integer
    received_at: _Integer
    source: str = ""
    digest: str = ""
    size: _Size | None = None


class _Members(msgspec.Struct, frozen=True):
    """The members that a message has and an event has not."""

    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(prepared(_MessageLine))
_members = msgspec.json.Decoder(prepared(_Members))
_encoder = msgspec.json.Encoder()


class LineReader(Protocol):
    """A file of lines."""

    def readline(self, size: int = -1, /) -> bytes:
        """The next line, or *size* bytes of it; nothing at the end."""


def read_events(file: LineReader, *, sized: bool = False) -> Iterator[tuple[int, Event]]:
    """The events of *file* with their line numbers, one line in memory at a time; empty lines are passed over.

    A member that no event has is refused: it may be a misspelled one. So is an id that has been there, for then no
    output could tell the two apart; with *sized* the size must be given. Raises :class:`EventLineError` that names the
    line. Ticks among messages are passed over: they say something of the log's clock, and nothing of a record.
    """
    number, seen = 0, _Ids()
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise EventLineError(
                f"line {number} has more than {LONGEST_LINE:,} bytes, the limit: write one JSON object per line"
            )
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if not line.strip():
            continue
        event = _decode(line, number, sized=sized)
        if event.source == TICK_SOURCE:
            continue
        if not seen.add(event.id):
            raise EventLineError(
                f"line {number}: id {event.id} is used by an earlier event: give each event its own id"
            )
        yield number, event


class _Ids:
    """The ids that have been there, 64 of a row in one entry: a few bytes each where they are numbered through."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def add(self, number: int) -> bool:
        """Take *number*; False where it was there already."""
        row, bit = number >> 6, 1 << (number & 63)
        known = self._rows.get(row, 0)
        self._rows[row] = known | bit
        return not known & bit


def write_line(item: EventBatch | Reject) -> bytes:
    """*item* as one JSON object with a line end."""
    return _encoder.encode(item) + b"\n"


def _decode(line: bytes, number: int, *, sized: bool) -> Event:
    try:
        if b'"body' in line and (message := _message(line)) is not None:
            return event_from_message(message)
        fields = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, MessageError) as error:
        is_message = isinstance(error, MessageError)
        why = str(error).removeprefix("invalid message: ") if is_message else field_reason(error, _MessageLine)
        raise EventLineError(f"line {number}: invalid event: {why}") from error
    if sized and fields.size is None:
        raise EventLineError(f"line {number}: size is missing: add the size of the record in bytes, or omit max_bytes")
    return Event(
        fields.id, fields.source, fields.key, fields.event_time, fields.received_at, fields.digest, fields.size or 0
    )


def _message(line: bytes) -> Message | None:
    """The message that *line* is; None where it has no body. Raises :class:`MessageError`, and what msgspec raises."""
    members = _members.decode(line)
    if members.body is msgspec.UNSET and members.body_base64 is msgspec.UNSET:
        return None
    message = decode_line(line, written=True)
    if message.id < 1 or message.event_time is None or message.received_at is None:
        raise MessageError(
            "a message must have an id of at least 1, an event_time and a received_at, as `millstream log read` "
            "prints them"
        )
    return message
