"""Leasing tasks for a worker manager: from which queue, how many at a time, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.clock import Clock
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.workers.task_settler import LeasedTask
from millstream.queue.protocol import Lease, WorkQueue

TAKE = 10
"""Tasks in one take (seed document: "reading up to 10 tasks at a time")."""

TOGETHER = 640
"""The most tasks that one thread does together; with more of them syncs and transactions cost hardly less a task."""

GROWTH = 4
"""How many times larger the next group may be when all tasks of one were done together."""

GROUP_SECONDS = 4.0
"""How long a group should take: its lease, queries and transactions cost little for each task then, other workers have
something to do, and results are recorded soon."""

EMPTY_SECONDS, LONGEST_EMPTY_SECONDS = 2.0, 8.0
"""While a manager has tasks, it asks a queue that was empty again after so long at first, and at most, if it is empty
again and again: each answer costs a query and a request to the broker."""


class TaskLeaser:
    """Leases tasks of *queues*, the first of them first, for *visibility* seconds, extended at half time.

    Of *fairness* takes one begins with a lower queue, each of them in turn; with 0 none does.
    """

    def __init__(
        self,
        queues: Sequence[WorkQueue],
        registry: ProcessorRegistry,
        clock: Clock,
        *,
        visibility: float,
        fairness: int,
    ) -> None:
        self._queues = list(queues)
        self._registry = registry
        self._clock = clock
        self._visibility = visibility
        self._fairness = fairness
        self._takes = 0
        self._together: dict[WorkQueue, int] = {}
        self._empty: dict[WorkQueue, tuple[float, float]] = {}
        """Of queues that were empty: when they are asked again, and after how many seconds that is."""
        self._asks_all = False

    def ask_all(self) -> None:
        """Ask all queues again at the next :meth:`lease`: tasks were put on them. Any thread may call this."""
        self._asks_all = True

    def lease(self, *, busy: bool = False) -> list[LeasedTask]:
        """A take of the first queue that has any, or as much as one thread does together of its tasks. *busy* says that
        the manager has tasks: then queues that were empty a moment ago are not asked.

        How many tasks of a queue become one group grows with each group that was done as one, and falls back to a take
        with one that was not: of tasks that take long no manager has more than it works on, so that others get some,
        too.
        """
        if self._asks_all:
            self._asks_all = False
            self._empty.clear()
        for queue in self._order():
            now = self._clock.monotonic()
            again_at, pause = self._empty.get(queue, (now, EMPTY_SECONDS / 2))
            if busy and now < again_at:
                continue
            extend_at = now + self._visibility / 2
            leases = queue.lease(self.group_size(queue), visibility=self._visibility)
            if leases:
                self._empty.pop(queue, None)
                jobs = [LeasedTask(queue, lease, extend_at, grouped=self._is_grouped(lease)) for lease in leases]
                if not all(job.grouped for job in jobs):
                    self._together[queue] = TAKE
                return jobs
            pause = min(2 * pause, LONGEST_EMPTY_SECONDS) if busy else EMPTY_SECONDS
            self._empty[queue] = now + pause, pause
        return []

    def group_size(self, queue: WorkQueue) -> int:
        """How many tasks of *queue* are taken at a time."""
        return self._together.get(queue, TAKE)

    def resize_groups(self, queue: WorkQueue, count: int, *, together: bool, seconds: float) -> None:
        """Let the next groups of *queue* be larger or smaller, after one of *count* tasks that took *seconds*.

        *together* says whether all its tasks were done together; otherwise the next group is a take again. A group for
        which there were too few tasks changes nothing.
        """
        size = self.group_size(queue)
        if not together:
            self._together[queue] = TAKE
        elif count >= size:
            factor = min(GROWTH, GROUP_SECONDS / seconds) if seconds > 0 else GROWTH
            self._together[queue] = min(max(round(factor * count), TAKE), TOGETHER)

    def extend(self, jobs: Sequence[LeasedTask]) -> list[LeasedTask]:
        """Extend the leases of those of *jobs* that are due; those whose lease is lost."""
        now = self._clock.monotonic()
        due = [job for job in jobs if job.extend_at <= now]
        lost = []
        for queue in dict.fromkeys(job.queue for job in due):
            mine = [job for job in due if job.queue is queue]
            leases = queue.extend([job.lease for job in mine], visibility=self._visibility)
            for job, lease in zip(mine, leases, strict=True):
                if lease is None:
                    lost.append(job)
                else:
                    job.lease, job.extend_at = lease, now + self._visibility / 2
        return lost

    def _order(self) -> list[WorkQueue]:
        """The queues in the order of priority, or, when it is its turn, with a lower one before the others."""
        self._takes += 1
        lower = self._queues[1:]
        if not lower or not self._fairness or self._takes % self._fairness:
            return self._queues
        first = lower[self._takes // self._fairness % len(lower)]
        return [first, *(queue for queue in self._queues if queue is not first)]

    def _is_grouped(self, lease: Lease) -> bool:
        return lease.attempts == 1 and self._registry.is_grouped(lease.body)
