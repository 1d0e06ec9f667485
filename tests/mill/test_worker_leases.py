"""Leases of a worker manager: extended, lost, given back; and results that are written down before all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mill_workers import DEADLINE, Scripted, manager, task

from millstream.core.sql import SqlBusyError
from millstream.log import LogSpec
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ManifestEvent
from millstream.mill.task_processor import ProcessorRegistry, TaskResult
from millstream.mill.tasks import BitCheck, QueueName, Repair, Task, decode_task, encode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.task_settler import WorkTally
from millstream.queue import LogWorkQueue


def test_results_are_written_down_before_the_task_is_acknowledged(world: Any) -> None:
    world.queue("low").put([task("c")])
    follow_up: Task = Repair("s", "c")
    event = ManifestEvent("1", "s", "c", 1, "a" * 64)
    processor = Scripted(lambda _, __: TaskResult("done", events=(event,), tasks=((QueueName.REPAIR, follow_up),)))
    order: list[str] = []

    class Watched(ResultSink):
        def settle(self, results: Any) -> None:
            super().settle(results)
            order.append(f"settled with {world.queue('low').depth().leased} leased")

    sink = Watched(world.manifest, {"repair": world.queue("repair")})
    WorkerManager([world.queue("low")], ProcessorRegistry({BitCheck: processor}), sink, world.clock).run_until_drained()
    assert order[0] == "settled with 1 leased"
    assert world.manifest.get("1", "s", "c").sha256 == "a" * 64
    assert decode_task(world.queue("repair").lease(1, visibility=60)[0].body) == follow_up


def test_a_result_that_cannot_be_written_down_gives_its_task_back_to_the_queue(world: Any) -> None:
    class Broken(ResultSink):
        def settle(self, results: Any) -> None:
            raise OSError("the database is gone")

    world.queue("low").put([task("c")])
    worker = WorkerManager(
        [world.queue("low")], ProcessorRegistry({BitCheck: Scripted()}), Broken(world.manifest, {}), world.clock
    )
    with pytest.raises(OSError, match="the database is gone"):
        worker.run_until_drained()
    depth = world.queue("low").depth()
    assert (depth.ready, depth.leased) == (1, 0)


def test_b23_an_outcome_that_cannot_be_written_into_the_bit_log_is_found_again(world: Any) -> None:
    class Away(BitLog):
        away = 4

        def append(self, results: Any) -> None:
            self.away -= 1
            if self.away >= 0:
                raise SqlBusyError("the database is away")
            super().append(results)

    sha256 = world.put(ItemRef("1", "s", "c"))
    bit_log = Away(world.engine)
    world.queue("low").put([encode_task(BitCheck("1", "s", "c"))])
    checker = BitCheckProcessor(BitChecker(world.providers, world.manifest))
    registry, sink = ProcessorRegistry({BitCheck: checker}), ResultSink(world.manifest, {}, bit_log=bit_log)
    worker = WorkerManager([world.queue("low")], registry, sink, world.clock)
    for _ in range(4):
        with pytest.raises(SqlBusyError, match="away"):
            worker.run_until_drained()
    assert worker.run_until_drained().done == 1
    assert [result.content for result in bit_log.results("1", "s")] == [sha256]
    assert world.queue("low").depth().dead == 0


def test_an_interrupted_manager_gives_back_what_it_holds(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(20)])

    def interrupt(_: WorkTally) -> None:
        raise KeyboardInterrupt

    worker = WorkerManager(
        [world.queue("low")],
        ProcessorRegistry({BitCheck: Scripted()}),
        ResultSink(world.manifest, {}),
        world.clock,
        WorkerSettings(threads=1),
        on_progress=interrupt,
    )
    with pytest.raises(KeyboardInterrupt):
        worker.run_until_drained()
    depth = world.queue("low").depth()
    assert depth.leased == 0
    assert depth.ready + worker.tally.done == 20


def test_a_lease_is_extended_while_its_task_runs(world: Any) -> None:
    world.queue("low").put([task("slow")])
    extended = threading.Semaphore(0)

    class Watched(LogWorkQueue):
        def extend(self, leases: Any, *, visibility: float) -> Any:
            leases = super().extend(leases, visibility=visibility)
            extended.release()
            return leases

    def slow(_name: str, _attempt: int) -> None:
        for _ in range(5):
            world.clock.advance(31)
            assert extended.acquire(timeout=DEADLINE)

    world.queue("low").close()
    queue = Watched(world.log_store.log(LogSpec("low")), world.clock)
    processor = Scripted(slow)
    tally = WorkerManager(
        [queue],
        ProcessorRegistry({BitCheck: processor}),
        ResultSink(world.manifest, {}),
        world.clock,
        WorkerSettings(visibility=60.0),
    ).run_until_drained()
    assert (tally.done, tally.lost, processor.done) == (1, 0, [("slow", 1)])
    queue.close()


def test_the_leases_of_many_tasks_are_extended_together(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(8)])
    calls: list[int] = []
    extended = threading.Semaphore(0)

    class Watched(LogWorkQueue):
        def extend(self, leases: Any, *, visibility: float) -> Any:
            calls.append(len(leases))
            found = super().extend(leases, visibility=visibility)
            extended.release()
            return found

    def slow(name: str, _attempt: int) -> None:
        if name == "0":
            world.clock.advance(31)
            assert extended.acquire(timeout=DEADLINE)

    world.queue("low").close()
    queue = Watched(world.log_store.log(LogSpec("low")), world.clock)
    settings = WorkerSettings(threads=1, visibility=60.0, group=100)
    manager = WorkerManager(
        [queue], ProcessorRegistry({BitCheck: Scripted(slow)}), ResultSink(world.manifest, {}), world.clock, settings
    )
    tally = manager.run_until_drained()
    assert (tally.done, tally.lost) == (8, 0)
    assert calls == [8]
    queue.close()


def test_the_result_of_a_lost_lease_is_dropped(world: Any) -> None:
    world.queue("low").put([task("c")])
    event = ManifestEvent("1", "s", "c", 1, "a" * 64)
    taken_over = threading.Event()

    class Losing(LogWorkQueue):
        def extend(self, leases: Any, *, visibility: float) -> Any:
            try:
                return super().extend(leases, visibility=visibility)
            finally:
                taken_over.set()

    world.queue("low").close()
    queue = Losing(world.log_store.log(LogSpec("low")), world.clock)

    def slow(_name: str, attempt: int) -> TaskResult | None:
        if attempt > 1:
            return None
        world.clock.advance(120)  # past the lease: the queue gives the task to whoever asks
        assert taken_over.wait(DEADLINE)
        return TaskResult("too late", events=(event,))

    tally = WorkerManager(
        [queue],
        ProcessorRegistry({BitCheck: Scripted(slow)}),
        ResultSink(world.manifest, {}),
        world.clock,
        WorkerSettings(visibility=60),
    ).run_until_drained()
    assert (tally.done, tally.lost) == (1, 1)
    assert world.manifest.get("1", "s", "c") is None
    queue.close()


def test_after_a_stop_running_tasks_end_and_waiting_ones_go_back(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(10)])
    started, go_on = threading.Event(), threading.Event()

    def block(_name: str, _attempt: int) -> None:
        started.set()
        assert go_on.wait(DEADLINE)

    processor = Scripted(block)
    worker = manager(world, processor)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert started.wait(DEADLINE)
    worker.stop()
    go_on.set()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    depth = world.queue("low").depth()
    assert (depth.ready, depth.leased) == (10 - len(processor.done), 0)
    assert worker.tally.done == len(processor.done)
