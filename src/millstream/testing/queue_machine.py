"""A rule-based machine that compares any work queue with a model of a few lines.

``queue_machine(open_queue)`` gives the machine's class. Each machine opens one queue on a virtual clock, and opens it
again now and then: what was confirmed must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.queue import Lease, LeaseLostError, WorkQueue
from millstream.testing.waiting import until

OpenQueue = Callable[[VirtualClock], WorkQueue]


@dataclass
class ModelTask:
    """What a task should be. ``free_at`` is when it may be leased (None: it is dead); ``held`` is its last lease."""

    body: bytes
    free_at: int | None
    attempts: int = 0
    held: Lease | None = None
    cause: str = ""


class QueueMachine(RuleBasedStateMachine):
    """Every task is done, dead, or leased again by its deadline, with its attempts counted, whatever happens."""

    make: Callable[[], OpenQueue]
    travelling: ClassVar[bool] = False

    @initialize()
    def begin(self) -> None:
        self.clock = VirtualClock()
        self.open_queue = type(self).make()
        self.queue = self.open_queue(self.clock)
        self.model: dict[int, ModelTask] = {}
        self.given: list[Lease] = []
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()

    @rule(count=st.integers(1, 4), delay=st.sampled_from([0, 0, 5]))
    def put(self, count: int, delay: float) -> None:
        bodies = [b"task %d" % (self.number + n) for n in range(count)]
        self.number += count
        ids = self.queue.put(bodies, delay=delay)
        assert not self.model.keys() & set(ids)
        for task_id, body in zip(ids, bodies, strict=True):
            self.model[task_id] = ModelTask(body, self._in(delay))

    @rule(count=st.integers(1, 4), visibility=st.sampled_from([1, 10]))
    def lease(self, count: int, visibility: float) -> None:
        free = {task_id for task_id, task in self.model.items() if self._is_free(task)}
        leases = list(self.queue.lease(count, visibility=visibility))
        expected = min(count, len(free))

        def all_here() -> bool:
            missing = expected - len(leases)
            leases.extend(self.queue.lease(missing, visibility=visibility) if missing else ())
            return len(leases) >= expected

        if self.travelling:
            until(all_here, "a notice of each task")
        assert len(leases) == expected
        for lease in leases:
            task = self.model[lease.task_id]
            assert lease.task_id in free
            task.attempts += 1
            task.held, task.free_at = lease, self._in(visibility)
            assert (lease.body, lease.attempts, lease.until) == (task.body, task.attempts, task.free_at)
        self.given.extend(leases)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def ack_some(self, data: st.DataObject) -> None:
        leases = data.draw(st.lists(st.sampled_from(self.given), min_size=1, max_size=3, unique_by=lambda x: x.task_id))
        held = [lease for lease in leases if self._holds(lease)]
        if len(held) == len(leases):
            self.queue.ack(leases)
        else:
            with pytest.raises(LeaseLostError):
                self.queue.ack(leases)
        for lease in held:
            del self.model[lease.task_id]

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay=st.sampled_from([0, 3]), counted=st.booleans())
    def nack(self, data: st.DataObject, delay: float, counted: bool) -> None:
        lease = data.draw(st.sampled_from(self.given))
        if self._settle(lease, lambda: self.queue.nack(lease, delay=delay, counted=counted)):
            task = self.model[lease.task_id]
            task.held, task.free_at = None, self._in(delay)
            task.attempts -= not counted

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        leases = data.draw(st.lists(st.sampled_from(self.given), min_size=1, max_size=4))
        extended = self.queue.extend(leases, visibility=20)
        assert [lease is not None for lease in extended] == [self._holds(lease) for lease in leases]
        for lease in extended:
            if lease is not None:
                self.model[lease.task_id].free_at = self._in(20)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), cause=st.text(max_size=3))
    def dead_letter(self, data: st.DataObject, cause: str) -> None:
        lease = data.draw(st.sampled_from(self.given))
        if self._settle(lease, lambda: self.queue.dead_letter(lease, cause=cause)):
            task = self.model[lease.task_id]
            task.held, task.free_at, task.cause = None, None, cause

    @rule(per_second=st.sampled_from([None, None, 0.5, 4]))
    def redrive(self, per_second: float | None) -> None:
        dead = [task for _, task in sorted(self.model.items()) if task.free_at is None]
        assert self.queue.redrive(per_second=per_second) == len(dead)
        for number, task in enumerate(dead):
            task.free_at, task.attempts = self._in(number / per_second if per_second else 0), 0

    @rule(data=st.data())
    def amend(self, data: st.DataObject) -> None:
        dead = [task_id for task_id, task in self.model.items() if task.free_at is None]
        if dead:
            task_id = data.draw(st.sampled_from(sorted(dead)))
            task = self.model[task_id]
            body = task.body + b", amended"
            assert self.queue.amend(task_id, body, seen=task.body)
            assert not self.queue.amend(task_id, b"", seen=task.body)
            task.body = body

    @rule(seconds=st.sampled_from([0.5, 1, 5, 60]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def open_again(self) -> None:
        self.queue.close()
        self.queue = self.open_queue(self.clock)

    @invariant()
    def adds_up(self) -> None:
        dead = {task_id: task for task_id, task in self.model.items() if task.free_at is None}
        depth = self.queue.depth()
        assert depth.ready == sum(map(self._is_free, self.model.values()))
        assert depth.open == len(self.model) - len(dead) == self.queue.unsettled(0, 10**9)
        assert depth.leased == sum(task.held is not None and self._holds(task.held) for task in self.model.values())
        found = {task.task_id: (task.body, task.attempts, task.cause) for task in self.queue.dead(limit=10**6)}
        assert found == {task_id: (task.body, task.attempts, task.cause) for task_id, task in dead.items()}

    def _in(self, seconds: float) -> int:
        return self.clock.now() + round(seconds * MICROSECONDS)

    def _is_free(self, task: ModelTask) -> bool:
        return task.free_at is not None and task.free_at <= self.clock.now()

    def _holds(self, lease: Lease) -> bool:
        task = self.model.get(lease.task_id)
        return task is not None and task.held is not None and task.held.token == lease.token and not self._is_free(task)

    def _settle(self, lease: Lease, settle: Callable[[], object]) -> bool:
        if self._holds(lease):
            settle()
            return True
        with pytest.raises(LeaseLostError):
            settle()
        return False


def queue_machine(make: Callable[[], OpenQueue], *, travelling: bool = False) -> type[QueueMachine]:
    """The machine for the queues of *make*: each call gives a function that opens one fresh queue, again and again.

    *travelling*: notices of tasks travel over a broker, so a task may be free a moment before it can be leased.
    """
    return type("Machine", (QueueMachine,), {"make": staticmethod(make), "travelling": travelling})
