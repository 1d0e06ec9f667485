"""How a row of an outbox becomes a message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from millstream.core.decoding import prepared
from millstream.core.message import Message, MessageError, check_source
from millstream.core.plain_reasons import field_reason
from millstream.core.timestamps import to_microseconds
from millstream.log.writing.append_request import MAX_MESSAGE_BYTES

MAX_ROW_BYTES = MAX_MESSAGE_BYTES - 4096  # the rest is for what a message stores beside its fields


class RowError(Exception):
    """The reason why a row is not a message."""


def row_message(purposes: Sequence[str], values: Sequence[Any]) -> Message:
    """The message of a row, whose *values* are for ``body`` and such *purposes*. Raises :class:`RowError`."""
    row = dict(zip(purposes, values, strict=True))
    message = Message(
        body=_bytes(row["body"]),
        key=_text(row.get("key"), "key"),
        source=_text(row.get("source"), "source"),
        event_time=_time(row.get("event_time")),
        headers=_headers(row.get("headers")),
    )
    try:
        check_source(message)
    except MessageError as error:
        raise RowError(str(error)) from error
    size = len(message.body) + len(message.key) + len(message.source)
    check_size(size + sum(len(name) + len(value) + 8 for name, value in message.headers))
    return message


def check_size(size: int) -> None:
    """Refuse a row that is larger than a message of a log can be. Raises :class:`RowError`."""
    if size > MAX_ROW_BYTES:
        raise RowError(
            f"the row has {size:,} bytes, but the limit of a row is {MAX_ROW_BYTES:,} bytes: put the content into a "
            "store (`millstream store put`), and write only the item's id into the row"
        )


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    found = "NULL" if value is None else type(value).__name__
    raise RowError(f"the body is {found}, not bytes or text")


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowError(f"the {what} is not UTF-8") from error
    return "" if value is None else str(value)


def _time(value: Any) -> int | None:
    """Microseconds since the epoch, of a number of them or of a time in ISO 8601 (UTC where it names no zone)."""
    if value is None:
        return None
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        raise RowError(f"the event time {value} does not fit into a signed 64-bit integer")
    try:
        moment = datetime.fromisoformat(_text(value, "event time"))
    except ValueError as error:
        raise RowError(
            f"invalid event time {str(value)[:80]!r}: use microseconds since the epoch, or ISO 8601"
        ) from error
    return to_microseconds(moment)


def _headers(value: Any) -> tuple[tuple[str, bytes], ...]:
    """The headers of a JSON object of texts, or of a JSON array of pairs of texts."""
    if value is None or value in ("", b""):
        return ()
    try:
        found = msgspec.json.decode(value, type=prepared(dict[str, str] | list[tuple[str, str]]))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise RowError(
            "the headers are neither a JSON object of strings nor a JSON array of pairs of strings: "
            f"{field_reason(error, None)}"
        ) from error
    pairs = found.items() if isinstance(found, dict) else found
    return tuple((name, text.encode("utf-8")) for name, text in pairs)
