"""Parses and checks queries; an error names the position of the fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.core.errors import InputError
from millstream.core.plain_reasons import field_reason

Query = TypeVar("Query")


class QueryError(InputError):
    """The query is invalid."""


def convert(values: Mapping[str, object], kind: type[Query]) -> Query:
    """*values*, all of them text, as *kind*. Raises :class:`QueryError`."""
    try:
        return msgspec.convert(values, prepared(kind), strict=False)
    except msgspec.ValidationError as error:
        raise QueryError(field_reason(error, kind)) from error


def unique_parameters(given: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """The parameters *given*. Raises :class:`QueryError` where one of them is there twice."""
    found = dict[str, str]()
    for name, value in given:
        if name in found:
            raise QueryError(f"parameter {name[:80]!r} is given more than once: give the parameter once")
        found[name] = value
    return found
