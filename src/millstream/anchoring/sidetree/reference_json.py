"""JSON as Sidetree's reference implementation reads it: with the parser ``yieldable-json`` 1.1, not with JSON.parse.

That parser takes much that is not JSON and reads some JSON otherwise than it is meant: a number with a signed exponent
ends it, ``\\u005c`` begins another escape, and what is wrong inside an object may become its value. Two nodes agree on
a file of others only if both read it alike, so this module follows it to the letter, without its memory and speed.
"""

from __future__ import annotations

import json
import math
import re
import sys
from array import array
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import msgspec

from millstream.anchoring.sidetree.javascript import double, number_text

MAX_DEPTH: Final = 3_600
"""How deep values may be nested: the reference has room for 3,640 levels and more, on Node.js 20. No valid file comes
near this depth, but members that no rule uses may have it."""

MAX_BLANKS: Final = 10_000
"""How many blanks may follow each other: the reference uses a frame of its stack for each, and has room for 10,270."""

# What the two kinds of parsers may read otherwise: signed exponents, numbers beyond the safe integers, escapes, and
# the name that sets the prototype of an object.
_NUMBER = re.compile(rb"(?:\A|[:\[,])[ \t\r\n]*-?[0-9](?:[0-9.]*[eE][+-]|[0-9]{15})")
_SHAPE: Final = bytes.maketrans(b"0123456789-[:, \t\r\n", b"00000000000:::::::")
_MANY_BLANKS: Final = b":" * (MAX_BLANKS + 1)  # in such a shape
_ESCAPES: Final = {
    '"': '"', "'": "'", "/": "/", "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_HEX = re.compile(r"[0-9A-Fa-f]{0,4}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LETTER = re.compile(r"[A-Za-z]")
_WORDS: Final = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_SPACE: Final = "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # fmt: skip  # noqa: E501
_DECIMAL = re.compile(r"([+-]?)(?:([0-9]++)\.?([0-9]*+)|\.([0-9]++))(?:[eE]([+-]?[0-9]++))?")
_MOST_DIGITS: Final = 800
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_RADIX: Final = {"0x": 16, "0o": 8, "0b": 2}


class ReferenceJsonError(ValueError):
    """The reference implementation cannot read the text."""


_ABSENT: Final = object()
_PROTOTYPE: Final = "__proto__"


class InheritingObject(dict[str, Any]):
    """An object whose text sets its *prototype* by a member ``__proto__``: to a dict or list, or to None (none at all).

    As in JavaScript, look-ups see inherited members too; length, iteration and what is written as JSON do not.
    """

    def __init__(self, members: Mapping[str, Any], prototype: Any) -> None:
        super().__init__(members)
        self.inherit_from(prototype)

    def inherit_from(self, prototype: Any) -> None:
        """Set the prototype. ``is_bare`` says whether the chain of prototypes ends with None."""
        self.prototype = prototype
        self.is_bare = prototype is None or _is_bare(prototype)

    def get(self, name: str, default: Any = None) -> Any:
        """The member *name*, its own or an inherited one; *default* if there is none."""
        for level in _prototype_chain(self):
            value = _own_member(level, name)
            if value is not _ABSENT:
                return value
        return default

    def __contains__(self, name: object) -> bool:
        return self.get(str(name), _ABSENT) is not _ABSENT

    def __missing__(self, name: str) -> Any:
        value = self.get(name, _ABSENT)
        if value is _ABSENT:
            raise KeyError(name)
        return value

    def enumerable(self) -> set[str]:
        """The names that ``for … in`` gives: of its own and of inherited members."""
        names = set[str]()
        for level in _prototype_chain(self):
            names |= dict.keys(level) if isinstance(level, dict) else {str(place) for place in range(len(level))}
        return names

    def as_array(self) -> list[Any] | None:
        """The items, if JavaScript's ``instanceof Array`` holds and the length is a whole number; else None.

        Items that are missing are None, and only the first of them counts.
        """
        levels = list(_prototype_chain(self))
        length = self.get("length")
        if not any(isinstance(level, list) for level in levels) or not _is_whole(length):
            return None
        members = dict[str, Any]()
        for level in reversed(levels):
            members |= level if isinstance(level, dict) else {str(place): item for place, item in enumerate(level)}
        return [members.get(str(place)) for place in range(min(int(length), len(members) + 1))]


def _is_whole(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0 and float(value).is_integer()


def inherits(value: Any) -> bool:
    """Whether *value*, or a value inside, is an object with a prototype of its own."""
    values = [value]
    for item in values:
        kind = type(item)
        if kind is dict:
            values += item.values()
        elif kind is list:
            values += item
        elif kind is InheritingObject:
            return True
    return False


def _prototype_chain(value: Any) -> Iterator[Any]:
    """*value*, its prototype, the prototype of that, and so on, as far as they come from the text."""
    while value is not None:
        yield value
        value = value.prototype if isinstance(value, InheritingObject) else None


def _own_member(level: Any, name: str) -> Any:
    if isinstance(level, dict):
        return dict.get(level, name, _ABSENT)
    if name == "length":
        return len(level)
    return level[int(name)] if _INDEX.fullmatch(name) and int(name) < len(level) else _ABSENT


def _is_bare(value: Any) -> bool:
    return isinstance(value, InheritingObject) and value.is_bare


def parses_alike(data: bytes) -> bool:
    """Whether the JSON *data* is read as any other parser reads it, as far as a quick look can tell."""
    if b"\\u" in data or b"__proto__" in data:
        return False
    shape = data.translate(_SHAPE)
    if _MANY_BLANKS in shape:
        return False
    no_numbers = b":0" not in shape and not shape.startswith(b"0")
    return no_numbers or _NUMBER.search(data) is None


def is_portable(data: bytes) -> bool:
    """Whether the canonical JSON *data* stands for the value that it was made of; what is not a double becomes null."""
    return parses_alike(data) and b"null" not in data


def is_plain_portable(data: bytes) -> bool:
    """As :func:`is_portable`, for canonical JSON *data* without numbers."""
    return b"\\u" not in data and b"null" not in data and b"__proto__" not in data


def decode_json(data: bytes) -> Any:
    """The value that the reference implementation reads in *data*.

    Numbers are ints or floats; text may hold lone surrogates. Raises :class:`ReferenceJsonError`.
    """
    return decode_noting_prototypes(data)[0]


def decode_noting_prototypes(data: bytes) -> tuple[Any, bool]:
    """As :func:`decode_json`, and whether a value inside may be an :class:`InheritingObject`."""
    if parses_alike(data):
        try:
            return msgspec.json.decode(data), False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return _ReferenceParser(data.decode("utf-8", "replace")).whole(), True


_Steps = Generator["_Steps", Any, Any]
"""A parser of one value: it yields the parsers of the values inside, is sent what they return, and returns its own."""


def decode_native(data: bytes) -> Any:
    """The value that ``JSON.parse`` reads in *data*. Raises :class:`ReferenceJsonError`."""
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse, parse_int=_to_number)
    except (ValueError, RecursionError) as error:
        raise ReferenceJsonError(f"not JSON: {error}") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class _Fault:
    """What the parser returns where it cannot continue, and may store as a *value*."""

    def __init__(self, message: str, rest: str) -> None:
        self.message = message
        self.value = _FaultObject({"name": "ParseError", "message": message, "text": rest})


class _FaultObject(dict[str, str]):
    """A fault that became a value. What inherits from one is taken for a fault, too."""


_LONGEST_REST: Final = 10_000
_LONG_FAULTS: Final = {
    message: _Fault(message, "x" * _LONGEST_REST) for message in ("Unexpected character", "Bad object", "Bad array")
}


class _ReferenceParser:
    """The state of the parser: the *text* from ``_base`` on is what is left, ``_at`` and ``_ch`` are its cursor."""

    def __init__(self, text: str) -> None:
        self._text = _units(text)
        self._base = 0
        self._at = 0
        self._ch = " "
        self._is_name = False

    def whole(self) -> Any:
        """The value that the whole text stands for."""
        value = self._run()
        if isinstance(value, _Fault):
            raise ReferenceJsonError(f"not JSON: {value.message.lower()}")
        if any(isinstance(level, _FaultObject) for level in _prototype_chain(value)):
            raise ReferenceJsonError('not JSON: the value of a member "__proto__" is not valid JSON')
        rest = self._text[self._base :]
        if rest[:1] in ("}", "]"):
            rest = rest[1:]
        if rest.strip(_SPACE):
            raise ReferenceJsonError("not JSON: there is data after the value")
        return value

    def _run(self) -> Any:
        """What :meth:`_value` returns. Values inside others are a stack here, so that Python's own limit is not met."""
        stack, result = [self._value()], None
        while stack:
            try:
                stack.append(stack[-1].send(result))
                result = None
            except StopIteration as end:
                stack.pop()
                result = end.value
            if len(stack) > MAX_DEPTH:
                raise ReferenceJsonError(f"a value is nested deeper than the limit of {MAX_DEPTH} levels")
        return result

    def _fault(self, message: str) -> _Fault:
        """A fault here. One with a longer rest of the text than any delta may have stands for all of those."""
        if len(self._text) - self._base > _LONGEST_REST:
            return _LONG_FAULTS[message]
        return _Fault(message, _paired(self._text[self._base :]))

    def _char(self, at: int) -> str:
        place = self._base + at
        return self._text[place] if at >= 0 and place < len(self._text) else ""

    def _cut(self, count: int) -> None:
        self._base = min(self._base + count, len(self._text))
        self._at = 0

    def _seek(self) -> str:
        for _ in range(MAX_BLANKS + 1):
            self._ch = self._char(self._at)
            self._at += 1
            if not self._ch or self._ch > " ":
                return self._ch
        raise ReferenceJsonError(f"not JSON: it has more than {MAX_BLANKS:,} blanks in a row, the limit")

    def _value(self) -> _Steps:
        for pair, empty in (("[]", list), ("{}", dict)):
            if self._char(0) + self._char(1) == pair:
                self._base = len(self._text)
                return empty()
        if not self._is_name:
            self._seek()
        if self._ch == "{":
            return (yield from self._object())
        if self._ch == "[":
            return (yield from self._array())
        return self._scalar()

    def _scalar(self) -> Any:
        if self._ch == '"':
            return self._string()
        if self._ch and self._ch in "0123456789-":
            return self._number()
        if self._ch and self._ch in "tfn":
            return self._word()
        return self._fault("Unexpected character")

    def _object(self) -> _Steps:
        found: dict[str, Any] = {}
        if self._seek() == "}":
            self._cut(self._at)
            return found
        while True:
            if self._ch != '"':
                self._seek()
            self._is_name = True
            name = _name((yield self._value()))
            self._is_name = False
            self._seek()
            value = yield self._value()
            found = _with_member(found, name, value.value if isinstance(value, _Fault) else value)
            self._seek()
            if self._ch == "}":
                self._cut(self._at)
                return found
            if self._ch != ",":
                return self._fault("Bad object")

    def _array(self) -> _Steps:
        found: list[Any] = []
        if self._seek() == "]":
            self._cut(self._at)
            return found
        self._at -= 1
        self._ch = self._char(self._at)
        while True:
            value = yield self._value()
            found.append(value.value if isinstance(value, _Fault) else value)
            self._seek()
            if self._ch == "]":
                self._cut(self._at)
                return found
            if self._ch != ",":
                return self._fault("Bad array")

    def _number(self) -> int | float:
        parts: list[str] = []

        def take() -> None:
            parts.append(self._ch)
            self._seek()

        if self._ch == "-":
            take()
        while True:
            take()
            if self._ch and (self._ch in ".eE-+" or "A" <= self._ch <= "F"):
                take()
            if self._ch == "" or not math.isfinite(_to_number(self._ch)):
                break
        number = _to_number("".join(parts))
        self._cut(self._at - 1)
        return number

    def _word(self) -> Any:
        word, value = _WORDS[self._ch]
        parts: list[str] = []
        while True:
            parts.append(self._ch)
            self._seek()
            if not _LETTER.fullmatch(self._ch):
                break
        self._cut(self._at - 1)
        return value if "".join(parts) == word else self._fault("Unexpected character")

    def _string(self) -> str:
        self._cut(self._at - 1)
        if self._char(0) + self._char(1) == '""':
            self._cut(2)
            return ""
        self._seek()
        return _unescaped(self._quoted())

    def _quoted(self) -> str:
        """The raw text up to the quote that ends the string."""
        start = end = self._base + 1
        while True:
            end = self._text.find('"', end + 1)
            if end < 0:
                self._at = 0
                return self._char(0)  # what JavaScript's substring(1, -1) gives
            slashes = 0
            while self._text[end - 1 - slashes] == "\\":
                slashes += 1
            if slashes % 2 == 0:
                self._base, self._at = end + 1, 0
                return self._text[start:end]


def _unescaped(text: str) -> str:
    """*text* with its escapes replaced; it stays as it is from the first one on that is none."""
    parts = list[str]()
    start = 0
    while (slash := text.find("\\", start)) >= 0:
        parts.append(text[start:slash])
        start = slash + 1
        while text[start : start + 1] == "u" and (code := _code(text[start + 1 : start + 5])) == "\\":
            start += 5  # a backslash that was written by its code begins an escape of its own
        kind = text[start : start + 1]
        if kind == "u":
            parts.append(code)
            start += 5
        elif kind in _ESCAPES:
            parts.append(_ESCAPES[kind])
            start += 1
        else:
            parts.append("\\")
            break
    return _paired("".join(parts) + text[start:])


def _code(digits: str) -> str:
    """The character of up to four hexadecimal *digits*; those from the first one on that is none do not count."""
    found = _HEX.match(digits)
    return chr(int(found[0], 16)) if found and found[0] else "\0"


def _to_number(text: str) -> int | float:
    """The number that JavaScript makes of *text*."""
    text = text.strip(_SPACE)
    if not text:
        return 0
    if _INTEGER.fullmatch(text):
        return double(int(text)) if len(text) < 17 else _to_double(text)
    if found := _DECIMAL.fullmatch(text):
        return float(text) if len(text) <= _MOST_DIGITS else _long_number(found)
    radix, digits = _RADIX.get(text[:2].lower(), 0), text[2:]
    try:
        return double(int(digits, radix)) if radix and digits.isalnum() else math.nan
    except ValueError:
        return math.nan


def _to_double(digits: str) -> float:
    found = _DECIMAL.fullmatch(digits)
    assert found is not None, "an integer is a decimal number"
    return float(digits) if len(digits) <= _MOST_DIGITS else _long_number(found)


def _long_number(found: re.Match[str]) -> float:
    """The double nearest to a number of a great many digits, of which those behind the first ones only break ties."""
    sign, whole, fraction, alone, exponent = found.groups()
    digits, places = (whole or "") + (fraction or "") + (alone or ""), len(fraction or "") + len(alone or "")
    digits = digits.lstrip("0")
    first, rest = digits[:_MOST_DIGITS], digits[_MOST_DIGITS:]
    if rest:
        first, places = first + ("1" if rest.strip("0") else "0"), places - len(rest) + 1
    power = int((exponent or "0")[:8]) - places
    return float(f"{sign}{first or 0}e{max(min(power, 10**6), -(10**6))}")


def _with_member(found: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """*found* after JavaScript's assignment of *value* to the member *name*."""
    if name != _PROTOTYPE or _is_bare(found):
        found[name] = value
    elif value is None or isinstance(value, dict | list):  # any other value is ignored
        if not isinstance(found, InheritingObject):
            return InheritingObject(found, value)
        found.inherit_from(value)
    return found


def _name(value: Any) -> str:
    """The name of a member that JavaScript makes of *value*. Raises :class:`ReferenceJsonError` where it throws."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return number_text(value) if math.isfinite(value) else "NaN" if math.isnan(value) else _infinity(value)
    if isinstance(value, list):
        return ",".join("" if item is None else _name(item) for item in value)
    if isinstance(value, dict) and ("toString" in value or _is_bare(value)):
        raise ReferenceJsonError("not JSON: the name of a member is an object that has no text")
    return "[object Object]"


def _infinity(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


def _units(text: str) -> str:
    """*text* with one character for each UTF-16 code unit."""
    if text.isascii() or max(text) < "\U00010000":
        return text
    return "".join(map(chr, array("H", text.encode(f"utf-16-{sys.byteorder[:1]}e", "surrogatepass"))))


def _paired(text: str) -> str:
    """*text* with its pairs of surrogates joined; lone ones stay."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
