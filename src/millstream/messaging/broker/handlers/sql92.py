"""Conditions in SQL92 over a message's properties, as RocketMQ has them, compiled to functions.

``=  <>  >  >=  <  <=``, ``BETWEEN``, ``IN``, ``IS [NOT] NULL``, ``CONTAINS``, ``STARTSWITH``, ``ENDSWITH``, ``AND``,
``OR``, ``NOT``, parentheses; numbers, ``'text'``, ``TRUE``, ``FALSE``. What compares with a property that is absent, or
with a number where the property is none, is unknown, and an unknown condition selects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

Properties = Mapping[str, str]
Value = str | float | bool | None
Operand = Callable[[Properties], Value]
Condition = Callable[[Properties], bool | None]

_LONGEST: Final = 4096
_DEEPEST: Final = 50
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$.-]*)|(?P<sign><>|!=|>=|<=|[=<>(),]))"
)
_WORDS: Final = frozenset(
    ["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def compile_condition(expression: str) -> Callable[[Properties], bool]:
    """The test that *expression* stands for. Raises ILLEGAL_FILTER_EXPRESSION that says where it is wrong."""
    if len(expression) > _LONGEST:
        raise _wrong(f"it has {len(expression):,} characters; the limit is {_LONGEST:,}: shorten it")
    parser = _Parser(_tokens(expression))
    condition = parser.disjunction(0)
    parser.end()
    return lambda properties: condition(properties) is True


Token = tuple[str, str]


def _tokens(expression: str) -> list[Token]:
    found: list[Token] = []
    place, text = 0, expression.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _wrong(f"unexpected {text[place : place + 20].strip()!r} at position {place + 1}")
        kind, value = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "name" and value.upper() in _WORDS:
            kind, value = "word", value.upper()
        found.append((kind, value))
        place = match.end()
    return found


class _Parser:
    """Recursive descent over *tokens*."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def end(self) -> None:
        if self._place < len(self._tokens):
            raise _wrong(
                f"unexpected {self._tokens[self._place][1]!r} after a condition: combine conditions with AND or OR"
            )

    def disjunction(self, depth: int) -> Condition:
        if depth > _DEEPEST:
            raise _wrong(f"parentheses are nested deeper than the limit of {_DEEPEST} levels: remove parentheses")
        terms = [self._conjunction(depth)]
        while self._accept("word", "OR"):
            terms.append(self._conjunction(depth))
        return _any(terms)

    def _conjunction(self, depth: int) -> Condition:
        terms = [self._negation(depth)]
        while self._accept("word", "AND"):
            terms.append(self._negation(depth))
        return _all(terms)

    def _negation(self, depth: int) -> Condition:
        negative = False
        while self._accept("word", "NOT"):
            negative = not negative
        inner = self._comparison(depth)
        return _opposite(inner) if negative else inner

    def _comparison(self, depth: int) -> Condition:
        if self._accept("sign", "("):
            inner = self.disjunction(depth + 1)
            self._expect("sign", ")")
            return inner
        left = self._operand()
        if self._accept("word", "IS"):
            negative = self._accept("word", "NOT")
            self._expect("word", "NULL")
            return lambda properties: (left(properties) is None) is not negative
        negative = self._accept("word", "NOT")
        test = self._test(left)
        return _opposite(test) if negative else test

    def _test(self, left: Operand) -> Condition:
        kind, value = self._next()
        if value == "BETWEEN":
            low = self._operand()
            self._expect("word", "AND")
            return _all([_compare(left, ">=", low), _compare(left, "<=", self._operand())])
        if value == "IN":
            return self._membership(left)
        if value in _TEXT_TESTS:
            return _text_test(left, _TEXT_TESTS[value], self._operand())
        if kind == "sign" and value in ("=", "<>", "!=", ">", ">=", "<", "<="):
            return _compare(left, value, self._operand())
        raise _wrong(f"expected a comparison at {repr(value) if value else 'the end'}")

    def _membership(self, left: Operand) -> Condition:
        self._expect("sign", "(")
        tests = [_compare(left, "=", self._operand())]
        while self._accept("sign", ","):
            tests.append(_compare(left, "=", self._operand()))
        self._expect("sign", ")")
        return _any(tests)

    def _operand(self) -> Operand:
        kind, value = self._next()
        if kind == "name":
            return lambda properties: properties.get(value)
        constants: dict[str, Value] = {"TRUE": True, "FALSE": False}
        if kind == "text":
            constant: Value = value[1:-1].replace("''", "'")
        elif kind == "number":
            constant = float(value)
        elif value in constants:
            constant = constants[value]
        else:
            raise _wrong(f"expected a property or a value at {repr(value) if value else 'the end'}")
        return lambda _: constant

    def _next(self) -> Token:
        token = self._tokens[self._place] if self._place < len(self._tokens) else ("end", "")
        self._place += 1
        return token

    def _accept(self, kind: str, value: str) -> bool:
        found = self._place < len(self._tokens) and self._tokens[self._place] == (kind, value)
        self._place += found
        return found

    def _before(self) -> str:
        return f"before {self._tokens[self._place][1]!r}" if self._place < len(self._tokens) else "at the end"

    def _expect(self, kind: str, value: str) -> None:
        if not self._accept(kind, value):
            raise _wrong(f"{value!r} is missing {self._before()}")


def _compare(left: Operand, sign: str, right: Operand) -> Condition:
    def test(properties: Properties) -> bool | None:
        pair = _alike(left(properties), right(properties))
        return None if pair is None else _ordered(sign, *pair)

    return test


def _alike(one: Value, other: Value) -> tuple[str | float, str | float] | None:
    """Both values as numbers where one is a number, as truth values where one is that, else as text."""
    if one is None or other is None:
        return None
    if isinstance(one, bool) or isinstance(other, bool):
        return str(one).lower(), str(other).lower()
    if isinstance(one, float) or isinstance(other, float):
        try:
            return float(one), float(other)
        except ValueError:
            return None
    return one, other


def _ordered(sign: str, one: str | float, other: str | float) -> bool:
    if sign == "=":
        return one == other
    if sign in ("<>", "!="):
        return one != other
    less, equal = one < other, one == other  # type: ignore[operator]
    return {"<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[sign]


def _text_test(left: Operand, test: Callable[[str, str], bool], right: Operand) -> Condition:
    def found(properties: Properties) -> bool | None:
        one, other = left(properties), right(properties)
        return test(one, other) if isinstance(one, str) and isinstance(other, str) else None

    return found


def _all(conditions: Sequence[Condition]) -> Condition:
    return _first_of(conditions, decisive=False)


def _any(conditions: Sequence[Condition]) -> Condition:
    return _first_of(conditions, decisive=True)


def _first_of(conditions: Sequence[Condition], *, decisive: bool) -> Condition:
    """*decisive* as soon as one of *conditions* is that, else unknown where one is unknown. A loop, since functions
    nested for each of a thousand conditions would exceed Python's limit of recursion."""
    if len(conditions) == 1:
        return conditions[0]

    def test(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for condition in conditions:
            found = condition(properties)
            if found is decisive:
                return decisive
            if found is None:
                result = None
        return result

    return test


def _opposite(condition: Condition) -> Condition:
    def test(properties: Properties) -> bool | None:
        found = condition(properties)
        return None if found is None else not found

    return test


def _wrong(reason: str) -> StatusError:
    return StatusError(v2.ILLEGAL_FILTER_EXPRESSION, f"invalid SQL filter: {reason}")
