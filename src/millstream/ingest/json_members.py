"""The members of JSON objects as they were written: numbers are not parsed, so they keep all digits."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.decoding import prepared
from millstream.ingest.errors import MalformedError

_members = msgspec.json.Decoder(prepared(dict[str, msgspec.Raw]))


def members_of(raw: bytes | msgspec.Raw, what: str = "the payload") -> dict[str, msgspec.Raw]:
    """The members of the JSON object *raw*, each as its own text. Raises :class:`MalformedError`."""
    members: dict[str, msgspec.Raw] = _decoded(_members, raw, f"{what} is not a JSON object")
    return members


def text_of(raw: bytes | msgspec.Raw, what: str) -> str:
    """The JSON text or whole number *raw* as text. Raises :class:`MalformedError`."""
    value: str | int = _decoded(_text, raw, f"{what} is neither text nor a whole number")
    return value if isinstance(value, str) else str(value)


def check_json(raw: bytes) -> None:
    """Raise :class:`MalformedError` where *raw* is not a JSON value."""
    _decoded(_anything, raw, "the payload is not JSON")


def is_number(raw: msgspec.Raw) -> bool:
    """Whether the JSON value *raw* is a number."""
    return bytes(raw)[:1] in b"-0123456789"


def is_null(raw: bytes | msgspec.Raw) -> bool:
    """Whether the JSON value *raw* is null."""
    return bytes(raw).strip() == b"null"


_text = msgspec.json.Decoder(prepared(str | int))
_anything = msgspec.json.Decoder(prepared(msgspec.Raw))


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes | msgspec.Raw, complaint: str) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError("json", f"{complaint}: {error}") from error
