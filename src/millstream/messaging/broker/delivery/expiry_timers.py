"""Times at which messages are to be looked at again: one timer for all that were given out together."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from millstream.messaging.broker.delivery.in_flight_runs import InFlightRun, InFlightRuns

_SPARE = 1_000
"""Number of outdated timers that are kept in addition to two for each run in flight."""


class ExpiryTimers:
    """When messages of *runs* are due (microseconds).

    A timer is set for every message that a consumer has, and none is removed when the message is acknowledged or due
    at another time: messages to which a timer does not apply any more are skipped.
    """

    def __init__(self, runs: InFlightRuns) -> None:
        self._runs = runs
        self._timers: list[tuple[int, int, int]] = []  # (due, first id, last id), a heap

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, due: int, first: int, last: int) -> None:
        """The messages *first* to *last* are due at *due*."""
        heapq.heappush(self._timers, (due, first, last))
        if len(self._timers) > 2 * len(self._runs) + _SPARE:
            self.reset()

    def reset(self) -> None:
        """Set one timer for each run that a consumer has, and no other."""
        self._timers = [(run.terms.until, run.first, run.last) for run in self._runs if run.away]
        heapq.heapify(self._timers)

    def next_due(self) -> int | None:
        """The time at which the next message is due; None if there is none."""
        while self._timers:
            due, first, last = self._timers[0]
            run = next(self._due(due, first, last), None)
            if run is not None:
                if run.first > first:  # what lies before it is not examined again
                    heapq.heapreplace(self._timers, (due, run.first, last))
                return due
            heapq.heappop(self._timers)
        return None

    def take(self) -> list[InFlightRun]:
        """Remove the timer that is due next; the runs that are due by it."""
        return list(self._due(*heapq.heappop(self._timers)))

    def _due(self, due: int, first: int, last: int) -> Iterator[InFlightRun]:
        return (run for run in self._runs.within(first, last) if run.away and run.terms.until == due)
