"""The worker manager: priority, takes, and what it does when there is nothing to do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from mill_workers import DEADLINE, Scripted, manager, task

from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.leases import LeaseLostError
from millstream.core.sql import SqlBusyError
from millstream.log import FencedError, LogSpec, StorageFullError
from millstream.mill.manifest import ManifestEvent
from millstream.mill.task_processor import ProcessorRegistry, TaskResult
from millstream.mill.tasks import BitCheck
from millstream.mill.workers.manager import MOST_LEASES, RESERVE, WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.task_leaser import TAKE, TaskLeaser
from millstream.mill.workers.task_settler import WorkTally
from millstream.node.mill import worker_settings
from millstream.queue import LogWorkQueue
from millstream.settings import load_settings
from millstream.testing.waiting import until


def test_every_task_is_done_once_and_in_order(world: Any) -> None:
    names = [f"{n:03d}" for n in range(50)]
    world.queue("low").put([task(name) for name in names])
    processor = Scripted()
    tally = manager(world, processor).run_until_drained()
    assert [name for name, _ in processor.done] == names
    assert (tally.done, tally.failed, tally.dead) == (50, 0, 0)
    assert world.queue("low").depth().open == 0


def test_the_first_queue_is_emptied_before_the_second_is_touched(world: Any) -> None:
    world.queue("low").put([task(f"low {n}") for n in range(15)])
    world.queue("high").put([task(f"high {n}") for n in range(15)])
    processor = Scripted()
    manager(world, processor, "high", "low").run_until_drained()
    assert [name.split()[0] for name, _ in processor.done] == ["high"] * 15 + ["low"] * 15


def taken_in_order(world: Any, **more: Any) -> list[str]:
    world.queue("low").put([task(f"low {n}") for n in range(10)])
    world.queue("lowest").put([task(f"lowest {n}") for n in range(10)])
    world.queue("high").put([task(f"high {n}") for n in range(400)])
    processor = Scripted()
    manager(world, processor, "high", "low", "lowest", **more).run_until_drained()
    return [name.split()[0] for name, _ in processor.done]


def test_a_long_first_queue_does_not_keep_the_lower_ones_waiting_for_ever(world: Any) -> None:
    order = taken_in_order(world, fairness=10)
    assert (order[:90], len(order)) == (["high"] * 90, 420)
    for lower in ("low", "lowest"):
        assert order.index(lower) < 200
        assert order.count(lower) == 10


def test_without_fairness_the_order_is_strict(world: Any) -> None:
    assert taken_in_order(world, fairness=0) == ["high"] * 400 + ["low"] * 10 + ["lowest"] * 10


def test_a_queue_that_does_not_answer_for_a_while_interrupts_the_work_and_ends_it_not(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(30)])
    failures = {
        1: SqlBusyError("the database did not answer"),
        3: StorageFullError("there is no space left for the log"),
        4: sa.exc.TimeoutError("all connections of the pool are in use"),
        5: FencedError("another writer has taken over the log of the queue"),
        6: LeaseLostError("another process holds the lease"),
    }

    class Away(LogWorkQueue):
        calls = 0

        def lease(self, count: int, *, visibility: float) -> Any:
            Away.calls += 1
            if (failure := failures.pop(Away.calls, None)) is not None:
                raise failure
            return super().lease(count, visibility=visibility)

    class Hasty(VirtualClock):
        def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
            return super().wait(condition, seconds) if seconds is None else condition.wait(0.01)

    world.queue("low").close()
    world.clock = Hasty()
    queue = Away(world.log_store.log(LogSpec("low")), world.clock)
    done: list[str] = []

    def note(name: str, _attempt: int) -> None:
        done.append(name)
        if len(set(done)) == 30:
            worker.stop()

    worker = WorkerManager(
        [queue], ProcessorRegistry({BitCheck: Scripted(note)}), ResultSink(world.manifest, {}), world.clock
    )
    tally = worker.run()
    assert (tally.interrupted, set(done)) == (5, {str(n) for n in range(30)})
    assert queue.depth().leased == 0
    queue.close()


def test_a_database_that_is_locked_interrupts_the_work_and_ends_it_not(world: Any) -> None:
    def look(name: str, _attempt: int) -> TaskResult:
        return TaskResult("done", events=(ManifestEvent("1", "s", name, 1, "ff"),))

    world.queue("low").put([task("a")])
    workers = manager(world, Scripted(look), transient_first=1.0)
    locked = sa.create_engine(world.engine.url, connect_args={"timeout": 0})
    real, world.manifest.writer.engine = world.manifest.writer.engine, locked

    with world.engine.connect() as holder:
        holder.exec_driver_sql("BEGIN IMMEDIATE")
        thread = threading.Thread(target=workers.run)
        thread.start()
        until(lambda: workers.tally.interrupted > 0, "an interruption")
        holder.rollback()
    world.manifest.writer.engine = real
    until(lambda: world.clock.advance(1) or workers.tally.done == 1, "the task done")
    workers.stop()
    thread.join()
    locked.dispose()
    assert world.manifest.get("1", "s", "a") is not None


def test_a_task_that_no_thread_began_was_not_tried(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(30)])
    processor = Scripted(lambda *_: worker.stop())
    worker = manager(world, processor)
    worker.run_until_drained()
    leases = world.queue("low").lease(30, visibility=60.0)
    assert len(processor.done) + len(leases) == 30
    assert {lease.attempts for lease in leases} == {1}


def test_results_that_cannot_be_written_are_no_attempts_of_their_tasks(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(5)])
    processor = Scripted()

    class Away(ResultSink):
        def settle(self, results: Any) -> Any:
            raise SqlBusyError("the database did not answer")

    for _ in range(MOST_LEASES + 1):
        registry = ProcessorRegistry({BitCheck: processor})
        with pytest.raises(SqlBusyError):
            WorkerManager([world.queue("low")], registry, Away(world.manifest, {}), world.clock).run_until_drained()
    tally = manager(world, processor).run_until_drained()
    assert (tally.done, tally.dead) == (5, 0)
    assert processor.done[-1][1] == 1


def test_managers_that_share_a_queue_do_each_task_once(world: Any) -> None:
    world.clock = SystemClock()
    world.queue("shared").put([task(str(n)) for n in range(300)])
    processor = Scripted()
    managers = [manager(world, processor, "shared", threads=2) for _ in range(3)]
    threads = [threading.Thread(target=one.run_until_drained) for one in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(processor.done) == sorted((str(n), 1) for n in range(300))
    assert sum(one.tally.done for one in managers) == 300


def test_tasks_that_end_at_once_are_settled_before_ever_more_are_taken(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(600)])
    held: list[int] = []
    ended = threading.Semaphore(0)
    processor = Scripted(lambda *_: ended.release())

    class EndsBeforeTheNextTake(LogWorkQueue):
        given = 0

        def lease(self, count: int, *, visibility: float) -> Any:
            assert all(ended.acquire(timeout=DEADLINE) for _ in range(self.given))
            held.append(self.depth().leased)
            leases = super().lease(count, visibility=visibility)
            self.given = len(leases)
            return leases

    world.queue("low").close()
    queue = EndsBeforeTheNextTake(world.log_store.log(LogSpec("low")), world.clock)
    settings = WorkerSettings(threads=4, group=16)
    worker = WorkerManager(
        [queue], ProcessorRegistry({BitCheck: processor}), ResultSink(world.manifest, {}), world.clock, settings
    )
    assert worker.run_until_drained().done == 600
    assert max(held) < RESERVE * 4 + 16
    queue.close()


def test_at_most_ten_tasks_are_taken_at_a_time(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(35)])
    takes: list[int] = []

    class Watched(LogWorkQueue):
        def lease(self, count: int, *, visibility: float) -> Any:
            takes.append(count)
            return super().lease(count, visibility=visibility)

    world.queue("low").close()
    queue = Watched(world.log_store.log(LogSpec("low")), world.clock)
    worker = WorkerManager(
        [queue], ProcessorRegistry({BitCheck: Scripted()}), ResultSink(world.manifest, {}), world.clock
    )
    assert worker.run_until_drained().done == 35
    assert set(takes) == {TAKE}
    queue.close()


def test_an_idle_manager_waits_one_minute_and_then_twice_as_long_up_to_eight(world: Any) -> None:
    waits: list[float] = []
    holder: list[WorkerManager] = []

    class Watched(type(world.clock)):  # type: ignore[misc]
        def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
            waits.append(seconds or 0)
            if len(waits) == 5:
                holder[0].stop()
            return False

    world.clock = Watched()
    holder.append(manager(world, Scripted()))
    holder[0].run()
    assert waits == [60, 120, 240, 480, 480]


def test_groups_take_about_four_seconds(world: Any) -> None:
    queue = world.queue("low")
    queue.put([task(str(n)) for n in range(1_000)])
    leaser = TaskLeaser([queue], ProcessorRegistry({}), world.clock, visibility=60, fairness=0)
    sizes = []
    for count, together, seconds in (
        (10, True, 0.1),
        (40, True, 2.0),
        (80, True, 5.0),
        (5, True, 0.1),
        (64, True, 0.0),
        (256, True, 99.0),
        (10, True, 0.5),
        (10, False, 0.1),
    ):
        leaser.resize_groups(queue, count, together=together, seconds=seconds)
        sizes.append(leaser.group_size(queue))
    assert sizes == [40, 80, 64, 64, 256, 10, 40, 10]


def test_a_busy_worker_asks_a_queue_that_stays_empty_ever_less_often(world: Any, monkeypatch: Any) -> None:
    high, low = world.queue("high"), world.queue("low")
    low.put([task(str(n)) for n in range(1_000)])
    leaser = TaskLeaser([high, low], ProcessorRegistry({}), world.clock, visibility=60, fairness=0)
    began, asked, lease = world.clock.monotonic(), list[float](), high.lease

    def noted(count: int, *, visibility: float) -> Any:
        asked.append(world.clock.monotonic() - began)
        return lease(count, visibility=visibility)

    monkeypatch.setattr(high, "lease", noted)
    for _ in range(60):
        leaser.lease(busy=True)
        world.clock.advance(0.5)
    assert asked == [0, 2, 6, 14, 22]
    high.put([task("urgent")])
    world.clock.advance(0.5)
    assert leaser.lease(busy=True)[0].queue is high
    leaser.lease(busy=True)
    assert asked[-2:] == [30.5, 30.5], "it was not empty"


def test_a_busy_worker_that_is_told_of_tasks_asks_all_queues_at_once(world: Any) -> None:
    high, low = world.queue("high"), world.queue("low")
    low.put([task(str(n)) for n in range(100)])
    leaser = TaskLeaser([high, low], ProcessorRegistry({}), world.clock, visibility=60, fairness=0)
    assert leaser.lease(busy=True)[0].queue is low
    high.put([task("urgent")])
    assert leaser.lease(busy=True)[0].queue is low
    leaser.ask_all()
    assert leaser.lease(busy=True)[0].queue is high


def test_a_busy_worker_asks_an_empty_queue_after_two_seconds(world: Any) -> None:
    high, low = world.queue("high"), world.queue("low")
    low.put([task(str(n)) for n in range(100)])
    leaser = TaskLeaser([high, low], ProcessorRegistry({}), world.clock, visibility=60, fairness=0)

    def first(*, busy: bool) -> str:
        return leaser.lease(busy=busy)[0].queue.name

    assert first(busy=False) == low.name
    high.put([task("urgent"), task("more urgent")])
    assert first(busy=True) == low.name
    world.clock.advance(2.0)
    assert first(busy=True) == high.name
    assert first(busy=False) == low.name
    high.put([task("urgent again")])
    assert first(busy=False) == high.name


def test_workers_of_a_queue_that_other_processes_fill_look_at_it_every_few_seconds(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text('[queue]\nbroker = "amqp://127.0.0.1/%2f"\n')
    shared = worker_settings(load_settings({"data": str(tmp_path)})[0])
    alone = worker_settings(load_settings({"data": str(tmp_path / "alone")})[0])
    assert (shared.idle_first, shared.idle_longest) == (1, 10)
    assert (alone.idle_first, alone.idle_longest) == (60, 480)
    assert (shared.threads, shared.visibility) == (alone.threads, alone.visibility)


def test_progress_is_told_after_every_group(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(30)])
    told: list[int] = []
    worker = WorkerManager(
        [world.queue("low")],
        ProcessorRegistry({BitCheck: Scripted()}),
        ResultSink(world.manifest, {}),
        world.clock,
        on_progress=lambda tally: told.append(tally.done),
    )
    worker.run_until_drained()
    assert told == sorted(told) and told[-1] == 30


def test_a_tally_is_plain_data() -> None:
    others = dict.fromkeys(("failed", "dead", "waiting", "lost", "interrupted"), 0)
    assert msgspec.to_builtins(WorkTally(done=1)) == {"done": 1, **others}
