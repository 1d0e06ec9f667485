"""Canonical JSON (RFC 8785, JCS): one byte string for one value, so that it can be hashed and compared.

``msgspec`` writes strings exactly as JCS asks for and is far faster than the reference library, but differs on
floats, on integers beyond 2^53 and on the order of keys outside ASCII. Values with any of those are encoded by the
slower library.
"""

from __future__ import annotations

from typing import Any

import msgspec
import rfc8785

from millstream.core.errors import InputError

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8785 §3.2.2.3 refuses anything larger)."""

MAX_DEPTH = 200
"""How deep lists and objects may be nested; nothing that people write comes near."""

_sorted = msgspec.json.Encoder(order="sorted")
_SHAPE = bytes.maketrans(b"0123456789-[:,", b"00000000000:::")


class CanonicalError(InputError):
    """The text is not canonical JSON (RFC 8785)."""


def canonical_json(value: Any) -> bytes:
    """The RFC 8785 encoding of *value* (dicts, lists, tuples, str, int, float, bool, None).

    Raises :class:`CanonicalError` for values that JSON cannot carry exactly.
    """
    try:
        return _sorted.encode(value) if _is_plain(value) else rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, TypeError, ValueError, RecursionError) as error:
        raise CanonicalError(f"the value cannot be written as canonical JSON: {error}") from error


def plain_json(value: Any) -> bytes | None:
    """The canonical JSON of a decoded *value* without numbers and text beyond ASCII, however deep; None for all others.

    What might be a number or a key beyond ASCII counts as one of the others.
    """
    try:
        data = _sorted.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    shape = data.translate(_SHAPE)
    numbers = b":0" in shape or shape.startswith(b"0")
    return None if numbers or not data.isascii() else data


def parse_canonical(data: bytes) -> Any:
    """The value of *data*, which must be canonical to the last byte. Raises :class:`CanonicalError` otherwise."""
    try:
        value = msgspec.json.decode(data)
        value = value if _is_plain(value) else _with_doubles(value)
        canonical = canonical_json(value)
    except OverflowError as error:  # of an integer that is larger than any double
        raise CanonicalError(f"the JSON has a number that no double can hold: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CanonicalError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise CanonicalError(f"the JSON is nested deeper than the limit of {MAX_DEPTH} levels") from error
    if canonical != data:
        raise CanonicalError("the JSON is not in canonical form (RFC 8785)")
    return value


def _is_plain(value: Any) -> bool:
    """Whether msgspec gives the same bytes. Level by level: this is most of what hashing a small value costs.

    Raises :class:`CanonicalError` for what is nested more than :data:`MAX_DEPTH` deep.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not all(type(key) is str and key.isascii() for key in item):
                    return False
                inner.extend(item.values())
            elif kind is list or kind is tuple:
                inner.extend(item)
            elif kind is int:
                if not -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER:
                    return False
            elif kind is not str and kind is not bool and item is not None:
                return False
        if not inner:
            return True
        level = inner
    raise CanonicalError(f"a value is nested deeper than the limit of {MAX_DEPTH} levels")


def _with_doubles(value: Any) -> Any:
    """*value* with integers beyond the safe range as the doubles that they stand for (RFC 8785 §3.2.2.3)."""
    if type(value) is int and abs(value) > MAX_SAFE_INTEGER:
        return float(value)
    if isinstance(value, dict):
        return {key: _with_doubles(item) for key, item in value.items()}
    return [_with_doubles(item) for item in value] if isinstance(value, list) else value
