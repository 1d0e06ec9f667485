"""The worker manager (seed document duracloud-mill, "Worker Manager").

One dispatcher takes up to ten tasks at a time from the first queue, in strict order of priority, that has any, and
hands them to a pool of threads; now and then a lower queue comes first, so that none waits for ever. From a queue whose
tasks turn out to be done together it takes a group of them at a time. The dispatcher alone talks to the queues: it
extends leases while tasks wait and run, writes down what a group of finished tasks found, and only then acknowledges
them. A failed task goes to the back of its queue, and after its third failure to the dead letters, with the error's
text; one that never can succeed, such as an id longer than the store keeps, goes there at once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.core.leases import LeaseLostError
from millstream.core.metric_collection.hook import Metrics, NoMetrics
from millstream.core.passing_errors import is_passing
from millstream.core.sql_failures import SQL_PASSES
from millstream.log import FencedError, StorageFullError, WriterFailedError
from millstream.mill.errors import MillError
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import decode_task
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.task_leaser import TaskLeaser
from millstream.mill.workers.task_settler import LeasedTask, OthersCanDo, TaskSettler, WorkTally, nobody_can
from millstream.queue.protocol import WorkQueue

__all__ = ["MOST_LEASES", "RESERVE", "PoisonError", "WorkTally", "WorkerManager", "WorkerSettings"]

RESERVE = 4
"""Tasks taken for each thread, so that none waits for a commit of the queue."""

MOST_LEASES = 10
"""A task leased so often without an end seems to bring its workers down, and is set aside unread."""


_log = logging.getLogger(__name__)


class WorkerSettings(msgspec.Struct, frozen=True):
    """How a worker manager works; times are in seconds.

    ``visibility`` is the length of a lease, extended at half time while its task is not settled; for so long the tasks
    of a worker that was killed stay hidden. Finished tasks are settled in groups: at ``group`` tasks, or ``linger``
    after the first. A task that failed goes to the back of its queue; for a transient reason it waits there, at first
    for ``transient_first``, then six times as long. An idle manager looks again after ``idle_first``, twice as long
    each time up to ``idle_longest`` (seed document: 1 to 8 minutes). Of ``fairness`` takes one begins with a lower
    queue, each of them in turn; with 0 none does.
    """

    threads: int = 8
    visibility: float = 30.0
    group: int = 64
    linger: float = 0.1
    transient_first: float = 10.0
    idle_first: float = 60.0
    idle_longest: float = 480.0
    fairness: int = 10


class WorkerManager:
    """Works on *queues* (the first comes first) with the processors of *registry*, and writes results to *sink*.

    *on_progress* is called with the tally after every group that was settled. *others_can_do* says whether another
    process works on a queue and has all stores of a set: :meth:`run` leaves tasks to it that need a store which
    *registry* lacks. Not to be run twice at the same time.
    """

    def __init__(
        self,
        queues: Sequence[WorkQueue],
        registry: ProcessorRegistry,
        sink: ResultSink,
        clock: Clock,
        settings: WorkerSettings = WorkerSettings(),  # noqa: B008  (frozen)
        *,
        metrics: Metrics | None = None,
        on_progress: Callable[[WorkTally], None] | None = None,
        others_can_do: OthersCanDo = nobody_can,
    ) -> None:
        self._queues = list(queues)
        self._registry = registry
        self._clock = clock
        self._settings = settings
        self._on_progress = on_progress
        self._changed = threading.Condition()
        self._stopping = self._woken = False
        self._jobs: list[LeasedTask] = []
        self._leaser = TaskLeaser(queues, registry, clock, visibility=settings.visibility, fairness=settings.fairness)
        self._settler = TaskSettler(sink, metrics or NoMetrics(), settings.transient_first, others_can_do)

    @property
    def tally(self) -> WorkTally:
        """The totals so far."""
        return self._settler.tally

    def stop(self) -> None:
        """Take no more tasks; :meth:`run` returns when those that run have ended. Safe in a signal handler."""
        self._stopping = True
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """Look at the queues soon: tasks were put on them."""
        self._leaser.ask_all()
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def run_until_drained(self) -> WorkTally:
        """Work until no task is ready, leased or delayed on any queue; dead ones stay where they are.

        No task is left to other processes: there may be none that does it soon.
        """
        return self._run(self._await_delayed)

    def run(self) -> WorkTally:
        """Work until :meth:`stop` is called.

        When a queue or a database does not answer, a disk is full, or another process has taken a queue, all tasks are
        given back, as far as that goes, and after a while the work continues.
        """
        pause = self._settings.transient_first
        self._settler.leaves_tasks = True
        while not self._stopping:
            try:
                return self._run(self._pause)
            except Exception as error:
                if not _is_passing(error):
                    raise
                _log.warning("work continues in %.0f s: %s", pause, getattr(error, "orig", error))
                self.tally.interrupted += 1
                self._pause(pause)
        return self.tally

    def _run(self, go_on_when_idle: Callable[[float], bool]) -> WorkTally:
        with ThreadPoolExecutor(self._settings.threads, thread_name_prefix="mill-worker") as pool:
            try:
                self._work(pool, go_on_when_idle)
                self._drain()
            except BaseException as error:
                self._abandon(passing=_is_passing(error))
                raise
        return self.tally

    def _work(self, pool: ThreadPoolExecutor, go_on_when_idle: Callable[[float], bool]) -> None:
        idle = self._settings.idle_first
        while not self._stopping:
            if self._take(pool):
                idle = self._settings.idle_first
            if self._jobs:
                self._await_change()
                self._extend()
                self._settle()
            elif go_on_when_idle(idle):
                idle = min(2 * idle, self._settings.idle_longest)
            else:
                return

    def _take(self, pool: ThreadPoolExecutor) -> bool:
        """Fill up the pool and its reserve; True if anything was taken.

        What has ended is settled first: tasks may end faster than they are taken, and their leases would run out one
        after the other.
        """
        taken = False
        reserve = RESERVE * self._settings.threads
        while True:
            running = [job.weight for job in self._jobs if job.finished_at is None]
            if math.fsum(running) >= reserve or len(self._jobs) - len(running) >= self._settings.group:
                break
            jobs = self._leaser.lease(busy=bool(self._jobs))
            if not jobs:
                break
            taken = True
            self._jobs += jobs
            self._hand_out(pool, jobs)
        return taken

    def _hand_out(self, pool: ThreadPoolExecutor, jobs: Sequence[LeasedTask]) -> None:
        """Give *jobs* to threads: those of a group to one thread, each of the others to another one."""
        group, alone = [job for job in jobs if job.grouped], [job for job in jobs if not job.grouped]
        if len(group) == 1:
            alone, group = list(jobs), []
        for job in alone:
            pool.submit(self._process_alone, job)
        if group:
            for job in group:
                job.weight = RESERVE / len(group)  # together they are the reserve of one thread
            pool.submit(self._process_group, pool, group)

    def _process_alone(self, job: LeasedTask) -> None:
        if job.take():
            self._process(job)

    def _process_group(self, pool: ThreadPoolExecutor, jobs: Sequence[LeasedTask]) -> None:
        """Do *jobs* together; those with which that does not go are done alone."""
        running, began = [job for job in jobs if job.take()], self._clock.monotonic()
        try:
            results = self._registry.process_group([decode_task(job.lease.body) for job in running])
        except Exception as error:
            _log.info("%d tasks are processed one by one, not together: %s", len(running), error)
            results = [None] * len(running)
        done, alone = [], []
        for job, result in zip(running, results, strict=True):
            if result is None:
                job.weight = 1.0
                alone.append(job)
            else:
                job.result = result
                done.append(job)
        seconds = self._clock.monotonic() - began
        self._leaser.resize_groups(jobs[0].queue, len(jobs), together=len(done) == len(jobs), seconds=seconds)
        self._finished(done)
        for job in alone:
            with contextlib.suppress(RuntimeError):  # the manager has failed meanwhile, and given everything back
                pool.submit(self._process, job)

    def _process(self, job: LeasedTask) -> None:
        lease = job.lease
        try:
            if lease.attempts > MOST_LEASES:
                raise PoisonError(
                    f"the task was leased {lease.attempts} times and never settled: it probably crashes its workers; "
                    "see the logs of the workers, then redrive the task"
                )
            job.result = self._registry.process(decode_task(lease.body), lease.attempts)
        except BaseException as error:
            job.error = error
        self._finished([job])

    def _finished(self, jobs: Sequence[LeasedTask]) -> None:
        """Tell the dispatcher, once for all of them: a thread that is woken for each would wait for the interpreter."""
        with self._changed:
            now = self._clock.monotonic()
            for job in jobs:
                job.finished_at = now
            self._changed.notify_all()

    def _await_change(self) -> None:
        """Wait until a group is ready to be settled or a lease has to be extended."""
        with self._changed:
            while not self._stopping and (seconds := self._patience()) > 0:
                self._clock.wait(self._changed, seconds)

    def _patience(self) -> float:
        """Seconds until there is something to do."""
        now = self._clock.monotonic()
        finished = [job.finished_at for job in self._jobs if job.finished_at is not None]
        busy = len(self._jobs) - len(finished)
        if finished and (len(finished) >= self._settings.group or busy < self._settings.threads):
            return 0.0
        due = min(job.extend_at for job in self._jobs)
        if finished:
            due = min(due, min(finished) + self._settings.linger)
        return due - now

    def _extend(self) -> None:
        """Extend the leases that are due. Another worker may have a lost task: its result is dropped."""
        for job in self._leaser.extend(self._jobs):
            job.take()
            self._jobs.remove(job)
            self.tally.lost += 1

    def _settle(self) -> None:
        finished = [job for job in self._jobs if job.finished_at is not None]
        if not finished:
            return
        self._settler.settle(finished)
        settled = set(map(id, finished))
        self._jobs = [job for job in self._jobs if id(job) not in settled]
        if self._on_progress is not None:
            self._on_progress(self.tally)

    def _await_delayed(self, seconds: float) -> bool:
        """Sleep for at most a second if a task is delayed or in other hands; False if nothing is left."""
        if not any(queue.depth().open for queue in self._queues):
            return False
        self._clock.sleep(min(seconds, 1.0))
        return True

    def _pause(self, seconds: float) -> bool:
        """Wait for *seconds* unless stopped or woken before; True if the work continues."""
        with self._changed:
            if not self._stopping and not self._woken:
                self._clock.wait(self._changed, seconds)
            self._woken = False
        return not self._stopping

    def _drain(self) -> None:
        """After a stop: tasks that wait for a thread go back to their queues, those that run are settled."""
        for job in [job for job in self._jobs if job.take()]:
            self._jobs.remove(job)
            self._settler.give_back(job, counted=False)
        while self._jobs:
            self._await_end()
            self._extend()
            self._settle()

    def _await_end(self) -> None:
        """Wait until a task has ended or a lease has to be extended."""
        with self._changed:
            seconds = min(job.extend_at for job in self._jobs) - self._clock.monotonic()
            if seconds > 0 and all(job.finished_at is None for job in self._jobs):
                self._clock.wait(self._changed, seconds)

    def _abandon(self, *, passing: bool) -> None:
        """The manager fails or is interrupted: give everything back, so that no worker waits for leases to end.

        It is no attempt of a task that no thread began, nor of one that was done where the failure is *passing*: the
        results could not be written.
        """
        untried = {id(job) for job in self._jobs if job.take()}
        for job in self._jobs:
            done = passing and job.finished_at is not None and job.error is None
            with contextlib.suppress(MillstreamError, *SQL_PASSES):
                job.queue.nack(job.lease, counted=not done and id(job) not in untried)
        self._jobs = []


def _is_passing(error: BaseException) -> bool:
    """Whether a queue or a database did not answer, is full, or was another process's, so that the work may go on."""
    return isinstance(error, WriterFailedError | StorageFullError | FencedError | LeaseLostError) or (
        isinstance(error, Exception) and is_passing(error)
    )


class PoisonError(MillError):
    """The task seems to bring its workers down."""
