"""The worker manager: priority, attempts, dead letters, leases, draining; and a worker that is killed in mid-task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine

from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.sql import SqlBusyError
from millstream.log import LogSpec, open_store
from millstream.mill.checker import BitCheckProcessor, Checker
from millstream.mill.errors import NoAnswerError
from millstream.mill.manifest import Event, Manifest
from millstream.mill.place import Place
from millstream.mill.processor import Registry, Result, Sink
from millstream.mill.settling import FAILURES, Tally
from millstream.mill.tasks import BitCheck, Duplicate, QueueName, Repair, Task, decode_task, encode_task
from millstream.mill.workers import MOST_LEASES, RESERVE, TAKE, WorkerManager, WorkerSettings
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore

DEADLINE = 30


class Scripted:
    """A processor that does what *script* says for each content id and remembers what it did."""

    def __init__(self, script: Callable[[str, int], Result | None] | None = None) -> None:
        self._script = script or (lambda _, __: None)
        self.done: list[tuple[str, int]] = []

    def process(self, task: Any, attempt: int) -> Result:
        self.done.append((task.content_id, attempt))
        return self._script(task.content_id, attempt) or Result("done")


def task(name: str) -> bytes:
    return encode_task(BitCheck("1", "s", name))


def manager(world: Any, processor: Any, *queues: str, **more: Any) -> WorkerManager:
    names = queues or ("low",)
    settings = WorkerSettings(**({"threads": 1, "visibility": 60.0} | more))
    every = {name.value: world.queue(name.value) for name in QueueName}
    registry = Registry({BitCheck: processor})
    return WorkerManager(
        [world.queue(name) for name in names], registry, Sink(world.manifest, every), world.clock, settings
    )


def fails(_name: str, _attempt: int) -> Result | None:
    raise ValueError("it never works")


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

    class Away(LogWorkQueue):
        calls = 0

        def lease(self, count: int, *, visibility: float) -> Any:
            Away.calls += 1
            if Away.calls in (1, 3, 4):
                raise SqlBusyError("the database did not answer")
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

    worker = WorkerManager([queue], Registry({BitCheck: Scripted(note)}), Sink(world.manifest, {}), world.clock)
    tally = worker.run()
    assert (tally.interrupted, set(done)) == (3, {str(n) for n in range(30)})
    assert queue.depth().leased == 0
    queue.close()


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
    processor = Scripted()

    class EndsBeforeTheNextTake(LogWorkQueue):
        given = 0

        def lease(self, count: int, *, visibility: float) -> Any:
            deadline = SystemClock().monotonic() + DEADLINE
            while len(processor.done) < self.given and SystemClock().monotonic() < deadline:
                SystemClock().sleep(0.0005)
            held.append(self.depth().leased)
            leases = super().lease(count, visibility=visibility)
            self.given += len(leases)
            return leases

    world.queue("low").close()
    queue = EndsBeforeTheNextTake(world.log_store.log(LogSpec("low")), world.clock)
    settings = WorkerSettings(threads=4, group=16)
    worker = WorkerManager([queue], Registry({BitCheck: processor}), Sink(world.manifest, {}), world.clock, settings)
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
    worker = WorkerManager([queue], Registry({BitCheck: Scripted()}), Sink(world.manifest, {}), world.clock)
    assert worker.run_until_drained().done == 35
    assert set(takes) == {TAKE}
    queue.close()


def test_p6_a_task_that_fails_three_times_is_dead_with_the_error_as_its_cause(world: Any) -> None:
    world.queue("low").put([task("bad"), task("good")])
    processor = Scripted(lambda name, attempt: fails(name, attempt) if name == "bad" else None)
    tally = manager(world, processor).run_until_drained()
    assert processor.done == [("bad", 1), ("good", 1), ("bad", 2), ("bad", 3)]
    assert (tally.done, tally.failed, tally.dead) == (1, FAILURES - 1, 1)
    (dead,) = world.queue("low").dead()
    assert (dead.body, dead.cause) == (task("bad"), "ValueError: it never works")


@pytest.mark.parametrize("body", [b"", b"not json", b'{"type":"unknown"}', b'{"type":"duplicate"}', b"[" * 70_000])
def test_p6_a_task_that_cannot_be_read_is_dead_with_the_reason(world: Any, body: bytes) -> None:
    world.queue("low").put([body])
    manager(world, Scripted()).run_until_drained()
    assert "TaskError" in world.queue("low").dead()[0].cause


def test_d24_a_task_that_no_processor_takes_is_dead_with_the_reason(world: Any) -> None:
    world.queue("low").put([encode_task(Duplicate("1", "2", "s", "c"))])
    manager(world, Scripted()).run_until_drained()
    assert "no processor is registered for tasks of kind 'Duplicate'" in world.queue("low").dead()[0].cause


def test_a_task_that_fails_for_a_transient_reason_waits_longer_each_time(world: Any) -> None:
    def no_answer(_name: str, _attempt: int) -> Result | None:
        started.append(world.clock.monotonic())
        raise NoAnswerError

    started: list[float] = []
    world.queue("low").put([task("c")])
    tally = manager(world, Scripted(no_answer), transient_first=10.0).run_until_drained()
    first, second, third = started
    assert (10 <= second - first < 12, 60 <= third - second < 62) == (True, True)
    assert (tally.failed, tally.dead) == (2, 1)


def test_a_redriven_task_gets_its_attempts_anew(world: Any) -> None:
    broken = [True]
    processor = Scripted(lambda name, attempt: fails(name, attempt) if broken[0] else None)
    world.queue("low").put([task("c")])
    manager(world, processor).run_until_drained()
    broken[0] = False
    world.queue("low").redrive()
    assert manager(world, processor).run_until_drained().done == 1
    assert processor.done[-1] == ("c", 1)


def test_a_task_leased_again_and_again_without_an_end_is_set_aside_unread(world: Any) -> None:
    world.queue("low").put([task("c")])
    for _ in range(MOST_LEASES):
        world.queue("low").lease(1, visibility=1)
        world.clock.advance(2)
    processor = Scripted()
    manager(world, processor).run_until_drained()
    assert processor.done == []
    assert "bring its workers down" in world.queue("low").dead()[0].cause


def test_a_task_that_asks_to_be_done_again_waits_on_the_queue_and_not_in_a_thread(world: Any) -> None:
    start = world.clock.monotonic()
    world.queue("low").put([task("later"), task("now")])
    processor = Scripted(lambda name, attempt: Result("wait", again=300.0) if (name, attempt) == ("later", 1) else None)
    tally = manager(world, processor).run_until_drained()
    assert processor.done == [("later", 1), ("now", 1), ("later", 2)]
    assert (tally.done, tally.waiting) == (2, 1)
    assert world.clock.monotonic() - start >= 300


def test_a_bit_check_that_is_not_settled_is_tried_three_times_with_a_wait_before_the_last(world: Any) -> None:
    world.stores["1"].create_space("s")
    world.record(Place("1", "s", "c"), "a" * 64)
    world.queue("bit-integrity").put([task("c")])
    start = world.clock.monotonic()
    processor = BitCheckProcessor(Checker(world.providers, world.manifest))
    tally = manager(world, processor, "bit-integrity").run_until_drained()
    assert (tally.done, tally.waiting, tally.dead) == (1, 2, 0)
    assert world.clock.monotonic() - start >= 300
    assert world.manifest.get("1", "s", "c").outcome == "FAILURE"
    (error,) = world.queue("bit-error").lease(10, visibility=60)
    assert decode_task(error.body).row == "B18"  # type: ignore[union-attr]


def test_results_are_written_down_before_the_task_is_acknowledged(world: Any) -> None:
    world.queue("low").put([task("c")])
    follow_up: Task = Repair("s", "c")
    event = Event("1", "s", "c", 1, "a" * 64)
    processor = Scripted(lambda _, __: Result("done", events=(event,), tasks=((QueueName.REPAIR, follow_up),)))
    order: list[str] = []

    class Watched(Sink):
        def settle(self, results: Any) -> None:
            super().settle(results)
            order.append(f"settled with {world.queue('low').depth().leased} leased")

    sink = Watched(world.manifest, {"repair": world.queue("repair")})
    WorkerManager([world.queue("low")], Registry({BitCheck: processor}), sink, world.clock).run_until_drained()
    assert order[0] == "settled with 1 leased"
    assert world.manifest.get("1", "s", "c").sha256 == "a" * 64
    assert decode_task(world.queue("repair").lease(1, visibility=60)[0].body) == follow_up


def test_a_result_that_cannot_be_written_down_gives_its_task_back_to_the_queue(world: Any) -> None:
    class Broken(Sink):
        def settle(self, results: Any) -> None:
            raise OSError("the database is gone")

    world.queue("low").put([task("c")])
    worker = WorkerManager(
        [world.queue("low")], Registry({BitCheck: Scripted()}), Broken(world.manifest, {}), world.clock
    )
    with pytest.raises(OSError, match="the database is gone"):
        worker.run_until_drained()
    depth = world.queue("low").depth()
    assert (depth.ready, depth.leased) == (1, 0)


def test_an_interrupted_manager_gives_back_what_it_holds(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(20)])

    def interrupt(_: Tally) -> None:
        raise KeyboardInterrupt

    worker = WorkerManager(
        [world.queue("low")],
        Registry({BitCheck: Scripted()}),
        Sink(world.manifest, {}),
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
        def extend(self, lease: Any, *, visibility: float) -> Any:
            lease = super().extend(lease, visibility=visibility)
            extended.release()
            return lease

    def slow(_name: str, _attempt: int) -> None:
        for _ in range(5):
            world.clock.advance(31)
            assert extended.acquire(timeout=DEADLINE)

    world.queue("low").close()
    queue = Watched(world.log_store.log(LogSpec("low")), world.clock)
    processor = Scripted(slow)
    tally = WorkerManager(
        [queue], Registry({BitCheck: processor}), Sink(world.manifest, {}), world.clock, WorkerSettings(visibility=60.0)
    ).run_until_drained()
    assert (tally.done, tally.lost, processor.done) == (1, 0, [("slow", 1)])
    queue.close()


def test_the_result_of_a_lost_lease_is_dropped(world: Any) -> None:
    world.queue("low").put([task("c")])
    event = Event("1", "s", "c", 1, "a" * 64)
    taken_over = threading.Event()

    class Losing(LogWorkQueue):
        def extend(self, lease: Any, *, visibility: float) -> Any:
            try:
                return super().extend(lease, visibility=visibility)
            finally:
                taken_over.set()

    world.queue("low").close()
    queue = Losing(world.log_store.log(LogSpec("low")), world.clock)

    def slow(_name: str, attempt: int) -> Result | None:
        if attempt > 1:
            return None
        world.clock.advance(120)  # past the lease: the queue gives the task to whoever asks
        assert taken_over.wait(DEADLINE)
        return Result("too late", events=(event,))

    tally = WorkerManager(
        [queue],
        Registry({BitCheck: Scripted(slow)}),
        Sink(world.manifest, {}),
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


def test_progress_is_told_after_every_group(world: Any) -> None:
    world.queue("low").put([task(str(n)) for n in range(30)])
    told: list[int] = []
    worker = WorkerManager(
        [world.queue("low")],
        Registry({BitCheck: Scripted()}),
        Sink(world.manifest, {}),
        world.clock,
        on_progress=lambda tally: told.append(tally.done),
    )
    worker.run_until_drained()
    assert told == sorted(told) and told[-1] == 30


def test_a_tally_is_plain_data() -> None:
    others = dict.fromkeys(("failed", "dead", "waiting", "lost", "interrupted"), 0)
    assert msgspec.to_builtins(Tally(done=1)) == {"done": 1, **others}


WORKER = """
import sys
import sqlalchemy as sa
from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.sql import SqlBusyError
from millstream.log import LogSpec, open_store
from millstream.mill.duplicator import DuplicationProcessor
from millstream.mill.errors import NoAnswerError
from millstream.mill.manifest import Manifest
from millstream.mill.processor import Registry, Sink
from millstream.mill.providers import Providers
from millstream.mill.tasks import Duplicate
from millstream.mill.workers import WorkerManager, WorkerSettings
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore

