"""The sizes of spaces over time: the last one, and means of periods."""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS
from millstream.mill.statistics import Period, SpaceSize, Statistics


def test_sizes_are_kept_and_averaged_by_period() -> None:
    statistics = Statistics(sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool))
    day = Period.DAY * MICROSECONDS
    sizes = [SpaceSize("a", "docs", at, items, items * 10) for at, items in ((5, 1), (9, 3), (day + 1, 7))]
    for size in [*sizes, SpaceSize("b", "docs", 1, 100, 1000)]:
        statistics.add(size)
    statistics.add(sizes[-1])
    assert statistics.latest("a") == [sizes[-1]]
    assert [size.store for size in statistics.latest()] == ["a", "b"]
    assert statistics.averages("a", "docs", Period.DAY) == [
        SpaceSize("a", "docs", 0, 2, 20),
        SpaceSize("a", "docs", day, 7, 70),
    ]
