"""JSON whose values remember where they stand, so that an error in a file that people edit names line and column.

Strict (RFC 8259, no duplicate names) but for one thing: a trailing comma is accepted and remembered, because the
document's own sample policy has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import msgspec

from millstream.mill.errors import PolicyError

MAX_DEPTH = 20
"""Deeper nesting than this is not a policy."""

_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

_decoder = json.JSONDecoder()


class SourcePosition(msgspec.Struct, frozen=True):
    """A place in a text; line and column count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class JsonString(msgspec.Struct, frozen=True):
    """A string."""

    value: str
    position: SourcePosition


class JsonScalar(msgspec.Struct, frozen=True):
    """A number, true, false or null, as written."""

    value: str
    position: SourcePosition


class JsonArray(msgspec.Struct, frozen=True):
    """An array."""

    items: Sequence[Node]
    position: SourcePosition


class JsonObject(msgspec.Struct, frozen=True):
    """An object; ``names`` tells where each member's name stands."""

    members: Mapping[str, Node]
    names: Mapping[str, SourcePosition]
    position: SourcePosition


Node = JsonString | JsonScalar | JsonArray | JsonObject


class LocatedJson(msgspec.Struct, frozen=True):
    """A parsed text, and where it has commas before a closing bracket."""

    root: Node
    trailing_commas: Sequence[SourcePosition]


def parse_located(text: str, name: str) -> LocatedJson:
    """The value of *text*. Raises :class:`PolicyError` with *name*, line and column where it is not JSON."""
    return _LocatedJsonParser(text, name).parse()


def _string_error(reason: str) -> str:
    """What to say of a string that the decoder refuses for *reason*."""
    if reason.startswith("Unterminated"):
        return "the string has no closing double quote"
    if "control" in reason:
        return "the string contains a control character: write an escape, such as \\n"
    return "the string contains an invalid escape: write \\\\ for a backslash"


class _LocatedJsonParser:
    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._at = 0
        self._counted, self._line, self._line_start = 0, 1, 0  # lines are counted as they go by
        self._depth = 0
        self._comma: SourcePosition | None = None  # the one just read
        self._commas: list[SourcePosition] = []

    def parse(self) -> LocatedJson:
        root = self._value()
        if self._peek():
            raise self._error("expected the end of the file: remove what follows the policy")
        return LocatedJson(root, tuple(self._commas))

    def _value(self) -> Node:
        start = self._peek()
        position = self._position()
        if start == '"':
            return JsonString(self._string(), position)
        if start in ("{", "["):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._error(
                    f"the value is nested deeper than the limit of {MAX_DEPTH} levels: reduce the nesting"
                )
            node = self._object(position) if start == "{" else JsonArray(self._array(), position)
            self._depth -= 1
            return node
        scalar = _SCALAR.match(self._text, self._at)
        if scalar is None:
            raise self._error(
                "expected a value: a string in double quotes, a number, true, false, null, an object or an array"
            )
        self._at = scalar.end()
        return JsonScalar(scalar.group(), position)

    def _object(self, position: SourcePosition) -> JsonObject:
        members: dict[str, Node] = {}
        names: dict[str, SourcePosition] = {}
        self._at += 1
        while not self._closes("}", after_comma=bool(members)):
            if self._peek() != '"':
                raise self._error("expected a name in double quotes")
            where = self._position()
            name = self._string()
            if name in members:
                raise self._error(f"name {name!r} occurs twice in one object: remove one of them", where)
            self._expect(":")
            names[name], members[name] = where, self._value()
            self._separate("}")
        return JsonObject(members, names, position)

    def _array(self) -> list[Node]:
        items: list[Node] = []
        self._at += 1
        while not self._closes("]", after_comma=bool(items)):
            items.append(self._value())
            self._separate("]")
        return items

    def _closes(self, bracket: str, *, after_comma: bool) -> bool:
        """Step over the closing *bracket*, if it is next; after a comma it is a trailing one."""
        if self._peek() != bracket:
            return False
        if after_comma and self._comma is not None:
            self._commas.append(self._comma)
        self._at += 1
        self._comma = None
        return True

    def _separate(self, bracket: str) -> None:
        self._comma = None
        sign = self._peek()
        if sign == ",":
            self._comma = self._position()
            self._at += 1
        elif sign != bracket:
            raise self._error(f"expected a comma or {bracket!r}")

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"expected {sign!r}")
        self._at += 1

    def _string(self) -> str:
        start = self._position()
        try:
            value, self._at = _decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise self._error(_string_error(error.msg), self._position(error.pos)) from error
        if not _is_text(value):
            raise self._error(
                "the string contains an unpaired surrogate (an escape from \\ud800 to \\udfff): remove the escape, or "
                "write the character itself",
                start,
            )
        return str(value)

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _position(self, at: int | None = None) -> SourcePosition:
        at = self._at if at is None else at
        self._line += self._text.count("\n", self._counted, at)
        self._line_start = max(self._line_start, self._text.rfind("\n", self._counted, at) + 1)
        self._counted = at
        return SourcePosition(self._line, at - self._line_start + 1)

    def _error(self, what: str, position: SourcePosition | None = None) -> PolicyError:
        return PolicyError(f"{self._name}, {position or self._position()}: {what}")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in value)
