"""A part of a text between f-strings that names a value is an f-string itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream

SOURCE = Path(millstream.__file__).parent
FIELD = re.compile(r"\{[A-Za-z_][^{}]*\}")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("""f"{a} " "and {b.c}" """, ["{b.c}"]),
        ("""("and {b!r:>8} " f"{a}")""", ["{b!r:>8}"]),
        ("""f"{a} " f"{{b}} and {c}" """, []),
        ("""f"{a:{b}}" """, []),
        (""" "{a}".format(a=1) """, []),
    ],
)
def test_a_part_without_its_f_is_found(text: str, fields: list[str]) -> None:
    assert list(_literal_fields(text.strip())) == [(1, field) for field in fields]


def test_all_parts_of_f_strings_that_name_values_are_f_strings() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {field}"
        for path in SOURCE.rglob("*.py")
        for line, field in _literal_fields(path.read_text("utf-8"))
    ]
    assert not found, "put an f before the part of the string: " + ", ".join(found)


def _literal_fields(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each ``{name}`` that f-strings of *source* print as it is written, without doubled braces."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        texts = [part.value for part in node.values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        for field in (field for text in texts for field in FIELD.findall(text)):
            if "{" + field not in (ast.get_source_segment(source, node) or ""):
                yield node.lineno, field
