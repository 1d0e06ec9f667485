"""Why msgspec refuses a value, in plain words: the types by their usual names, and the values that are allowed."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

_TYPES = {
    "array": "an array",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
}
_ENUM = re.compile("Invalid enum value (.*)", re.DOTALL)
_MISSING = re.compile("Object missing required field `(.*)`", re.DOTALL)
_TYPE = re.compile("Expected `([^`]*)`([^`]*?)(?:, got `([^`]*)`)?")
_UNKNOWN = re.compile("Object contains unknown field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[")

hints = functools.cache(get_type_hints)


def is_struct(kind: Any) -> bool:
    """Whether *kind* is a struct of msgspec."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def field_reason(error: Exception, kind: Any) -> str:
    """The text of *error*, of msgspec on a value of type *kind*, with the name of the field first."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`")
    reason = plain_reason(text, kind_at(path, kind))
    return f"{path.lstrip('.')}: {reason}" if path else reason


def kind_at(path: str, kind: Any) -> Any:
    """The type of the value at msgspec's *path* (``.users[...].role``) in a value of type *kind*; None if unknown."""
    for step in _STEP.finditer(path):
        if step[1]:
            kind = hints(kind).get(step[1]) if is_struct(kind) else None
        elif args := get_args(kind):
            kind = args[-1] if get_origin(kind) is Mapping else args[0]
    return kind


def plain_reason(text: str, kind: Any, table: str = "an object") -> str:
    """*text*, msgspec's reason to refuse a value of type *kind*, in plain words; *table* is what objects are called."""
    if (wrong := _ENUM.fullmatch(text)) and (allowed := _choices(kind)):
        return f"invalid value {wrong[1]}; choose from {', '.join(allowed)}"
    if missing := _MISSING.fullmatch(text):
        return f"missing field {missing[1]!r}"
    if unknown := _UNKNOWN.fullmatch(text):
        allowed = sorted(_names(kind))
        return f"unknown field {unknown[1][:100]!r}" + (f"; allowed: {', '.join(allowed)}" if allowed else "")
    if wrong := _TYPE.fullmatch(text):
        types = _TYPES | {"object": table}
        expected = " or ".join(types.get(name, name) for name in wrong[1].split(" | ") if name != "null")
        return f"must be {expected}{wrong[2]}" + (f", not {types.get(wrong[3], wrong[3])}" if wrong[3] else "")
    return text if text.startswith("JSON") else f"{text[:1].lower()}{text[1:]}"


def _names(kind: Any) -> Sequence[str]:
    """The names of the fields of *kind* as they are written; none unless it is a struct."""
    return [field.encode_name for field in msgspec.structs.fields(kind)] if is_struct(kind) else ()


def _choices(kind: Any) -> Sequence[str]:
    """The values that *kind* allows; empty if they cannot be listed."""
    for each in (kind, *get_args(kind)):
        if get_origin(each) is Literal:
            return [str(value) for value in get_args(each)]
        if isinstance(each, type) and issubclass(each, enum.Enum):
            return [str(member.value) for member in each]
    return ()
