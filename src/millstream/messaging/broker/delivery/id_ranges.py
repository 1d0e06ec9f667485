"""Ids of messages as ranges with both ends included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

IdRanges = Sequence[tuple[int, int]]


def to_ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """*ids* (ascending) as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for number in ids:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ids in *ranges*, which may overlap and have any order, as the fewest ranges, in order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def missing_ids(first: int, last: int, ranges: IdRanges) -> Iterator[int]:
    """The ids from *first* to *last* that are not in *ranges*, which are parts of these ids in order."""
    for begin, end in ranges:
        yield from range(first, begin)
        first = end + 1
    yield from range(first, last + 1)
