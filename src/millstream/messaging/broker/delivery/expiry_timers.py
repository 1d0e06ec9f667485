"""Times at which messages are to be looked at again: one timer for all that were given out together."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable


class ExpiryTimers:
    """Ids of messages by the time (microseconds) at which they are due.

    *is_current* says whether a time still counts for an id; what does not is skipped when its turn comes.
    """

    def __init__(self, is_current: Callable[[int, int], bool]) -> None:
        self._is_current = is_current
        self._numbers = itertools.count()
        self._timers: list[tuple[int, int, list[int]]] = []  # (due, number of the timer, ids)

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, due: int, ids: list[int]) -> None:
        """The messages *ids* are due at *due*; the list is the timer's from now on."""
        heapq.heappush(self._timers, (due, next(self._numbers), ids))

    def reset(self, dues: Iterable[tuple[int, int]]) -> None:
        """Forget all, and set *dues*: pairs of a time and an id."""
        self._timers = [(due, next(self._numbers), [number]) for due, number in dues]
        heapq.heapify(self._timers)

    def next_due(self) -> int | None:
        """The time at which the next id is due; None if there is none."""
        while self._timers:
            due, _, ids = self._timers[0]
            while ids and not self._is_current(due, ids[-1]):
                ids.pop()
            if ids:
                return due
            heapq.heappop(self._timers)
        return None

    def take(self) -> list[int]:
        """The ids of the timer that is due next, without those for which it does not count any more."""
        due, _, ids = heapq.heappop(self._timers)
        return [number for number in ids if self._is_current(due, number)]
