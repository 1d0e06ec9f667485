"""Which messages a topic has stored already, by the ids that their producers gave them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Final

import msgspec

Name = bytes

DEDUPLICATION_WINDOW: Final = 65_536
"""At least so many of a topic's last messages are remembered by id: one that is sent again is not stored again."""

DIGITS: Final = 8
"""So many hexadecimal digits at the end of an id count the messages of a producer."""

_first = itemgetter(0)


class NameRun(msgspec.Struct, frozen=True):
    """Names that differ only in the number at their end, ``first`` and those that follow, in :data:`DIGITS` digits: ids
    of messages that a producer sends together.
    """

    prefix: bytes
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def names(self) -> list[Name]:
        """The names one by one."""
        return [b"%b%08X" % (self.prefix, number) for number in range(self.first, self.first + self.count)]


class DeduplicationIndex:
    """The numbers of at least the *count* last messages that were noted, by name; of twice as many at most.

    Names are noted in two generations: when the younger one is full, the older one is forgotten at once. A run of names
    is one entry.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._young, self._old = _Generation(), _Generation()

    def get(self, name: Name) -> int | None:
        """The number that was noted for *name*."""
        found = self._young.get(name)
        return self._old.get(name) if found is None else found

    def contains_none(self, names: Collection[Name] | NameRun) -> bool:
        """Whether none of *names* was noted."""
        return self._young.contains_none(names) and self._old.contains_none(names)

    def add(self, names: Sequence[Name], numbers: Sequence[int]) -> None:
        """*names* have these *numbers*; an empty name is not a name."""
        self._young.names.update(zip(names, numbers, strict=True))
        self._young.names.pop(b"", None)
        self._turn()

    def add_run(self, run: NameRun, number: int) -> None:
        """The names of *run*, none of which was noted, have the numbers from *number* on."""
        self._young.add_run(run, number)
        self._turn()

    def discard_after(self, last: int) -> None:
        """Numbers above *last* do not count."""
        self._young.discard_after(last)
        self._old.discard_after(last)

    def _turn(self) -> None:
        if len(self._young) >= self._count:
            self._old, self._young = self._young, _Generation()


class _Generation:
    """The numbers of ``names``, and of runs of names."""

    def __init__(self) -> None:
        self.names: dict[Name, int] = {}
        self._runs: dict[bytes, list[tuple[int, int, int]]] = {}  # by prefix: first and last number at the end; number
        self._in_runs = 0

    def __len__(self) -> int:
        return len(self.names) + self._in_runs

    def get(self, name: Name) -> int | None:
        found = self.names.get(name)
        if found is None and (runs := self._runs.get(name[:-DIGITS])) is not None:
            found = _number_in(runs, name[-DIGITS:])
        return found

    def contains_none(self, names: Collection[Name] | NameRun) -> bool:
        if isinstance(names, NameRun):
            return not self._overlaps(names) and (not self.names or self.names.keys().isdisjoint(names.names()))
        if not self.names.keys().isdisjoint(names):
            return False
        return not self._runs or all(self.get(name) is None for name in names)

    def add_run(self, run: NameRun, number: int) -> None:
        insort(self._runs.setdefault(run.prefix, []), (run.first, run.first + run.count - 1, number))
        self._in_runs += run.count

    def discard_after(self, last: int) -> None:
        for name in [name for name, number in self.names.items() if number > last]:
            del self.names[name]
        kept = {
            prefix: [(first, min(end, first + last - number), number) for first, end, number in runs if number <= last]
            for prefix, runs in self._runs.items()
        }
        self._runs = {prefix: runs for prefix, runs in kept.items() if runs}
        self._in_runs = sum(end - first + 1 for runs in self._runs.values() for first, end, _ in runs)

    def _overlaps(self, run: NameRun) -> bool:
        runs = self._runs.get(run.prefix, ())
        place = bisect_right(runs, run.first + run.count - 1, key=_first)  # the runs do not overlap one another
        return place > 0 and runs[place - 1][1] >= run.first


def _number_in(runs: Sequence[tuple[int, int, int]], digits: bytes) -> int | None:
    """The number of the name that ends in *digits*, if it is in one of *runs*."""
    try:
        found = int(digits, 16)
    except ValueError:
        return None
    place = bisect_right(runs, found, key=_first)
    if place and found <= runs[place - 1][1] and b"%08X" % found == digits:
        first, _, number = runs[place - 1]
        return number + found - first
    return None
