"""How many of something there were in each hour of event time."""

from __future__ import annotations

import datetime as dt

import msgspec
import numpy as np
from numpy.typing import NDArray

HOUR = 3_600_000_000
"""Microseconds."""

MOST_HOURS = 200_000
"""More than twenty years of hours are not counted one by one."""


class HourlyCounts(msgspec.Struct, frozen=True):
    """Counts by the hour, from hour ``first`` (hours since the epoch) on; none where the span is too long."""

    first: int = 0
    counts: list[int] = []

    @classmethod
    def of(cls, times: NDArray[np.int64]) -> HourlyCounts:
        """The counts of *times* (microseconds since the epoch, UTC)."""
        hours = times // HOUR
        if not len(hours) or int(hours.max() - hours.min()) >= MOST_HOURS:
            return cls()
        first = int(hours.min())
        return cls(first, np.bincount(hours - first).tolist())

    @property
    def span(self) -> tuple[str, str]:
        """The first and the last day, as text."""
        return _day(self.first), _day(self.first + len(self.counts))


def _day(hour: int) -> str:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hour)
    return moment.date().isoformat()
