"""Periodic tasks that one instance at a time runs, under a fenced lease on the database's time.

The lease is renewed by the thread that keeps the instance alive, not by the task. So a long task is not started
twice, and does not count as dead.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.core.leases import Leases

_log = logging.getLogger(__name__)


class PeriodicTask(msgspec.Struct, frozen=True):
    """A task that is run each *interval* seconds, by one instance of all; it may be cut off and run again."""

    name: str
    interval: float
    run: Callable[[], object]


class TaskManager:
    """Runs those *tasks* that are due and that no other instance holds. Thread-safe."""

    def __init__(
        self, database: RegistryDatabase, instance: str, tasks: Sequence[PeriodicTask], *, lease_seconds: float = 30.0
    ) -> None:
        self._leases = Leases(database, t.tasks, instance, lease_seconds)
        self._tasks = tasks
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def run_due(self) -> Sequence[str]:
        """Run what is due, one after the other; the names of the tasks that were run. A failure is logged, and the
        task is due again after its interval."""
        done = []
        for task in self._tasks:
            lease = self._leases.acquire(task.name, allowed=functools.partial(_is_due, task))
            if lease is not None:
                self._run(task)
                self._leases.release(lease, ran_at=lambda now: now)  # due again after its interval
                done.append(task.name)
        return done

    def renew(self) -> None:
        """Prolong the leases of the tasks that are running here. Call it more often than a lease lasts."""
        with self._lock:
            running = sorted(self._running)
        self._leases.renew(running)

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


def _is_due(task: PeriodicTask, now: int, row: sa.Row[Any]) -> bool:
    return bool(now - row.ran_at >= int(task.interval * 1_000_000))
