"""Two lists of rows that should be equal, and their first differences as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

_SHOWN = 5
_WIDTH = 600


def assert_same_rows(found: Sequence[object], expected: Sequence[object]) -> None:
    """Fail with the first rows that differ unless both lists are equal, in both directions and in order."""
    differing = [
        (number, one, other) for number, (one, other) in enumerate(zip_longest(found, expected)) if one != other
    ]
    if not differing:
        return
    head = f"{len(found)} rows and not {len(expected)}" if len(found) != len(expected) else f"{len(found)} rows"
    lines = [f"{head}, {len(differing)} of them differ:"]
    for number, one, other in differing[:_SHOWN]:
        lines += [f"row {number}:", f"  found    {one!r}"[:_WIDTH], f"  expected {other!r}"[:_WIDTH]]
    raise AssertionError("\n".join(lines))


def assert_same_set(found: Sequence[object], expected: Sequence[object]) -> None:
    """Fail with the first rows that only one of two lists has, whatever their order."""
    assert_same_rows(sorted(map(repr, found)), sorted(map(repr, expected)))
