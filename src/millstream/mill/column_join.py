"""Sorted streams of items in columns, and their full outer join: what is alike at both ends costs little an item.

Of two ends that are in step, which is what nearly all loops find, whole runs of ids are equal, and are compared as
lists: a loop over a million items without a change is a matter of a few thousand comparisons then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Column = Sequence[Any]


class ItemColumns(NamedTuple):
    """Some items with neighbouring ids: their ``keys``, strictly ascending, and a value of each in each column."""

    keys: Sequence[str]
    columns: tuple[Column, ...]

    def head(self, count: int) -> ItemColumns:
        """The first *count* items."""
        return (
            self if count == len(self.keys) else ItemColumns(self.keys[:count], tuple(c[:count] for c in self.columns))
        )

    def tail(self, start: int) -> ItemColumns:
        """The items from number *start* on."""
        return ItemColumns(self.keys[start:], tuple(column[start:] for column in self.columns))

    def without(self, gone: Collection[str]) -> ItemColumns:
        """All items but those of *gone*."""
        if not gone:
            return self
        keys = [key for key in self.keys if key not in gone]
        return ItemColumns(keys, self.at(keys))

    def at(self, keys: Sequence[str]) -> tuple[Column, ...]:
        """The columns as those of *keys*, with None for what is not in this run."""
        if self.keys == keys:
            return self.columns
        places = dict(zip(self.keys, range(len(self.keys)), strict=True))
        found = [places.get(key) for key in keys]
        return tuple([None if place is None else column[place] for place in found] for column in self.columns)


def join_columns(
    left: Iterable[ItemColumns], right: Iterable[ItemColumns], left_width: int, right_width: int
) -> Iterator[ItemColumns]:
    """Each id of either side once, in order, with the columns of both (None where a side lacks the id).

    *left_width* and *right_width* are the numbers of columns; runs of either side may be cut as they like.
    """
    lefts, rights = _filled(left), _filled(right)
    a, b = next(lefts, None), next(rights, None)
    while a is not None and b is not None:
        border = min(a.keys[-1], b.keys[-1])
        i, j = bisect_right(a.keys, border), bisect_right(b.keys, border)
        yield _joined(a.head(i), b.head(j))
        a = a.tail(i) if i < len(a.keys) else next(lefts, None)
        b = b.tail(j) if j < len(b.keys) else next(rights, None)
    while a is not None:
        yield ItemColumns(a.keys, a.columns + _nothing(len(a.keys), right_width))
        a = next(lefts, None)
    while b is not None:
        yield ItemColumns(b.keys, _nothing(len(b.keys), left_width) + b.columns)
        b = next(rights, None)


def _joined(a: ItemColumns, b: ItemColumns) -> ItemColumns:
    keys = a.keys if a.keys == b.keys else sorted({*a.keys, *b.keys})
    return ItemColumns(keys, a.at(keys) + b.at(keys))


def _filled(runs: Iterable[ItemColumns]) -> Iterator[ItemColumns]:
    return (run for run in runs if run.keys)


def _nothing(count: int, width: int) -> tuple[Column, ...]:
    return ([None] * count,) * width
