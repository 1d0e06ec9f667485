"""The message: the one type of record, from the log to the batch.

It has three equal forms: :class:`Message` in Python, :data:`MESSAGE_SCHEMA` in Arrow and Spark, and a JSON line
(canonical, so that the line's hash is the message's hash).
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa

from millstream.core.decoding import prepared
from millstream.core.errors import InputError
from millstream.core.plain_reasons import field_reason
from millstream.core.timestamps import parse_timestamp

HEADER_TYPE = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("received_at", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("headers", pa.list_(pa.field("element", HEADER_TYPE, nullable=False)), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""One row a message. Times are microseconds since the epoch, UTC."""


class MessageError(InputError):
    """The message cannot be used as it is."""


TICK_SOURCE: Final = "millstream.tick"
"""The source of ticks: messages that say nothing but that the log's clock has come to their ``received_at``."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One record of a log.

    ``body`` is any bytes; ``key`` and ``source`` are UTF-8 text (empty where there is none); ``event_time`` is when it
    happened and ``received_at`` when the log took it, both in microseconds since the epoch, UTC. The log sets
    ``id`` (1, 2, 3 …), ``received_at`` where it is None, and takes ``received_at`` for an absent ``event_time``.
    """

    body: bytes
    key: str = ""
    source: str = ""
    event_time: int | None = None
    received_at: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    id: int = 0


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET


Time = TypeVar("Time")


class _Line(msgspec.Struct, Generic[Time], frozen=True, forbid_unknown_fields=True):
    """The JSON form. Fields stand in the order of their names, so what msgspec writes is canonical (RFC 8785)."""

    body: str | msgspec.UnsetType | None = msgspec.UNSET
    body_base64: str | msgspec.UnsetType | None = msgspec.UNSET
    event_time: Time | msgspec.UnsetType | None = msgspec.UNSET
    headers: list[_Header] | msgspec.UnsetType | None = msgspec.UNSET
    id: int | msgspec.UnsetType | None = msgspec.UNSET
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    received_at: Time | msgspec.UnsetType | None = msgspec.UNSET
    source: str | msgspec.UnsetType | None = msgspec.UNSET


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(prepared(_Line[int]))
_written_decoder = msgspec.json.Decoder(prepared(_Line[int | str]))
"""What people and other programs write: times may be texts."""


def encode_line(message: Message) -> bytes:
    """*message* as one canonical JSON object, without a newline.

    ``body`` is text where it is UTF-8, else ``body_base64``; headers are objects of ``name`` and ``value`` or
    ``value_base64`` by the same rule; empty headers are left out.
    """
    try:
        body: str | msgspec.UnsetType = str(message.body, "utf-8")
        body_base64: str | msgspec.UnsetType = msgspec.UNSET
    except UnicodeDecodeError:
        body, body_base64 = msgspec.UNSET, base64.b64encode(message.body).decode("ascii")
    return _encoder.encode(
        _Line(
            body=body,
            body_base64=body_base64,
            event_time=message.event_time,
            headers=[_encode_header(name, value) for name, value in message.headers] or msgspec.UNSET,
            id=message.id,
            key=message.key,
            received_at=message.received_at,
            source=message.source,
        )
    )


def decode_line(line: bytes, *, written: bool = False) -> Message:
    """The message of one JSON line, as :func:`encode_line` writes it; absent and null members take their defaults.

    With *written* times may also be in ISO 8601 with a zone. Raises :class:`MessageError` that says which member is
    wrong.
    """
    try:
        fields: _Line[Any] = _written_decoder.decode(line) if written else _decoder.decode(line)
        body = _decode_value(fields.body, fields.body_base64, "body", "body")
        headers = tuple(map(_decode_header, fields.headers or ()))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"invalid message: {field_reason(error, _Line)}") from error
    event_time, received_at = _time("event_time", fields.event_time), _time("received_at", fields.received_at)
    _check_number("id", fields.id)
    return Message(
        body=body,
        key=fields.key or "",
        source=fields.source or "",
        event_time=event_time,
        received_at=received_at,
        headers=headers,
        id=fields.id or 0,
    )


