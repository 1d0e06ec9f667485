"""What msgspec refuses is told in plain words, with the place, the types and the values that are allowed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec
import pytest

from millstream.core.plain_reasons import field_reason


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    colour: Colour = Colour.RED
    level: Literal[1, 2] = 1


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: Mapping[str, Part] = {}
    names: tuple[str, ...] = ()
    note: str | None = None
    most: float = msgspec.field(default=1.0, name="maximum")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("[]", "must be an object, not an array"),
        ('{"note": 1}', "note: must be a string, not an integer"),
        ('{"names": [1]}', "names[0]: must be a string, not an integer"),
        ('{"maximum": "a"}', "maximum: must be a number, not a string"),
        ('{"parts": {"a": {}}}', "parts[...]: missing field 'size'"),
        ('{"parts": {"a": {"size": true}}}', "parts[...].size: must be an integer, not a boolean"),
        (
            '{"parts": {"a": {"size": 1, "colour": "green"}}}',
            "parts[...].colour: invalid value 'green'; choose from red",
        ),
        ('{"parts": {"a": {"size": 1, "level": 3}}}', "parts[...].level: invalid value 3; choose from 1, 2"),
        ('{"most": 1}', "unknown field 'most'; allowed: maximum, names, note, parts"),
        ("{", "Input data was truncated"),
        ("{]", "JSON is malformed"),
    ],
)
def test_a_value_that_is_refused_is_explained(data: str, reason: str) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(data, type=Whole)
    assert field_reason(refused.value, Whole).lower().startswith(reason.lower())
