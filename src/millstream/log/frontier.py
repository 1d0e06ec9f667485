"""The confirmed frontier: the largest id below which everything is confirmed, whatever the order of confirmations.

Writer confirmations and reader acknowledgements are the same thing (seed document nerve, "Writing" and "Reading").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.log.ids import IdRange


class Frontier:
    """A set of positive ids that knows its longest gap-free beginning.

    Not thread-safe; its owner holds a lock. Adding the next id or range in order is O(1); ids ahead of their turn
    are kept as sorted ranges, so a range costs as much as an id.
    """

    __slots__ = ("_firsts", "_lasts", "pointer")

    def __init__(self, pointer: int = 0, ahead: Iterable[IdRange] = ()) -> None:
        """Begin with all ids up to *pointer*, and the ranges *ahead* of it, confirmed."""
        self.pointer = pointer
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for ids in ahead:
            self.add(ids.first, ids.last)

    @property
    def ahead(self) -> Sequence[IdRange]:
        """The confirmed ranges beyond the pointer, in order; no two ranges touch."""
        return [IdRange(first, last) for first, last in zip(self._firsts, self._lasts, strict=True)]

    @property
    def last(self) -> int:
        """The largest confirmed id."""
        return self._lasts[-1] if self._lasts else self.pointer

    def up_to(self, last_id: int) -> Frontier:
        """What is confirmed of the ids up to *last_id*."""
        ahead = [IdRange(ids.first, min(ids.last, last_id)) for ids in self.ahead if ids.first <= last_id]
        return Frontier(min(self.pointer, last_id), ahead)

    def add(self, first: int, last: int | None = None) -> bool:
        """Confirm *first* to *last* (one id without *last*); confirming again changes nothing.

        Returns whether the pointer moved.
        """
        last = first if last is None else last
        if last <= self.pointer or last < first:
            return False
        if first > self.pointer + 1:
            self._insert(first, last)
            return False
        self.pointer = last
        if self._firsts:
            self._absorb()
        return True

    def add_ids(self, ids: npt.ArrayLike | Iterable[int]) -> bool:
        """Confirm many single ids in any order. Returns whether the pointer moved."""
        numbers = np.unique(_as_array(ids))
        if not len(numbers):
            return False
        breaks = np.flatnonzero(np.diff(numbers) > 1)
        firsts = numbers[np.concatenate(([0], breaks + 1))].tolist()
        lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))].tolist()
        before = self.pointer
        for first, last in zip(firsts, lasts, strict=True):
            self.add(first, last)
        return self.pointer > before

    def __contains__(self, number: int) -> bool:
        if number <= self.pointer:
            return True
        position = bisect_left(self._lasts, number)
        return position < len(self._lasts) and self._firsts[position] <= number

    def missing(self, ids: IdRange) -> list[IdRange]:
        """The parts of *ids* that are not confirmed, in order."""
        missing = []
        first = max(ids.first, self.pointer + 1)
        for position in range(bisect_left(self._lasts, first), len(self._lasts)):
            if self._firsts[position] > ids.last:
                break
            if self._firsts[position] > first:
                missing.append(IdRange(first, self._firsts[position] - 1))
            first = self._lasts[position] + 1
        if first <= ids.last:
            missing.append(IdRange(first, ids.last))
        return missing

    def _insert(self, first: int, last: int) -> None:
        low = bisect_left(self._lasts, first - 1)
        high = low
        while high < len(self._firsts) and self._firsts[high] <= last + 1:
            high += 1
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def _absorb(self) -> None:
        passed = 0
        while passed < len(self._firsts) and self._firsts[passed] <= self.pointer + 1:
            self.pointer = max(self.pointer, self._lasts[passed])
            passed += 1
        del self._firsts[:passed], self._lasts[:passed]


def _as_array(ids: npt.ArrayLike | Iterable[int]) -> npt.NDArray[np.int64]:
    values: Any = ids if isinstance(ids, np.ndarray | Sequence) else list(ids)  # type: ignore[arg-type]
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, not {array.dtype}")
    return array.astype(np.int64, copy=False).ravel()