def check_source(message: Message, *, ticks: bool = False) -> None:
    """Refuse *message* if it has the source of ticks, because no consumer and no batch gets it.

    With *ticks* a tick itself, which has no key, body and headers, is accepted. Raises :class:`MessageError`.
    """
    if message.source == TICK_SOURCE and (not ticks or message.body or message.key or message.headers):
        raise MessageError(
            f"the source {TICK_SOURCE!r} is reserved for ticks, which are neither delivered nor batched: use another "
            "source"
        )


def to_arrow(messages: Sequence[Message]) -> pa.RecordBatch:
    """*messages* as one record batch of :data:`MESSAGE_SCHEMA`. Every time must be set."""
    columns = [
        pa.array([m.id for m in messages], pa.int64()),
        pa.array([m.event_time for m in messages], pa.int64()),
        pa.array([m.received_at for m in messages], pa.int64()),
        pa.array([m.source for m in messages], pa.string()),
        pa.array([m.key for m in messages], pa.string()),
        pa.array([m.headers for m in messages], MESSAGE_SCHEMA.field("headers").type),
        pa.array([m.body for m in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def from_arrow(batch: pa.RecordBatch) -> Iterable[Message]:
    """The messages of a record batch of :data:`MESSAGE_SCHEMA`, in order."""
    names = ("body", "key", "source", "event_time", "received_at", "id")
    columns = (batch.column(name).to_pylist() for name in names)
    for body, key, source, event_time, received_at, number, pairs in zip(
        *columns, _header_pairs(batch.column("headers")), strict=True
    ):
        yield Message(body, key, source, event_time, received_at, pairs, number)


def _header_pairs(headers: Any) -> Iterable[tuple[tuple[str, bytes], ...]]:
    """The headers of each message of a column, without a dictionary for each of them."""
    flat = headers.flatten()
    if not len(flat):
        return itertools.repeat((), len(headers))
    pairs = list(zip(flat.field("name").to_pylist(), flat.field("value").to_pylist(), strict=True))
    import pyarrow.compute as pc  # 50 ms, of which commands that print no headers have no need

    ends = [0, *pc.cumulative_sum(pc.list_value_length(headers)).to_pylist()]
    return [tuple(pairs[begin:end]) for begin, end in itertools.pairwise(ends)]


def _check_number(name: str, value: int | msgspec.UnsetType | None) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise MessageError(f"invalid message: {name} {value} does not fit into a signed 64-bit integer")


def _time(name: str, value: int | str | msgspec.UnsetType | None) -> int | None:
    """The time in the member *name*; None where there is none."""
    if isinstance(value, str):
        if value.removeprefix("-").isdecimal():
            raise MessageError(f"invalid message: {name} {value[:40]!r} is a number in quotes: remove the quotes")
        try:
            return parse_timestamp(value)
        except ValueError as error:
            raise MessageError(f"invalid message: {name}: {error}") from error
    _check_number(name, value)
    return None if value is msgspec.UNSET else value


def _encode_header(name: str, value: bytes) -> _Header:
    try:
        return _Header(name, value=str(value, "utf-8"))
    except UnicodeDecodeError:
        return _Header(name, value_base64=base64.b64encode(value).decode("ascii"))


def _decode_header(header: _Header) -> tuple[str, bytes]:
    return header.name, _decode_value(header.value, header.value_base64, f"header {header.name!r}", "value")


def _decode_value(
    text: str | msgspec.UnsetType | None, encoded: str | msgspec.UnsetType | None, what: str, members: str
) -> bytes:
    if isinstance(text, str) and not isinstance(encoded, str):
        return text.encode("utf-8")
    if isinstance(encoded, str) and not isinstance(text, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise MessageError(f"invalid message: {members}_base64 of {what} is not base64: {error}") from error
    raise MessageError(
        f"invalid message: {what} needs exactly one of the members {members} (text) and {members}_base64 (base64)"
    )
