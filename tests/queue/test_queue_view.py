"""Looking at a queue while somebody else works on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import Log, StorageUnavailableError, open_store
from millstream.queue import LogWorkQueue, QueueView, queue_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        yield store.log(queue_log("tasks"))


def test_a_view_follows_a_queue_that_another_has_across_its_snapshots(log: Log) -> None:
    clock = VirtualClock()
    with LogWorkQueue(log, clock, snapshot_after=7) as queue:
        view = QueueView(log, clock)
        assert view.depth() == queue.depth()
        for round_ in range(12):
            queue.put([b"a", b"b"], delay=round_ % 2 * 60.0)
            lease, *_ = queue.lease(1, visibility=5)
            queue.dead_letter(lease, cause=f"no store {round_}") if round_ % 3 else queue.ack([lease])
            clock.advance(1)
            assert view.depth() == queue.depth()
            assert view.dead(limit=99) == queue.dead(limit=99)
        queue.redrive([view.dead(limit=1)[0].task_id])
        queue.discard([view.dead(limit=1)[0].task_id])
        assert view.dead(limit=99) == queue.dead(limit=99)


def test_dead_tasks_that_died_alike_are_one_group(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"x"] * 6)
        for number, lease in enumerate(queue.lease(6, visibility=5)):
            queue.dead_letter(lease, cause=f"no store '{number}' is there" if number else "disk full")
        view = QueueView(log, VirtualClock())
        first, second = view.causes()
        assert (first.cause, first.count, second.cause, second.count) == ("no store … is there", 5, "disk full", 1)
        assert first.example.startswith("no store '") and first.first_died_at <= first.last_died_at
        assert [task.task_id for task in view.dead(limit=2, after=2, cause=first.cause)] == [3, 4]
        assert [task.task_id for task in view.dead(limit=9, cause=second.cause)] == [1]


def test_a_view_whose_reading_broke_off_is_right_afterwards(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    read = log.read

    def breaking_off(*ids: Any, **options: Any) -> Iterator[Any]:
        yield from read(*ids, **options)
        raise StorageUnavailableError("the server went away")

    with LogWorkQueue(log, clock) as queue:
        view = QueueView(log, clock)
        assert view.depth() == queue.depth()
        queue.put([b"a", b"b"])
        queue.ack(queue.lease(1, visibility=5))
        with monkeypatch.context() as patch, pytest.raises(StorageUnavailableError):
            patch.setattr(log, "read", breaking_off)
            view.depth()
        assert view.depth() == queue.depth()


def test_a_view_of_a_log_that_lost_messages_begins_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"a"])
        queue.put([b"b", b"c"])
        view = QueueView(log, VirtualClock())
        assert view.depth().open == 3
        monkeypatch.setattr(Log, "last_id", property(lambda _log: 1))
        assert view.depth().open == 1
