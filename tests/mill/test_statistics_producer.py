"""The looping producer of storage statistics: every space once a day, at its time of day, also one that was emptied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS
from millstream.core.documents import FileDocument
from millstream.mill.item_ref import ItemRef
from millstream.mill.producers import statistics as producer_of_statistics
from millstream.mill.producers.producer_loop import LoopOutcome, LoopRun, ProducerLoop
from millstream.mill.producers.space_filter import Pattern, SpaceFilter
from millstream.mill.producers.state import DAY, GRACE, StateDocument, first_start, next_start
from millstream.mill.producers.statistics import StatisticsMorsel, StatisticsProducer
from millstream.mill.reports.statistics import SpaceSize, SpaceStatisticsTable, StatisticsProcessor
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import StorageStatistics, decode_task
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink

MINUTE = 60 * MICROSECONDS


class Counting:
    """The producer, made anew for each run as cron does, with the worker that counts."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.folder, self.queue = world, folder, world.queue("storage-statistics")
        self.statistics = SpaceStatisticsTable(world.engine)

    def run(self, *, start: int | None = None, most: int = 10**6, frequency: int = DAY, **more: Any) -> LoopRun:
        world = self.world
        producer = StatisticsProducer(world.manifest, self.statistics, self.queue, world.clock, **more)
        file = StateDocument(FileDocument(self.folder / "statistics.json"), StatisticsMorsel)
        return ProducerLoop(file, producer, self.queue, world.clock, frequency=frequency, most=most, start=start).run()

    def taken(self) -> list[tuple[str, str]]:
        leases = self.queue.lease(10**6, visibility=60)
        self.queue.ack(leases)
        tasks = [decode_task(lease.body) for lease in leases]
        return [(task.store, task.space) for task in tasks if isinstance(task, StorageStatistics)]

    def work(self) -> None:
        world = self.world
        registry = ProcessorRegistry(
            {StorageStatistics: StatisticsProcessor(world.manifest, self.statistics, world.providers)}
        )
        WorkerManager([self.queue], registry, ResultSink(world.manifest, {}), world.clock).run_until_drained()


@pytest.fixture
def counting(world: Any, tmp_path: Path) -> Counting:
    for store, space in (("1", "a"), ("1", "b"), ("2", "a"), ("1", "x-quarantine")):
        world.put(ItemRef(store, space, "item"))
    return Counting(world, tmp_path)


def test_every_space_is_counted_once_a_loop_and_not_again_before_the_next(counting: Counting) -> None:
    run = counting.run()
    assert (run.outcome, run.tasks) == (LoopOutcome.DONE, 3)
    assert counting.taken() == [("1", "a"), ("1", "b"), ("2", "a")]
    assert counting.run().outcome == LoopOutcome.NOT_DUE
    counting.world.clock.advance(DAY / MICROSECONDS)
    assert counting.run(spaces=SpaceFilter((Pattern(("local", "1", "b")),))).tasks == 1
    assert counting.taken() == [("1", "b")]


def test_a_space_that_was_emptied_is_counted_once_more(counting: Counting) -> None:
    counting.run()
    counting.work()
    counting.world.clock.advance(DAY / MICROSECONDS)
    counting.world.record(ItemRef("2", "a", "item"), None, deleted=True)
    assert counting.run().tasks == 3
    counting.work()
    assert [(size.store, size.items) for size in counting.statistics.latest()] == [("1", 1), ("1", 1), ("2", 0)]
    counting.world.clock.advance(DAY / MICROSECONDS)
    assert counting.run().tasks == 2


def test_a_space_of_a_store_that_is_gone_is_not_counted_for_a_size_of_the_future(counting: Counting) -> None:
    now = counting.world.clock.now()
    counting.statistics.add(SpaceSize("gone", "a", now - DAY, 0, 0))
    counting.statistics.add(SpaceSize("gone", "a", now + DAY, 5, 50))  # by a clock that was ahead
    counting.run()
    assert counting.taken() == [("1", "a"), ("1", "b"), ("2", "a")]


def test_many_spaces_are_put_in_turns_and_a_full_queue_ends_the_run(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_of_statistics, "GROUP", 1)
    first = counting.run(most=2)
    assert (first.outcome, first.tasks) == (LoopOutcome.QUEUE_FULL, 2)
    taken = counting.taken()
    assert counting.run(most=2).outcome == LoopOutcome.DONE
    assert sorted(taken + counting.taken()) == [("1", "a"), ("1", "b"), ("2", "a")]


@pytest.mark.parametrize(
    ("late", "outcome"),
    [(-1, LoopOutcome.NOT_DUE), (0, LoopOutcome.DONE), (10, LoopOutcome.DONE), (11, LoopOutcome.NOT_DUE)],
)
def test_the_first_loop_begins_within_ten_minutes_of_its_time_of_day(
    counting: Counting, late: int, outcome: LoopOutcome
) -> None:
    now = counting.world.clock.now()
    start = (now - late * MINUTE) % DAY
    run = counting.run(start=start)
    assert run.outcome == outcome
    if outcome == LoopOutcome.NOT_DUE:
        assert run.next_at is not None and run.next_at > now and run.next_at % DAY == start
        counting.world.clock.advance((run.next_at - now) / MICROSECONDS)
        assert counting.run(start=start).outcome == LoopOutcome.DONE


@pytest.mark.parametrize("frequency", [0, 1])
def test_a_loop_of_any_frequency_waits_for_its_first_time_of_day_and_one_that_is_off_does_not(
    counting: Counting, frequency: int
) -> None:
    now = counting.world.clock.now()
    run = counting.run(start=(now + MINUTE) % DAY, frequency=frequency)
    assert (run.outcome, run.next_at) == (LoopOutcome.NOT_DUE, now + MINUTE if frequency else None)


def test_loops_do_not_move_away_from_their_time_of_day() -> None:
    start, began = 2 * 60 * MINUTE, 5 * DAY + 2 * 60 * MINUTE + 7 * MINUTE
    assert next_start(began, DAY, start) == 6 * DAY + start
    assert next_start(began, 7 * DAY, start) == 12 * DAY + start
    assert next_start(began, 60 * MINUTE, start) == 5 * DAY + 3 * 60 * MINUTE
    assert next_start(began, DAY, None) == began + DAY


@pytest.mark.parametrize("start", [0, 50 * MINUTE, 23 * 60 * MINUTE + 59 * MINUTE])
def test_a_time_of_day_is_found_from_every_moment(start: int) -> None:
    for now in range(10 * DAY, 11 * DAY, 13 * MINUTE):
        due = first_start(now, start)
        assert due % DAY == start
        assert now - GRACE <= due < now - GRACE + DAY


def test_a_wrong_time_of_day_is_refused_by_the_settings(tmp_path: Path) -> None:
    from millstream.settings import SettingsError, load_settings

    given: Callable[[str], Any] = lambda text: {"mill": {"produce": {"statistics_start": text}}}  # noqa: E731
    settings, _ = load_settings({"data": str(tmp_path)} | given("23:59"))
    assert settings.mill.produce.statistics_start_time == (23 * 60 + 59) * MINUTE
    with pytest.raises(SettingsError, match=r"setting mill\.produce\.statistics_start"):
        load_settings({"data": str(tmp_path)} | given("24:00"))
