"""Settling finished tasks: what they found is written down first, then the queue is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from millstream.core.errors import MillstreamError
from millstream.core.metric_collection.hook import Metrics
from millstream.mill.errors import ChangePendingError, PoliciesUnavailableError, UnknownStoreError, UnresolvedError
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import decode_task, stores_of
from millstream.mill.workers.dead_letter_index import DeadLetterIndex
from millstream.mill.workers.result_sink import ResultSink
from millstream.queue import queue_name
from millstream.queue.protocol import Lease, LeaseLostError, WorkQueue

FAILURES = 3
"""A task that has failed so often is set aside (seed document: "If it has failed three times")."""

PENALTY_FACTOR = 6.0
"""How much longer a task waits after its second failure for a transient reason than after its first."""


OthersCanDo: TypeAlias = Callable[[str, AbstractSet[str]], bool]
"""Whether another process works on the queue of this name and has all these stores."""


def nobody_can(_queue: str, _stores: AbstractSet[str]) -> bool:
    """There are no other processes."""
    return False


class WorkTally(msgspec.Struct):
    """The totals of a manager. ``waiting`` tasks asked for a later retry; the leases of ``lost`` ones expired.
    ``interrupted`` counts failures of a queue or a database.
    """

    done: int = 0
    failed: int = 0
    dead: int = 0
    waiting: int = 0
    lost: int = 0
    interrupted: int = 0


class LeasedTask:
    """A task in the hands of a manager. ``extend_at`` and ``finished_at`` are in seconds of the clock's monotonic time;
    ``weight`` is its share of a manager's reserve, ``grouped`` whether it may be done together with others. Once it is
    finished, ``error`` is what it failed of, or else ``result`` what it came to.

    There is one for each task, so it is no more than it has to be: a future costs more than all else of a small task.
    """

    __slots__ = ("_taken", "error", "extend_at", "finished_at", "grouped", "lease", "queue", "result", "weight")

    def __init__(self, queue: WorkQueue, lease: Lease, extend_at: float, *, grouped: bool = False) -> None:
        self.queue, self.lease, self.extend_at, self.grouped = queue, lease, extend_at, grouped
        self.weight = 1.0
        self.finished_at: float | None = None
        self.error: BaseException | None = None
        self.result = TaskResult("not finished")
        self._taken = threading.Lock()

    def take(self) -> bool:
        """True for the first caller only: the thread that does it, or the one that takes it back."""
        return self._taken.acquire(blocking=False)


class TaskSettler:
    """Settles finished tasks with *sink* and their queues, and keeps the tally.

    A task that failed goes to the back of its queue, and after :data:`FAILURES` attempts to the dead letters, for a
    permanent reason at once; for a transient one it waits *transient_first* seconds before the second attempt. A
    finding that is a dead letter already does not become another one: each check of its item finds it again. If it
    :attr:`leaves_tasks`, one that needs a store which this process does not have is left to others where
    *others_can_do* it, and one that waits for the end of a change, or for the disk of the policies, is not counted as
    tried: an upload may take hours.
    """

    def __init__(
        self,
        sink: ResultSink,
        metrics: Metrics,
        transient_first: float,
        others_can_do: OthersCanDo = nobody_can,
    ) -> None:
        self._sink = sink
        self._metrics = metrics
        self._transient_first = transient_first
        self._others_can_do = others_can_do
        self.leaves_tasks = False
        self._findings: dict[WorkQueue, DeadLetterIndex] = {}
        self.tally = WorkTally()

    def settle(self, finished: Sequence[LeasedTask]) -> None:
        """Write down what *finished* tasks found, and only then acknowledge them; give back or set aside the others."""
        good = [job for job in finished if job.error is None]
        self._sink.settle([job.result for job in good])
        done = [job for job in good if job.result.again is None]
        for queue in dict.fromkeys(job.queue for job in done):
            self._acknowledge(queue, [job.lease for job in done if job.queue is queue])
        for job in good:
            if job.result.again is not None:
                self.give_back(job, job.result.again)
        for job in finished:
            if job.error is not None:
                self._fail(job, job.error)

    def give_back(self, job: LeasedTask, delay: float = 0.0, *, counted: bool = True) -> None:
        """Put the task at the back of its queue, for *delay* seconds; unless *counted* it was not tried."""
        try:
            job.queue.nack(job.lease, delay=delay, counted=counted)
            self.tally.waiting += 1
        except LeaseLostError:
            self.tally.lost += 1

    def _acknowledge(self, queue: WorkQueue, leases: list[Lease]) -> None:
        try:
            queue.ack(leases)
        except LeaseLostError:
            self.tally.lost += 1
        self.tally.done += len(leases)
        self._metrics.count("mill_tasks_done_total", len(leases), queue=queue_name(queue.name))

    def _fail(self, job: LeasedTask, error: BaseException) -> None:
        if isinstance(error, UnknownStoreError) and self._is_left(job, error.store):
            self.give_back(job, self._transient_first, counted=False)
            return
        if isinstance(error, ChangePendingError | PoliciesUnavailableError) and self.leaves_tasks:
            self.give_back(job, self._transient_first * PENALTY_FACTOR, counted=False)
            return
        self._metrics.count("mill_tasks_failed_total", queue=queue_name(job.queue.name))
        try:
            if job.lease.attempts >= FAILURES or (isinstance(error, MillstreamError) and error.permanent):
                self._set_aside(job, error)
                self.tally.dead += 1
            else:
                job.queue.nack(job.lease, delay=self._penalty(job.lease.attempts, error))
                self.tally.failed += 1
        except LeaseLostError:
            self.tally.lost += 1

    def _is_left(self, job: LeasedTask, missing: str) -> bool:
        if not self.leaves_tasks:
            return False
        stores = stores_of(decode_task(job.lease.body)) | {missing}
        return self._others_can_do(queue_name(job.queue.name), stores)

    def _set_aside(self, job: LeasedTask, error: BaseException) -> None:
        cause = f"{type(error).__name__}: {error}"
        if not isinstance(error, UnresolvedError):
            job.queue.dead_letter(job.lease, cause=cause)
            return
        known = self._findings.setdefault(job.queue, DeadLetterIndex(job.queue))
        if known.has(job.lease, cause):
            job.queue.ack([job.lease])
        else:
            job.queue.dead_letter(job.lease, cause=cause)
            known.add(job.lease, cause)

    def _penalty(self, attempts: int, error: BaseException) -> float:
        transient = isinstance(error, MillstreamError) and error.transient
        return self._transient_first * PENALTY_FACTOR ** (attempts - 1) if transient else 0.0
