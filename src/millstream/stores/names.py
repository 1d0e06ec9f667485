"""The rules for names of spaces and ids of content items, the same at every provider."""

from __future__ import annotations

import re

from millstream.stores.protocol import ContentIdTooLongError, StoreInputError

MAX_SPACE_BYTES = 80
MAX_CONTENT_ID_BYTES = 1024
_FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f]")


def check_space(space: str) -> str:
    """*space* itself, where it is a name for a space: 1 to 80 bytes of UTF-8 without "/" and control characters.

    Raises :class:`StoreInputError`.
    """
    if _FORBIDDEN.search(space):
        raise StoreInputError(f"invalid space name {space[:100]!r}: it must not contain '/' or control characters")
    _check_length("space name", space, MAX_SPACE_BYTES)
    return space


def check_content_id(content_id: str) -> str:
    """*content_id* itself, where it is one: 1 to 1,024 bytes of UTF-8 without NUL. Raises :class:`StoreInputError`."""
    if "\0" in content_id:
        raise StoreInputError(f"invalid content id {content_id[:100]!r}: it must not contain a NUL character")
    if len(order_key(content_id)) > MAX_CONTENT_ID_BYTES:
        raise ContentIdTooLongError(_length_text("content id", content_id, MAX_CONTENT_ID_BYTES))
    _check_length("content id", content_id, MAX_CONTENT_ID_BYTES)
    return content_id


def order_key(text: str, what: str = "content id") -> bytes:
    """The sort key of listings: the UTF-8 bytes of a content id, or of a part of one. Raises :class:`StoreInputError`,
    which calls it *what*, if *text* is not valid UTF-8.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StoreInputError(f"invalid {what} {text[:100]!r}: it must be valid UTF-8") from error


def _check_length(what: str, text: str, limit: int) -> None:
    if not 1 <= len(order_key(text, what)) <= limit:
        raise StoreInputError(_length_text(what, text, limit))


def _length_text(what: str, text: str, limit: int) -> str:
    return f"the {what} {text[:100]!r} has {len(order_key(text))} bytes of UTF-8; it needs 1 to {limit}"
