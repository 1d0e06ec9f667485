"""The sizes of spaces over time: the last one, and means of periods."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS
from millstream.mill.item_ref import ItemRef
from millstream.mill.reports.statistics import (
    SpaceSize,
    SpaceStatisticsTable,
    StatisticsPeriod,
    StatisticsProcessor,
    store_sizes,
)
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import StorageStatistics, encode_task
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink
from suite.engines import open_engine


def test_sizes_are_kept_and_averaged_by_period() -> None:
    statistics = SpaceStatisticsTable(open_engine("sqlite://", poolclass=sa.pool.StaticPool))
    day = StatisticsPeriod.DAY * MICROSECONDS
    sizes = [SpaceSize("a", "docs", at, items, items * 10) for at, items in ((5, 1), (9, 3), (day + 1, 7))]
    for size in [*sizes, SpaceSize("b", "docs", 1, 100, 1000)]:
        statistics.add(size)
    statistics.add(sizes[-1])
    assert statistics.latest("a") == [sizes[-1]]
    assert [size.store for size in statistics.latest()] == ["a", "b"]
    statistics.add(SpaceSize("a", "docs", 99 * day, 50, 500))  # by a clock that was ahead
    assert statistics.latest("a", until=2 * day) == [sizes[-1]] and statistics.latest("a", until=0) == []
    assert statistics.averages("a", "docs", StatisticsPeriod.DAY) == [
        SpaceSize("a", "docs", 0, 2, 20),
        SpaceSize("a", "docs", day, 7, 70),
        SpaceSize("a", "docs", 99 * day, 50, 500),
    ]


def test_a_store_is_over_its_limit_from_the_first_byte_beyond_it() -> None:
    limit = 2 * 10**12
    sizes = [SpaceSize("1", "a", 0, 1, limit - 1), SpaceSize("1", "b", 0, 1, 0), SpaceSize("3", "a", 0, 1, limit)]
    sizes += [SpaceSize("2", "a", 0, 3, limit), SpaceSize("2", "b", 0, 1, 1)]
    found = store_sizes(sizes, {"1": limit, "2": limit, "3": 0, "4": limit})
    assert [(one.store, one.over, one.items) for one in found] == [("2", True, 4), ("1", False, 2), ("4", False, 0)]
    assert (found[1].share, found[2].share) == (pytest.approx(1), 0)


def test_a_task_counts_the_live_items_of_a_space_and_their_bytes(world: Any) -> None:
    for name, body in (("a", b"12345"), ("b", b"123"), ("c", b"1")):
        world.put(ItemRef("1", "s", name), body)
    world.record(ItemRef("1", "s", "c"), None, deleted=True)
    statistics, queue = SpaceStatisticsTable(world.engine), world.queue("storage-statistics")
    registry = ProcessorRegistry({StorageStatistics: StatisticsProcessor(world.manifest, statistics, world.providers)})
    queue.put([encode_task(StorageStatistics("1", "s")), encode_task(StorageStatistics("2", "none"))])
    WorkerManager([queue], registry, ResultSink(world.manifest, {}), world.clock).run_until_drained()
    now = world.clock.now()
    assert statistics.latest() == [SpaceSize("1", "s", now, 2, 8), SpaceSize("2", "none", now, 0, 0)]
