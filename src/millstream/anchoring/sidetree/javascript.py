"""Values as JavaScript has them: how it writes numbers and text, measures text, and decodes base64.

The reference implementation of Sidetree runs on Node.js, and hashes what that writes (ECMAScript 2024,
``JSON.stringify`` and ``Number::toString``; RFC 8785 takes both over).
"""

from __future__ import annotations

import binascii
import json
import math
import re
from decimal import Decimal
from typing import Any, Final

from millstream.core.canonical import MAX_SAFE_INTEGER

MAX_DELTA_DEPTH: Final = 500
"""How deep lists and objects of a delta may be nested."""

MAX_DEPTH: Final = MAX_DELTA_DEPTH + 10
"""How deep they may be nested in what is written: a request, or a file with deltas, is a little deeper than a delta."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_FROM_URL_ALONE = bytes.maketrans(b"-_+/=", b"+/!!!")  # what is not base64url becomes what is not base64 either
_NOT_BASE64 = bytes(code for code in range(256) if (not chr(code).isalnum() and code not in b"+/-_") or code > 127)
_LAST_INDEX = 2**32 - 2


class TooDeepError(ValueError):
    """The value is nested too deeply."""


def utf16_length(text: str) -> int:
    """The length of *text* in UTF-16 code units, which JavaScript counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def stringify(value: Any, *, canonical: bool = True, depth: int = MAX_DEPTH) -> bytes:
    """The JSON that JavaScript writes for a decoded *value*; with *canonical* its members are sorted (RFC 8785).

    As the ``canonicalize`` package of the reference implementation does it, an object with a member ``toJSON`` is
    written in the order in which it came. Raises :class:`TooDeepError` for a value inside more than *depth* others.
    """
    parts: list[str] = []
    try:
        _write(value, parts, canonical, depth)
    except TooDeepError as error:
        raise TooDeepError(f"a value is nested deeper than the limit of {depth} levels") from error
    return "".join(parts).encode("utf-8")


def is_deeper(value: Any, depth: int) -> bool:
    """Whether the decoded JSON *value* has one inside more than *depth* lists and objects."""
    level = [value]
    for _ in range(depth + 1):
        inner: list[Any] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        level = inner
        if not level:
            return False
    return True


def number_text(number: float) -> str:
    """*number* as JavaScript prints it in JSON: the shortest digits that read back as the same double."""
    if not math.isfinite(number):
        return "null"
    if number == 0:
        return "0"
    parts = Decimal(repr(abs(number))).normalize().as_tuple()
    digits = "".join(map(str, parts.digits))
    return ("-" if number < 0 else "") + _placed(digits, len(digits) + int(parts.exponent))


def double(number: int) -> int | float:
    """*number* as the double that JavaScript reads: the nearest one, where it is beyond the safe integers."""
    if -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
        return number
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def decode_base64url(text: str) -> bytes:
    """The bytes of *text*, base64url without padding. Raises :class:`ValueError` for anything else."""
    data = text.encode("ascii").translate(_FROM_URL_ALONE)
    return binascii.a2b_base64(data + b"=" * (-len(data) % 4), strict_mode=True)


def decode_base64(text: str) -> bytes:
    """The bytes that Node.js decodes *text* to, in either alphabet: it passes over what belongs to neither."""
    try:
        return decode_base64url(text)
    except ValueError:
        pass
    digits = text.partition("=")[0].encode("ascii", "ignore").translate(_FROM_URL, _NOT_BASE64)
    whole = digits[: len(digits) - (len(digits) % 4 == 1)]
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))


def _write(value: Any, parts: list[str], canonical: bool, depth: int) -> None:
    """One frame of the stack for each level: Python's own limit is not met before *depth* is."""
    if depth < 0:
        raise TooDeepError
    if isinstance(value, dict):
        canonical = canonical and value.get("toJSON") is None
        names = sorted(value, key=_utf16) if canonical else _as_inserted(value)
        parts.append("{")
        for place, name in enumerate(names):
            parts.append(f"{',' if place else ''}{_quoted(name)}:")
            _write(value[name], parts, canonical, depth - 1)
        parts.append("}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for place, item in enumerate(value):
            parts.append("," if place else "")
            _write(item, parts, canonical, depth - 1)
        parts.append("]")
    else:
        parts.append(_scalar(value))


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        value = double(value)
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"JSON has no type for {type(value).__name__}")


def _as_inserted(value: dict[str, Any]) -> list[str]:
    """The names of *value* in JavaScript's order: array indices first, and by size."""
    indices = [name for name in value if _INDEX.fullmatch(name) and int(name) <= _LAST_INDEX]
    return [*sorted(indices, key=int), *(name for name in value if name not in set(indices))]


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if text.isascii() else _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _placed(digits: str, point: int) -> str:
    """*digits* with the decimal point after the first *point* of them (ECMAScript 2024, 6.1.6.1.20)."""
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"
