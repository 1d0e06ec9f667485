"""Periodic tasks that one instance at a time runs, under a fenced lease on the database's time.

The lease is renewed by the thread that keeps the instance alive, not by the task. So a long task is not started
twice, and does not count as dead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.core.sql_rows import insert_new

_log = logging.getLogger(__name__)


class PeriodicTask(msgspec.Struct, frozen=True):
    """A task that is run each *interval* seconds, by one instance of all; it may be cut off and run again."""

    name: str
    interval: float
    run: Callable[[], object]


class TaskLease(msgspec.Struct, frozen=True):
    """The right to run a task; ``epoch`` grows with every new holder."""

    task: str
    epoch: int


class TaskManager:
    """Runs those *tasks* that are due and that no other instance holds. Thread-safe."""

    def __init__(
        self, database: RegistryDatabase, instance: str, tasks: Sequence[PeriodicTask], *, lease_seconds: float = 30.0
    ) -> None:
        self._database = database
        self._instance = instance
        self._tasks = tasks
        self._lease = int(lease_seconds * 1_000_000)
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def run_due(self) -> Sequence[str]:
        """Run what is due, one after the other; the names of the tasks that were run. A failure is logged, and the
        task is due again after its interval."""
        done = []
        for task in self._tasks:
            lease = self._acquire(task)
            if lease is not None:
                self._run(task)
                self._finish(lease)
                done.append(task.name)
        return done

    def renew(self) -> None:
        """Prolong the leases of the tasks that are running here. Call it more often than a lease lasts."""
        with self._lock:
            running = sorted(self._running)
        if running:
            mine = sa.and_(t.tasks.c.holder == self._instance, t.tasks.c.task.in_(running))
            self._database.write(
                lambda c, now: c.execute(sa.update(t.tasks).where(mine).values(until=now + self._lease))
            )

    def _run(self, task: PeriodicTask) -> None:
        with self._lock:
            self._running.add(task.name)
        try:
            task.run()
        except Exception:
            _log.exception("the task %s failed", task.name)
        finally:
            with self._lock:
                self._running.discard(task.name)

    def _acquire(self, task: PeriodicTask) -> TaskLease | None:
        """The lease of *task*, if it is due and no other instance has it."""

        def transaction(connection: sa.Connection, now: int) -> TaskLease | None:
            fresh = {"task": task.name, "holder": "", "epoch": 0, "until": 0, "ran_at": 0}
            connection.execute(insert_new(connection, t.tasks), fresh)
            row = connection.execute(sa.select(t.tasks).where(t.tasks.c.task == task.name).with_for_update()).one()
            if row.until > now or now - row.ran_at < int(task.interval * 1_000_000):
                return None
            change = {"holder": self._instance, "epoch": row.epoch + 1, "until": now + self._lease}
            connection.execute(sa.update(t.tasks).where(t.tasks.c.task == task.name).values(change))
            return TaskLease(task.name, row.epoch + 1)

        return self._database.write(transaction)

    def _finish(self, lease: TaskLease) -> None:
        """The task is due again after its interval; nothing is written where another holder has come since."""
        mine = sa.update(t.tasks).where(t.tasks.c.task == lease.task, t.tasks.c.epoch == lease.epoch)
        self._database.write(lambda c, now: c.execute(mine.values(until=0, ran_at=now)))
