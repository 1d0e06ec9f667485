"""Periodic tasks: one instance at a time, fenced, on the database's time."""

from __future__ import annotations

from typing import Any

from millstream.anchoring.registry import PeriodicTask, TaskManager
from support.statement_counts import statements_of


class Chore:
    def __init__(self, fleet: Any, name: str, interval: float = 10.0) -> None:
        self.runs = 0
        self.during: Any = lambda: None
        self.manager = TaskManager(fleet.database, name, [PeriodicTask("chore", interval, self.run)], lease_seconds=30)

    def run(self) -> None:
        self.runs += 1
        self.during()


def test_a_task_runs_at_once_and_then_after_each_interval(sqlite_fleet: Any) -> None:
    chore = Chore(sqlite_fleet, "one")
    assert chore.manager.run_due() == ["chore"]
    assert chore.manager.run_due() == []
    sqlite_fleet.clock.advance(10.0)
    assert chore.manager.run_due() == ["chore"]
    assert chore.runs == 2


def test_a_task_that_is_not_due_is_only_read(sqlite_fleet: Any) -> None:
    chore = Chore(sqlite_fleet, "one")
    chore.manager.run_due()
    with statements_of(sqlite_fleet.engine) as statements:
        assert chore.manager.run_due() == []
    assert [text.split()[0] for text in statements] == ["SELECT"]


def test_an_instance_without_work_asks_the_database_once(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    with statements_of(sqlite_fleet.engine) as statements:
        registry.work_once()
    assert len(statements) == 1


def test_of_several_instances_one_runs_it(fleet: Any) -> None:
    one, two = Chore(fleet, "one"), Chore(fleet, "two")
    one.manager.run_due()
    two.manager.run_due()
    assert (one.runs, two.runs) == (1, 0)


def test_while_it_runs_no_other_instance_starts_it_however_long_it_takes(sqlite_fleet: Any) -> None:
    one, two = Chore(sqlite_fleet, "one"), Chore(sqlite_fleet, "two")

    def long_work() -> None:
        for _ in range(10):
            sqlite_fleet.clock.advance(20.0)
            one.manager.renew()
            two.manager.run_due()

    one.during = long_work
    one.manager.run_due()
    assert two.runs == 0


def test_a_task_whose_instance_died_is_taken_over_and_the_dead_one_writes_nothing_more(sqlite_fleet: Any) -> None:
    one, two = Chore(sqlite_fleet, "one"), Chore(sqlite_fleet, "two")

    def paused() -> None:
        sqlite_fleet.clock.advance(31.0)
        two.during = lambda: sqlite_fleet.clock.advance(5.0)
        two.manager.run_due()

    one.during = paused
    one.manager.run_due()
    assert (one.runs, two.runs) == (1, 1)
    sqlite_fleet.clock.advance(9.0)
    assert two.manager.run_due() == [], "the interval counts from the end of the newer run"
    sqlite_fleet.clock.advance(1.0)
    assert two.manager.run_due() == ["chore"]


def test_a_task_that_fails_is_due_again_after_its_interval(sqlite_fleet: Any, caplog: Any) -> None:
    chore = Chore(sqlite_fleet, "one")

    def fails() -> None:
        raise ValueError("no luck")

    chore.during = fails
    assert chore.manager.run_due() == ["chore"]
    assert "the task chore failed" in caplog.text
    assert chore.manager.run_due() == []
    sqlite_fleet.clock.advance(10.0)
    chore.manager.run_due()
    assert chore.runs == 2
