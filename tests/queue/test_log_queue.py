"""What only a queue on a log can get wrong: recovery, snapshots, ownership, crashes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.message import Message
from millstream.log import (
    FencedError,
    Log,
    LogError,
    LogInputError,
    LogSpec,
    LogStore,
    StorageFullError,
    WriterBusyError,
    WriterFailedError,
    open_store,
)
from millstream.log.backends.memory import MemoryBackend
from millstream.queue import DamagedQueueError, LeaseLostError, LogWorkQueue, recover
from millstream.queue.snapshot import POINTER
from millstream.queue.state import QueueState
from suite.sizes import sized
from support.faulty_log import FaultyBackend


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        yield store.log(LogSpec("tasks"))


def test_a_put_of_a_thousand_tasks_is_one_commit(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        assert list(queue.put([b"task"] * 1000)) == list(range(1, 1001))
        assert log.info().blocks == 1


def test_a_lease_and_an_ack_of_ten_are_one_message_each(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"task"] * 10)
        queue.ack(queue.lease(10, visibility=30))
        assert log.last_id == 12


def test_the_history_can_be_read_in_the_log(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"task"])
        queue.dead_letter(queue.lease(1, visibility=30)[0], cause="drill")
        queue.redrive()
    keys = [message.key for batch in log.read() for message in batch]
    assert keys == ["put", "lease", "dead-letter", "redrive"]


def test_p10_a_queue_that_is_open_elsewhere_names_its_holder(log: Log) -> None:
    with LogWorkQueue(log), pytest.raises(WriterBusyError, match=r"pid|process"):
        LogWorkQueue(log)
    LogWorkQueue(log).close()


def test_tasks_of_workers_that_are_gone_are_taken_back_at_once(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"a", b"b"])
        stale = queue.lease(2, visibility=1200)
    with LogWorkQueue(log) as queue:
        assert queue.depth().leased == 2
        assert queue.reclaim() == 2
        assert queue.reclaim() == 0
        with pytest.raises(LeaseLostError, match=r"^2 leases have expired .* results of the tasks 1, 2$"):
            queue.ack(stale)
        again = queue.lease(2, visibility=1200)
        assert [(lease.body, lease.attempts) for lease in again] == [(b"a", 2), (b"b", 2)]


def test_opening_reads_from_the_last_snapshot_only(log: Log) -> None:
    clock = VirtualClock()
    with LogWorkQueue(log, clock, snapshot_after=100) as queue:
        queue.put([b"task"] * 200)
        while leases := queue.lease(2, visibility=30):
            queue.ack(leases[:-1] if leases[0].task_id == 1 else leases)
    pointer = log.pointer(POINTER)
    assert pointer > 250
    with LogWorkQueue(log, clock, snapshot_after=100) as queue:
        assert queue.depth().leased == 1
        assert queue.depth().open == 1
        assert log.pointer(POINTER) == pointer


def test_a_large_snapshot_is_kept_in_parts(log: Log) -> None:
    bodies = [bytes([number]) * 200_000 for number in range(10)]
    with LogWorkQueue(log, snapshot_after=12) as queue:
        queue.put(bodies)
        for lease in queue.lease(3, visibility=0.000001):
            queue.put([lease.body])
        for _ in range(20):
            queue.lease(1, visibility=0.000001)
        before = queue.depth().open
    parts = [message for batch in log.read() for message in batch if message.key == "snapshot"]
    assert len(parts) > 2
    with LogWorkQueue(log) as queue:
        assert queue.depth().open == before == 13
        leases = queue.lease(13, visibility=30)
        assert Counter(lease.body for lease in leases) == Counter([*bodies, *bodies[:3]])


def test_a_snapshot_that_fails_is_not_tried_at_each_call(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def too_large(state: QueueState) -> list[Message]:
        tries.append(len(state))
        raise LogInputError("a task is too large")

    monkeypatch.setattr("millstream.queue.log_queue.snapshot_messages", too_large)
    with LogWorkQueue(log, snapshot_after=10) as queue:
        queue.put([b"task"])
        leases = queue.lease(1, visibility=30)
        for _ in range(28):
            queue.extend(leases, visibility=30)
    assert len(tries) == 3


def test_a_snapshot_that_takes_long_does_not_set_the_pointer_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pointer = log.set_pointer
    with LogWorkQueue(log, snapshot_after=4) as queue:

        def work(times: int) -> None:
            for _ in range(times):
                queue.extend(leases, visibility=30)

        def slowly(consumer: str, last_id: int) -> None:
            monkeypatch.undo()
            work(18)
            set_pointer(consumer, last_id)

        monkeypatch.setattr(log, "set_pointer", slowly)
        queue.put([b"task"])
        leases = queue.lease(1, visibility=30)
        work(2)
        assert log.pointer(POINTER) > 0
    with LogWorkQueue(log) as queue:
        assert queue.depth().open == 1


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("lease", b'{"did":"lease","ids":[7],"until":1}'),
        ("ack", b'{"did":"ack","ids":[7]}'),
        ("ack", b'{"did":"ack"}'),
        ("", b"temp 21.5"),
    ],
)
def test_a_log_that_is_no_queues_is_refused(log: Log, key: str, body: bytes) -> None:
    with log.writer() as writer:
        writer.append([Message(body, key=key)])
    with pytest.raises(DamagedQueueError, match="message 1"):
        LogWorkQueue(log)
    log.writer().close()


def test_a_snapshot_that_is_not_where_it_should_be_is_refused(log: Log) -> None:
    with LogWorkQueue(log) as queue:
        queue.put([b"a", b"b"])
    log.set_pointer(POINTER, 1)
    with pytest.raises(DamagedQueueError, match="snapshot"):
        LogWorkQueue(log)


class Told:
    """What a killed worker said."""

    def __init__(self) -> None:
        self.put: set[int] = set()
        self.attempts: Counter[int] = Counter()
        self.settled: dict[int, str] = {}
        self.settling: int | None = None

    def hear(self, line: str) -> None:
        what, *numbers = line.split()
        if what == "put":
            self.put.update(map(int, numbers))
        elif what == "leased":
            task, attempts = map(int, numbers)
            assert task not in self.settled, "a settled task came back"
            self.attempts[task] += 1
            assert attempts >= self.attempts[task]
        elif what in ("acking", "burying"):
            self.settling = int(numbers[0])
        else:
            self.settling = None
            self.settled[int(numbers[0])] = what


def work_and_kill(url: str, seed: int, told: Told) -> None:
    """Let a worker take a random number of steps, and kill it in the midst of the next one."""
    draw = random.Random(seed)
    script = Path(__file__).with_name("crash_worker.py")
    command = [sys.executable, str(script), url, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        steps = draw.randrange(2, 120)
        killer = threading.Timer(draw.random() * 0.003, child.send_signal, (signal.SIGKILL,))
        for number, line in enumerate(child.stdout):
            if line.endswith("\n"):
                told.hear(line)
            if number == steps:
                killer.start()
        assert child.wait() == -signal.SIGKILL


@pytest.mark.smoke
@pytest.mark.crash
@pytest.mark.long
def test_p6_after_kill_9_settled_tasks_stay_settled_and_all_others_come_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    told = Told()
    for seed in range(sized(ci=5, long=40)):
        work_and_kill(url, seed, told)
        with open_store(url) as store, LogWorkQueue(store.log(LogSpec("tasks")), snapshot_after=50) as queue:
            dead = {task.task_id for task in queue.dead(limit=10**6)}
            assert {task for task, how in told.settled.items() if how == "dead"} <= dead
            assert dead <= told.settled.keys() | {told.settling}
            open_tasks = told.put - told.settled.keys() - {told.settling}
            assert queue.depth().open >= len(open_tasks)
        with open_store(url) as store:
            told.put = check_leases(store.log(LogSpec("tasks")), told, open_tasks)
        told.settling = None
        told.settled.update(dict.fromkeys(dead, "dead"))


def check_leases(log: Log, told: Told, open_tasks: set[int]) -> set[int]:
    """Every open task can be leased once its old lease has run out, with every attempt counted; it is given back."""
    now = SystemClock().now()
    clock = VirtualClock(now)
    clock.jump(7200)
    with LogWorkQueue(log, clock) as queue:
        leases = {lease.task_id: lease for lease in queue.lease(10**6, visibility=1)}
        clock.jump(-7200)
        for lease in leases.values():
            queue.nack(lease)
    assert open_tasks <= leases.keys()
    assert not leases.keys() & told.settled.keys()
    for task, lease in leases.items():
        assert lease.attempts > told.attempts[task]
        told.attempts[task] = lease.attempts
    return set(leases)


@pytest.mark.parametrize(
    ("fault", "error", "raised"),
    [
        ("before", StorageFullError(), WriterFailedError),
        ("after", StorageFullError(), WriterFailedError),
        ("before", FencedError("another process had the queue"), FencedError),
    ],
)
def test_after_a_commit_that_failed_a_queue_has_what_its_log_has(
    fault: Literal["before", "after"], error: LogError, raised: type[LogError]
) -> None:
    clock = SystemClock()
    backend = FaultyBackend(MemoryBackend(clock), error)
    with LogStore(backend, clock) as store, LogWorkQueue(store.log(LogSpec("tasks")), clock) as queue:
        queue.put([b"a"])
        backend.faults.append(fault)
        with pytest.raises(raised):
            queue.lease(1, visibility=30)
        assert queue.depth().leased == (fault == "after")
        queue.put([b"b"])
        leased = queue.lease(10, visibility=30)
        assert [lease.body for lease in leased] == ([b"b"] if fault == "after" else [b"a", b"b"])
        queue.ack(leased)
        assert (queue.depth().open, queue.reclaim()) == (fault == "after", fault == "after")


def test_a_snapshot_that_fails_does_not_fail_what_was_asked_for(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(consumer: str, last_id: int) -> None:
        raise LogError("the disk is full")

    with LogWorkQueue(log, snapshot_after=3) as queue:
        monkeypatch.setattr(log, "set_pointer", refuse)
        queue.put([b"task"])
        queue.nack(queue.lease(1, visibility=30)[0])
        assert "snapshot of the queue tasks failed" in caplog.text
        assert queue.depth().ready == 1
    with LogWorkQueue(log) as queue:
        assert queue.lease(1, visibility=30)[0].attempts == 2


def test_a_queue_whose_log_was_trimmed_up_to_its_snapshot_opens_as_it_was(log: Log) -> None:
    with LogWorkQueue(log, snapshot_after=10) as queue:
        for _ in range(20):
            queue.put([b"task"])
            queue.ack(queue.lease(1, visibility=30))
        queue.put([b"task"] * 3)
        queue.lease(1, visibility=30)
        depth = queue.depth()
    assert log.pointer(POINTER) > 0
    log.trim(log.pointer(POINTER) + 1)
    with LogWorkQueue(log) as queue:
        assert (queue.depth().ready, queue.depth().leased) == (depth.ready, depth.leased) == (2, 1)


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_queue_whose_log_was_trimmed_beyond_its_snapshot_is_refused(log: Log, snapshots: bool) -> None:
    with LogWorkQueue(log, snapshot_after=10 if snapshots else 1000) as queue:
        for _ in range(20):
            queue.put([b"task"])
            queue.ack(queue.lease(1, visibility=30))
    log.trim(log.pointer(POINTER) + 2)
    with pytest.raises(DamagedQueueError, match="trimmed"):
        LogWorkQueue(log)


def test_a_queue_keeps_its_log_short_by_itself_and_can_be_looked_at_meanwhile(log: Log) -> None:
    with LogWorkQueue(log, snapshot_after=50) as queue:
        (oldest,) = queue.put([b"dead"])
        queue.dead_letter(queue.lease(1, visibility=30)[0], cause="drill")
        for _ in range(300):
            queue.put([b"task"])
            queue.ack(queue.lease(1, visibility=30))
            state, _ = recover(log)
            assert len(state.dead()) == 1
        assert log.last_id - log.first_id < 150
        assert log.first_id > 700
    with LogWorkQueue(log) as again:
        assert [task.task_id for task in again.dead()] == [oldest]
        assert again.depth().open == 0


def test_a_look_at_a_queue_begins_anew_where_its_owner_trims_meanwhile(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWorkQueue(log, snapshot_after=10) as queue:
        queue.put([b"task"] * 20)
        pointer, pointers = log.pointer, [log.pointer(POINTER)]
        for _ in range(30):
            queue.ack(queue.lease(1, visibility=30))
            queue.put([b"task"])
        monkeypatch.setattr(log, "pointer", lambda name: pointers.pop() if pointers else pointer(name))
        state, _ = recover(log)
        assert state.depth(0).open == 20