folder = sys.argv[1]
clock = SystemClock()
providers = Providers({name: LocalStore(f"{folder}/{name}") for name in "12"}, clock)
manifest = Manifest(sa.create_engine(f"sqlite:///{folder}/node.db"))
with open_store(f"sqlite:///{folder}/log.db", clock=clock) as store:
    queue = LogWorkQueue(store.log(LogSpec("low")), clock)

    def tell(tally):
        print(tally.done, flush=True)

    registry = Registry({Duplicate: DuplicationProcessor(providers, manifest)})
    settings = WorkerSettings(threads=2, visibility=1.0)
    WorkerManager([queue], registry, Sink(manifest, {}), clock, settings, on_progress=tell).run_until_drained()
    queue.close()
"""


def test_p6_a_worker_killed_in_mid_task_loses_nothing(new_world: Callable[..., Any], tmp_path: Path, size: str) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    count, kills = (2000, 20) if size == "long" else (150, 2)
    for number in range(count):
        world.put(Place("1", "s", f"item {number}"), f"body {number}".encode() * 50)
    clock = SystemClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), clock)
        queue.put([encode_task(Duplicate("1", "2", "s", f"item {number}")) for number in range(count)])
        queue.put([encode_task(Duplicate("1", "9", "s", "item 0"))])
        queue.close()
    for _ in range(kills):
        killed_at_work(tmp_path)
    subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], check=True, capture_output=True, timeout=120)
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), clock)
        depth = queue.depth()
        assert (depth.open, depth.dead) == (0, 1)
        assert "no store '9' is configured" in queue.dead()[0].cause
        queue.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    assert Manifest(engine).count("2", "s") == count
    engine.dispose()
    for number in range(count):
        assert world.read(Place("2", "s", f"item {number}")) == f"body {number}".encode() * 50


def killed_at_work(folder: Path) -> None:
    """Start a worker and kill it as soon as it has settled something."""
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(DEADLINE)
    child.stdout.close()
