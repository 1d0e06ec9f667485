"""The conformance suite of work queues, and a rule-based machine that compares any queue with a simple model.

Inherit :class:`WorkQueueConformance` and say in :meth:`open_queue` how the queue *name* is opened, on the suite's
virtual clock; opening it again after ``close`` must find the same tasks::

    class TestMyQueue(WorkQueueConformance):
        def open_queue(self, folder, name, clock):
            return MyQueue(folder / name, clock)
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.queue import Lease, LeaseLostError, QueueError, QueueInputError, WorkQueue


class WorkQueueConformance(abc.ABC):
    """What holds for every work queue."""

    survives_close = True
    """Whether tasks are found again after ``close``."""

    @abc.abstractmethod
    def open_queue(self, folder: Path, name: str, clock: VirtualClock) -> WorkQueue:
        """The queue *name*, kept below *folder* where it is kept in files."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        """The clock of the queue under test."""
        return VirtualClock()

    @pytest.fixture
    def queue(self, tmp_path: Path, clock: VirtualClock) -> Iterator[WorkQueue]:
        """A fresh, empty queue."""
        queue = self.open_queue(tmp_path, "tasks", clock)
        yield queue
        queue.close()

    @staticmethod
    def one(queue: WorkQueue, visibility: float = 30.0) -> Lease:
        """The lease of the next task."""
        (lease,) = queue.lease(1, visibility=visibility)
        return lease

    def test_tasks_come_in_the_order_they_were_put(self, queue: WorkQueue) -> None:
        ids = [*queue.put([b"a", b"b"]), *queue.put([b"c"])]
        assert len(set(ids)) == 3
        leases = [*queue.lease(2, visibility=30), *queue.lease(5, visibility=30)]
        assert [(lease.task_id, lease.body) for lease in leases] == list(zip(ids, (b"a", b"b", b"c"), strict=True))
        assert queue.lease(1, visibility=30) == []

    def test_putting_and_leasing_nothing_is_nothing(self, queue: WorkQueue) -> None:
        assert list(queue.put([])) == []
        assert queue.lease(10, visibility=30) == []
        queue.ack([])
        queue.put([b"a"])
        assert queue.lease(0, visibility=30) == []
        assert queue.lease(-1, visibility=30) == []
        queue.ack(queue.lease(1, visibility=30))
        assert queue.depth().open == 0

    def test_bodies_are_any_bytes(self, queue: WorkQueue) -> None:
        bodies = [b"", b"\\0\\xff", bytes(range(256)) * 2000]
        queue.put(bodies)
        assert [lease.body for lease in queue.lease(3, visibility=30)] == bodies

    def test_a_lease_says_how_long_it_lasts_and_how_often_the_task_was_tried(
        self, queue: WorkQueue, clock: VirtualClock
    ) -> None:
        queue.put([b"a"])
        lease = self.one(queue, 12.5)
        assert lease.until == clock.now() + 12_500_000
        assert lease.attempts == 1

    def test_p6_an_acked_task_never_comes_back(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a", b"b", b"c"])
        queue.ack(queue.lease(2, visibility=30))
        clock.advance(1000)
        assert [lease.body for lease in queue.lease(9, visibility=30)] == [b"c"]

    def test_p6_a_task_whose_lease_ran_out_is_ready_again(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a"])
        first = self.one(queue)
        clock.advance(29.999)
        assert queue.lease(1, visibility=30) == []
        clock.advance(0.001)
        second = self.one(queue)
        assert (second.task_id, second.body, second.attempts) == (first.task_id, b"a", 2)
        assert second.token != first.token

    def test_a_lost_lease_settles_nothing(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a"])
        lost = self.one(queue)
        clock.advance(30)
        self.refuse(queue, lost)
        held = self.one(queue)
        self.refuse(queue, lost)
        queue.ack([held])
        self.refuse(queue, held)
        assert queue.depth().open == 0

    @staticmethod
    def refuse(queue: WorkQueue, lost: Lease) -> None:
        """Every way of settling *lost* is refused."""
        with pytest.raises(LeaseLostError):
            queue.ack([lost])
        with pytest.raises(LeaseLostError):
            queue.nack(lost)
        assert queue.extend([lost], visibility=30) == [None]
        with pytest.raises(LeaseLostError):
            queue.dead_letter(lost, cause="too late")

    def test_an_ack_settles_the_leases_that_are_current(self, queue: WorkQueue) -> None:
        queue.put([b"a", b"b", b"c"])
        a, b, c = queue.lease(3, visibility=30)
        queue.ack([b])
        with pytest.raises(LeaseLostError, match=f"the lease of task {b.task_id} has expired or was settled"):
            queue.ack([a, b, c])
        assert queue.depth().open == 0

    def test_an_extended_lease_lasts_longer(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a"])
        lease = self.one(queue)
        clock.advance(20)
        (extended,) = queue.extend([lease], visibility=30)
        assert extended is not None and extended.until == clock.now() + 30 * MICROSECONDS
        assert (extended.task_id, extended.attempts) == (lease.task_id, 1)
        clock.advance(29)
        assert queue.lease(1, visibility=30) == []
        queue.ack([extended])
        assert queue.depth().open == 0

    def test_many_leases_are_extended_together_and_those_that_are_lost_are_named(
        self, queue: WorkQueue, clock: VirtualClock
    ) -> None:
        queue.put([b"%d" % number for number in range(5)])
        short = queue.lease(1, visibility=10)
        done, dead, *held = queue.lease(4, visibility=30)
        clock.advance(20)
        queue.ack([done])
        queue.dead_letter(dead, cause="drill")
        extended = queue.extend([held[1], done, *short, dead, held[0]], visibility=30)
        assert [lease and lease.task_id for lease in extended] == [
            *[held[1].task_id, None, None, None, held[0].task_id]
        ]
        assert {lease.until for lease in extended if lease} == {clock.now() + 30 * MICROSECONDS}
        assert queue.extend([], visibility=30) == []
        clock.advance(29)
        assert [lease.body for lease in queue.lease(9, visibility=30)] == [b"0"]
        queue.ack([lease for lease in extended if lease])
        assert queue.depth().open == 1

    def test_a_task_given_back_goes_to_the_end(self, queue: WorkQueue) -> None:
        queue.put([b"a", b"b"])
        queue.nack(self.one(queue))
        leases = queue.lease(2, visibility=30)
        assert [(lease.body, lease.attempts) for lease in leases] == [(b"b", 1), (b"a", 2)]

    def test_a_task_given_back_with_a_delay_waits(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a", b"b"])
        queue.nack(self.one(queue), delay=60)
        assert [lease.body for lease in queue.lease(2, visibility=600)] == [b"b"]
        assert queue.depth().delayed == 1
        clock.advance(60)
        assert self.one(queue).attempts == 2

    def test_a_lease_that_is_not_counted_is_no_attempt(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"a"])
        queue.nack(self.one(queue))
        for _ in range(3):
            lease = self.one(queue)
            assert lease.attempts == 2
            queue.nack(lease, delay=5, counted=False)
            assert queue.lease(1, visibility=30) == []
            clock.advance(5)
        assert self.one(queue).attempts == 2
        with pytest.raises(LeaseLostError):
            queue.nack(lease, counted=False)

    def test_a_task_put_with_a_delay_waits(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"later"], delay=10)
        queue.put([b"now"])
        assert self.one(queue).body == b"now"
        clock.advance(9.999999)
        assert queue.lease(1, visibility=30) == []
        clock.advance(0.000001)
        assert self.one(queue).body == b"later"

    def test_delays_do_not_hold_up_each_other(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"last"], delay=30)
        queue.put([b"first"], delay=10)
        clock.advance(10)
        assert [lease.body for lease in queue.lease(2, visibility=600)] == [b"first"]
        clock.advance(20)
        assert [lease.body for lease in queue.lease(2, visibility=600)] == [b"last"]

    def test_p6_a_dead_task_stays_with_its_cause_until_it_is_redriven(
        self, queue: WorkQueue, clock: VirtualClock
    ) -> None:
        (task_id,) = queue.put([b"poison"])
        queue.nack(self.one(queue))
        clock.advance(1)
        queue.dead_letter(self.one(queue), cause="ValueError: naïve\nline")
        died_at = clock.now()
        clock.advance(1000)
        assert queue.lease(1, visibility=30) == []
        (dead,) = queue.dead()
        assert (dead.task_id, dead.body, dead.attempts) == (task_id, b"poison", 2)
        assert (dead.cause, dead.died_at) == ("ValueError: naïve\nline", died_at)
        assert queue.find_dead(task_id) == dead
        assert queue.redrive() == 1
        assert queue.dead() == [] and queue.find_dead(task_id) is None
        lease = self.one(queue)
        assert (lease.task_id, lease.body, lease.attempts) == (task_id, b"poison", 1)

    def test_discarded_tasks_are_gone_for_good_and_only_dead_ones_can_be(self, queue: WorkQueue) -> None:
        ids = queue.put([b"bad", b"worse", b"good"])
        for lease in queue.lease(2, visibility=60):
            queue.dead_letter(lease, cause="no use")
        assert queue.discard([*ids, 10**9]) == 2
        assert queue.discard(ids) == 0
        assert queue.dead() == [] and queue.redrive() == 0
        assert [queue.find_dead(task_id) for task_id in [*ids, 10**9]] == [None] * 4
        assert (queue.depth().ready, queue.depth().dead) == (1, 0)
        assert [lease.body for lease in queue.lease(9, visibility=60)] == [b"good"]

    def test_dead_tasks_are_listed_in_chunks_and_redriven_by_id(self, queue: WorkQueue) -> None:
        ids = list(queue.put([b"%d" % number for number in range(5)]))
        for lease in queue.lease(5, visibility=30):
            queue.dead_letter(lease, cause="drill")
        chunk = queue.dead(limit=2)
        assert [task.task_id for task in chunk] == sorted(ids)[:2]
        assert [task.task_id for task in queue.dead(limit=9, after=chunk[-1].task_id)] == sorted(ids)[2:]
        assert queue.redrive([ids[1], ids[3], 10**9]) == 2
        assert queue.redrive([ids[1]]) == 0
        assert queue.redrive() == 3
        assert queue.redrive() == 0

    def test_dead_tasks_are_redriven_at_a_rate(self, queue: WorkQueue, clock: VirtualClock) -> None:
        ids = sorted(queue.put([b"%d" % number for number in range(6)]))
        for lease in queue.lease(6, visibility=30):
            queue.dead_letter(lease, cause="drill")
        with pytest.raises(QueueInputError):
            queue.redrive(per_second=0)
        assert queue.redrive(ids[:5], per_second=0.5) == 5
        depth = queue.depth()
        assert (depth.ready, depth.delayed, depth.dead) == (1, 4, 1)
        found = list[int]()
        for _ in range(5):
            lease = self.one(queue, visibility=3600)
            assert (lease.attempts, queue.lease(9, visibility=3600)) == (1, [])
            found.append(lease.task_id)
            clock.advance(2)
        assert found == ids[:5]

    def test_a_dead_task_is_amended_only_over_what_was_seen(self, queue: WorkQueue) -> None:
        task_id, other = queue.put([b"store: gone", b"alive"])
        assert not queue.amend(task_id, b"x", seen=b"store: gone")
        queue.dead_letter(self.one(queue), cause="no such store")
        assert not queue.amend(task_id, b"x", seen=b"store: another")
        assert not queue.amend(other, b"x", seen=b"alive")
        assert queue.amend(task_id, b"store: here", seen=b"store: gone")
        assert not queue.amend(task_id, b"y", seen=b"store: gone")
        (dead,) = queue.dead()
        assert (dead.task_id, dead.body, dead.attempts, dead.cause) == (task_id, b"store: here", 1, "no such store")
        assert queue.redrive() == 1
        bodies = {lease.body for lease in (self.one(queue), self.one(queue))}
        assert bodies == {b"alive", b"store: here"}

    def test_depth_says_since_when_the_oldest_ready_task_is_ready(self, queue: WorkQueue, clock: VirtualClock) -> None:
        assert queue.depth().oldest is None
        began = clock.now()
        queue.put([b"first"])
        clock.advance(10)
        queue.put([b"second"])
        assert queue.depth().oldest == began
        lease = self.one(queue, visibility=5)
        assert queue.depth().oldest == began + 10_000_000
        clock.advance(6)
        assert queue.depth().oldest == began + 10_000_000
        queue.ack(queue.lease(1, visibility=30))
        assert (lease.body, queue.depth().oldest) == (b"first", began + 15_000_000)

    def test_tasks_are_unsettled_until_they_are_done_or_dead(self, queue: WorkQueue, clock: VirtualClock) -> None:
        before = queue.put([b"of others"])
        first, *_, last = queue.put([b"%d" % number for number in range(4)])
        assert (before[0] < first, queue.unsettled(first, last)) == (True, 4)
        _, done, bad, back, held = queue.lease(5, visibility=30)
        queue.ack([done])
        queue.dead_letter(bad, cause="drill")
        queue.nack(back, delay=100)
        assert queue.unsettled(first, last) == 2
        clock.advance(29)
        queue.ack([held])
        assert (queue.unsettled(first, last), queue.unsettled(before[0], 10**9)) == (1, 2)
        queue.redrive()
        assert queue.unsettled(first, last) == 2

    def test_depth_counts_every_task_where_it_stands(self, queue: WorkQueue, clock: VirtualClock) -> None:
        queue.put([b"%d" % number for number in range(10)])
        queue.put([b"later"], delay=100)
        leases = queue.lease(5, visibility=30)
        queue.ack(leases[:2])
        queue.dead_letter(leases[2], cause="drill")
        queue.nack(leases[3], delay=100)
        depth = queue.depth()
        assert (depth.ready, depth.leased, depth.delayed, depth.dead) == (5, 1, 2, 1)
        assert depth.open == 8
        assert depth.as_of == clock.now()
        clock.advance(100)
        depth = queue.depth()
        assert (depth.ready, depth.leased, depth.delayed, depth.dead) == (8, 0, 0, 1)

    def test_arguments_that_make_no_sense_are_refused(self, queue: WorkQueue) -> None:
        queue.put([b"a"])
        with pytest.raises(QueueInputError):
            queue.put([b"b"], delay=-1)
        with pytest.raises(QueueInputError):
            queue.lease(1, visibility=0)
        lease = self.one(queue)
        with pytest.raises(QueueInputError):
            queue.extend([lease], visibility=-1)
        with pytest.raises(QueueInputError):
            queue.nack(lease, delay=-1)
        assert queue.depth().open == 1

    def test_p6_everything_survives_closing_and_opening(self, tmp_path: Path, clock: VirtualClock) -> None:
        if not self.survives_close:
            pytest.skip("this queue does not outlive its object")
        queue = self.open_queue(tmp_path, "kept", clock)
        queue.put([b"done", b"leased", b"dead", b"back", b"ready"])
        done, leased, dead, back = queue.lease(4, visibility=30)
        queue.ack([done])
        queue.dead_letter(dead, cause="drill")
        queue.nack(back)
        before = queue.depth()
        queue.close()
        again = self.open_queue(tmp_path, "kept", clock)
        assert again.depth() == before
        assert [task.cause for task in again.dead()] == ["drill"]
        (extended,) = again.extend([leased], visibility=30)
        assert extended is not None and extended.task_id == leased.task_id
        leases = again.lease(9, visibility=30)
        assert [(lease.body, lease.attempts) for lease in leases] == [(b"ready", 1), (b"back", 2)]
        again.ack([leased, *leases])
        assert again.depth().open == 0
        again.close()

    def test_a_closed_queue_says_so(self, tmp_path: Path, clock: VirtualClock) -> None:
        queue = self.open_queue(tmp_path, "closed", clock)
        (task,) = queue.put([b"a"])
        leases = queue.lease(1, visibility=60)
        queue.close()
        queue.close()
        calls: Mapping[str, Callable[[], object]] = {
            "put": lambda: queue.put([b"b"]),
            "lease": lambda: queue.lease(1, visibility=60),
            "extend": lambda: queue.extend(leases, visibility=60),
            "ack": lambda: queue.ack(leases),
            "nack": lambda: queue.nack(leases[0]),
            "dead_letter": lambda: queue.dead_letter(leases[0], cause="x"),
            "depth": queue.depth,
            "unsettled": lambda: queue.unsettled(task, task),
            "dead": queue.dead,
            "redrive": queue.redrive,
            "amend": lambda: queue.amend(task, b"c", seen=b"a"),
            "discard": lambda: queue.discard([task]),
        }
        for name, call in calls.items():
            with pytest.raises(QueueError, match="is closed"):
                call()
                pytest.fail(f"{name} did not report that the queue is closed")

    def test_threads_share_the_tasks_without_doing_one_twice(self, queue: WorkQueue) -> None:
        counter = itertools.count()
        done: list[bytes] = []

        def put(_: int) -> None:
            for _ in range(5):
                queue.put([b"%d" % next(counter) for _ in range(10)])

        def work(_: int) -> None:
            while leases := queue.lease(7, visibility=60):
                done.extend(lease.body for lease in leases)
                queue.ack(leases)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(4)))
            list(pool.map(work, range(4)))
        assert sorted(map(int, done)) == list(range(200))
        assert queue.depth().open == 0
