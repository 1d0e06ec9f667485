"""How many workers each pool should have: the table of the original deployment as a pure state machine.

Reference mill §1.2: simple scaling by one, on averages over whole periods, with a pause after each change.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from millstream.mill.tasks import QueueName


class Threshold(msgspec.Struct, frozen=True):
    """A count of tasks, and for how many periods of how many seconds its average has to hold."""

    count: float
    periods: int
    seconds: float


class ScaledPool(msgspec.Struct, frozen=True):
    """One pool of workers: its bounds, and when it grows and shrinks by one.

    It grows when the ready tasks of ``queue`` are at least ``up``, and shrinks when they (with ``by_leased`` those in
    workers' hands) are at most ``down``; after either it is left alone for so many seconds.
    """

    queue: QueueName
    least: int
    most: int
    up: Threshold
    down: Threshold
    rest_up: float
    rest_down: float
    by_leased: bool = False


def _above(count: float) -> float:
    """The least average that is more than *count*."""
    return math.nextafter(count, math.inf)


SCALED_POOLS = (
    ScaledPool(QueueName.AUDIT, 1, 10, Threshold(_above(1000), 2, 300), Threshold(500, 4, 300), 900, 900),
    ScaledPool(QueueName.DUPLICATION_HIGH, 0, 10, Threshold(_above(500), 2, 300), Threshold(100, 4, 300), 300, 900),
    ScaledPool(QueueName.DUPLICATION_LOW, 0, 10, Threshold(5000, 2, 300), Threshold(100, 4, 300), 300, 900),
    ScaledPool(QueueName.BIT_INTEGRITY, 0, 10, Threshold(1, 2, 300), Threshold(0, 4, 900), 300, 900, by_leased=True),
    ScaledPool(QueueName.BIT_REPORT, 0, 1, Threshold(1, 1, 300), Threshold(0, 6, 3600), 300, 300),
    ScaledPool(QueueName.STORAGE_STATISTICS, 0, 1, Threshold(_above(0), 30, 60), Threshold(0, 6, 300), 300, 300),
    ScaledPool(QueueName.REPAIR, 0, 10, Threshold(1, 2, 300), Threshold(0, 4, 900), 300, 900, by_leased=True),
)
"""The pools of the original, and one for repairs, which it had not."""


class PoolScaler:
    """The figure for one pool. Tell it what the queue holds, about once a minute, and read :attr:`desired`."""

    def __init__(self, pool: ScaledPool) -> None:
        self.pool = pool
        self.desired = pool.least
        self._seen: deque[tuple[float, int, int]] = deque()
        self._rests_until = float("-inf")

    def observe(self, at: float, ready: int, leased: int) -> int:
        """The queue held so much at *at* (seconds, growing); returns the workers that there should be."""
        self._seen.append((at, ready, leased))
        longest = max(self.pool.up.periods * self.pool.up.seconds, self.pool.down.periods * self.pool.down.seconds)
        while self._seen[0][0] <= at - longest:
            self._seen.popleft()
        if at < self._rests_until:
            return self.desired
        if self.desired < self.pool.most and self._holds(at, self.pool.up, above=True):
            self._change(at, 1, self.pool.rest_up)
        elif self.desired > self.pool.least and self._holds(at, self.pool.down, above=False):
            self._change(at, -1, self.pool.rest_down)
        return self.desired

    def _change(self, at: float, by: int, rest: float) -> None:
        self.desired += by
        self._rests_until = at + rest

    def _holds(self, at: float, threshold: Threshold, *, above: bool) -> bool:
        """Whether the average of every one of the last periods is beyond the threshold; a period unseen says no."""
        leased = self.pool.by_leased and not above
        for period in range(threshold.periods):
            end = at - period * threshold.seconds
            seen = [row[2 if leased else 1] for row in self._seen if end - threshold.seconds < row[0] <= end]
            if not seen:
                return False
            average = sum(seen) / len(seen)
            if not (average >= threshold.count if above else average <= threshold.count):
                return False
        return True
