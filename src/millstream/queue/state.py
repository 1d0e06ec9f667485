"""The state of a work queue: which task stands where. A pure state machine without time, storage or threads."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from millstream.queue.events import (
    Acked,
    Amended,
    DamagedQueueError,
    Died,
    Event,
    Extended,
    Leased,
    Nacked,
    Redriven,
    Snapshot,
    TaskEvent,
    TaskSnapshot,
)
from millstream.queue.protocol import DeadTask, Depth

READY, DELAYED, LEASED, DEAD = "ready", "delayed", "leased", "dead"


class Task(msgspec.Struct, gc=False, kw_only=True):
    """One task that is not done. ``due`` is when its delay or lease ends, when it died, or, where it
    is known, since when it has been ready (microseconds)."""

    id: int
    body: bytes
    state: str
    attempts: int = 0
    due: int = 0
    token: int = 0
    cause: str = ""


class QueueState:
    """All tasks that are not done.

    Methods apply what has been decided and recorded; whether a lease is current is asked before, with :meth:`holds`.
    :attr:`deaths` is another number whenever the dead tasks are not those that they were.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._ready: OrderedDict[int, Task] = OrderedDict()
        self._timers: list[tuple[int, int]] = []  # (due, id) of delays and leases; outdated ones are skipped
        self._counts = {READY: 0, DELAYED: 0, LEASED: 0, DEAD: 0}
        self._dead: dict[int, Task] = {}
        self.deaths = 0
        self._dead_ids: tuple[int, list[int]] = (0, [])
        """The ids of the dead tasks in order, and the number of :attr:`deaths` at that time."""

    def __len__(self) -> int:
        return len(self._tasks)

    def mature(self, now: int) -> None:
        """Make ready what was delayed, or leased, until *now* (microseconds)."""
        while self._timers and self._timers[0][0] <= now:
            due, task_id = heapq.heappop(self._timers)
            task = self._tasks.get(task_id)
            if task is not None and task.due == due and task.state in (DELAYED, LEASED):
                self._move(task, READY, due)

    def next_ready(self, count: int) -> list[Task]:
        """The *count* tasks that have been ready longest."""
        return list(islice(self._ready.values(), max(count, 0)))

    def holds(self, task_id: int, token: str, now: int) -> bool:
        """Whether the lease *token* of a task is current at *now* (microseconds)."""
        task = self._tasks.get(task_id)
        return task is not None and task.state == LEASED and str(task.token) == token and task.due > now

    def depth(self, now: int) -> Depth:
        """The number of tasks in each state at *now* (microseconds)."""
        self.mature(now)
        counts = self._counts
        oldest = next((task.due for task in self._ready.values() if task.due), None)
        return Depth(
            ready=counts[READY],
            leased=counts[LEASED],
            delayed=counts[DELAYED],
            dead=counts[DEAD],
            exact=True,
            as_of=now,
            oldest=oldest,
        )

    def unsettled(self, first: int, last: int) -> int:
        """How many tasks with ids from *first* to *last* are neither done nor dead."""
        ids = range(first, last + 1) if last - first < len(self._tasks) else self._tasks.keys()
        found = (self._tasks.get(task_id) for task_id in ids if first <= task_id <= last)
        return sum(task is not None and task.state != DEAD for task in found)

    def leased(self) -> list[int]:
        """The ids of the tasks that are leased."""
        return [task.id for task in self._tasks.values() if task.state == LEASED]

    def find_dead(self, task_id: int) -> DeadTask | None:
        """The dead task of this id; None where it is not dead."""
        task = self._dead.get(task_id)
        return _dead_task(task) if task is not None else None

    def dead(self, *, limit: int | None = None, after: int = 0) -> list[DeadTask]:
        """The dead tasks with ids above *after*, by id: all of them, or up to *limit*."""
        deaths, ids = self._dead_ids
        if deaths != self.deaths:
            ids = sorted(self._dead)
            self._dead_ids = self.deaths, ids
        first = bisect_right(ids, after)
        return [_dead_task(self._dead[task_id]) for task_id in ids[first : None if limit is None else first + limit]]

    def put(self, task_id: int, body: bytes, ready_at: int | None, now: int) -> None:
        """Add a task, ready at once, which is *now*, or at *ready_at* (microseconds)."""
        if ready_at is None:
            self._add(Task(id=task_id, body=body, state=READY, due=now))
        else:
            self._add(Task(id=task_id, body=body, state=DELAYED, due=ready_at))

    def apply(self, event: Event, message_id: int) -> None:
        """Apply *event*, which is message *message_id*. Raises :class:`DamagedQueueError` where its task is gone."""
        if isinstance(event, Snapshot):
            return  # it says what all other messages have said
        for task_id in event.ids:
            task = self._tasks.get(task_id)
            if task is None:
                raise DamagedQueueError(
                    f"message {message_id} refers to task {task_id}, which is finished or was never added; restore the "
                    "log from a backup"
                )
            self._apply(event, task, message_id)

    def _apply(self, event: TaskEvent, task: Task, message_id: int) -> None:
        match event:
            case Leased(_, until):
                task.attempts += 1
                task.token = message_id
                self._move(task, LEASED, until)
            case Extended(_, until):
                self._move(task, LEASED, until)
            case Acked():
                self._leave(task)
                del self._tasks[task.id]
            case Nacked(_, ready_at, untried):
                task.attempts -= untried
                self._move(task, DELAYED, ready_at)
            case Died(_, at, cause):
                task.cause = cause
                self._move(task, DEAD, at)
            case Redriven(_, ready_at):
                task.attempts, task.cause = 0, ""
                self._move(task, DELAYED if ready_at else READY, ready_at)
            case Amended(_, body):
                task.body = body
                self.deaths += 1

    def keep(self) -> Iterator[TaskSnapshot]:
        """Everything, for a snapshot; ready tasks in their order."""
        yield from (_kept(task) for task in self._ready.values())
        yield from (_kept(task) for task in self._tasks.values() if task.state != READY)

    def restore(self, tasks: Iterable[TaskSnapshot]) -> None:
        """Add the tasks of a snapshot."""
        for kept in tasks:
            self._add(
                Task(
                    id=kept.id,
                    body=kept.body,
                    state=kept.state,
                    attempts=kept.attempts,
                    due=kept.due,
                    token=kept.token,
                    cause=kept.cause,
                )
            )

    def _add(self, task: Task) -> None:
        self._tasks[task.id] = task
        self._enter(task)

    def _move(self, task: Task, state: str, due: int = 0) -> None:
        self._leave(task)
        task.state, task.due = state, due
        self._enter(task)

    def _enter(self, task: Task) -> None:
        self._counts[task.state] += 1
        if task.state == READY:
            self._ready[task.id] = task
        elif task.state == DEAD:
            self._dead[task.id] = task
            self.deaths += 1
        else:
            heapq.heappush(self._timers, (task.due, task.id))

    def _leave(self, task: Task) -> None:
        self._counts[task.state] -= 1
        if task.state == READY:
            del self._ready[task.id]
        elif task.state == DEAD:
            del self._dead[task.id]
            self.deaths += 1


def _dead_task(task: Task) -> DeadTask:
    return DeadTask(task_id=task.id, body=task.body, attempts=task.attempts, cause=task.cause, died_at=task.due)


def _kept(task: Task) -> TaskSnapshot:
    return TaskSnapshot(
        id=task.id,
        body=task.body,
        state=task.state,
        attempts=task.attempts,
        due=task.due,
        token=task.token,
        cause=task.cause,
    )
