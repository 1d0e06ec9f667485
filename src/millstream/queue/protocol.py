"""The protocol of work queues: tasks that are leased, and either done, retried, or dead with a cause.

Every implementation passes :class:`millstream.testing.queues.WorkQueueConformance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError, MillstreamError, NotFoundError

_NAMED = 5


class QueueError(MillstreamError):
    """The work queue could not do what was asked."""


class LeaseLostError(QueueError):
    """The lease has run out or was settled already: another worker may have the task. Drop the result."""


def leases_lost(tasks: Sequence[int]) -> LeaseLostError:
    """The error that names the first of the *tasks* (ids) whose leases are lost."""
    if len(tasks) == 1:
        return LeaseLostError(f"the lease of task {tasks[0]} has expired or was settled: discard its result")
    more = f" and {len(tasks) - _NAMED:,} more" if len(tasks) > _NAMED else ""
    named = ", ".join(map(str, tasks[:_NAMED]))
    return LeaseLostError(
        f"{len(tasks):,} leases have expired or were settled: discard the results of the tasks {named}{more}"
    )


class QueueInputError(QueueError, InputError):
    """The work queue cannot use this argument."""


class UnknownQueueError(QueueError, NotFoundError):
    """There is no queue of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no queue {name[:100]!r}; `millstream queue depth` lists the queues")


class Lease(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One task in a worker's hands.

    ``attempts`` counts the leases of this task up to and including this one; ``token`` proves that the lease is still
    the current one; ``until`` is when it runs out (microseconds since the epoch on the queue's clock).
    """

    task_id: int
    body: bytes
    attempts: int
    token: str
    until: int


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks in each state. ``exact`` is False where a broker estimates; ``as_of`` is in microseconds.

    ``oldest`` is since when the task that is ready longest has been ready (microseconds), None where none is or where
    that is not known.
    """

    ready: int
    leased: int
    delayed: int
    dead: int
    exact: bool
    as_of: int
    oldest: int | None = None

    @property
    def open(self) -> int:
        """Tasks that are neither done nor dead."""
        return self.ready + self.leased + self.delayed


class DeadTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that no process will try again until it is redriven."""

    task_id: int
    body: bytes
    attempts: int
    cause: str
    died_at: int


SLOT_SECONDS = 0.1
"""Tasks that are redriven at a rate become ready in slots that are at least so long."""


def redrive_times(ids: Sequence[int], per_second: float | None, now: int) -> Iterator[tuple[int, Sequence[int]]]:
    """The times (microseconds) at which *ids* become ready if they are redriven at *now* at a rate.

    Raises :class:`QueueInputError` where the rate is not above 0.
    """
    if per_second is None:
        yield now, ids
        return
    if not 0 < per_second < float("inf"):
        raise QueueInputError(f"the rate must be above 0 tasks per second, not {per_second}")
    share = max(1, int(per_second * SLOT_SECONDS))
    for start in range(0, len(ids), share):
        yield now + round(start / per_second * MICROSECONDS), ids[start : start + share]


class WorkQueue(Protocol):
    """A queue of tasks (bytes), delivered at least once, about in the order they were put. Thread-safe.

    What ``put``, ``ack``, ``nack`` and ``dead_letter`` confirm has survived a crash. A lease that runs out makes its
    task ready again. Attempts are counted and survive restarts.

    A call is repeated if the connection to the queue's database is lost. If that happened after the commit, ``put``
    adds its tasks a second time, and ``ack``, ``nack`` and ``dead_letter`` raise :class:`LeaseLostError` although they
    were done.
    """

    @property
    def name(self) -> str: ...

    def put(self, tasks: Sequence[bytes], *, delay: float = 0.0) -> Sequence[int]:
        """Add *tasks*, to be leased no sooner than *delay* seconds from now. Returns their ids, in order."""
        ...

    def lease(self, count: int, *, visibility: float) -> Sequence[Lease]:
        """Up to *count* ready tasks, each hidden from others for *visibility* seconds. Does not wait."""
        ...

    def extend(self, leases: Sequence[Lease], *, visibility: float) -> Sequence[Lease | None]:
        """The same leases, running out *visibility* seconds from now; None for each that is lost, whose result is to be
        dropped. All of them are one transaction."""
        ...

    def ack(self, leases: Sequence[Lease]) -> None:
        """The tasks are done. Raises :class:`LeaseLostError`, after settling the others, where a lease is lost."""
        ...

    def nack(self, lease: Lease, *, delay: float = 0.0, counted: bool = True) -> None:
        """Give the task back, to the end of the queue, *delay* seconds from now. Unless *counted*, this lease is none
        of its attempts: it was not tried. Raises :class:`LeaseLostError`."""
        ...

    def dead_letter(self, lease: Lease, *, cause: str) -> None:
        """Set the task aside with *cause*, for a person to look at. Raises :class:`LeaseLostError`."""
        ...

    def depth(self) -> Depth:
        """The number of tasks in each state."""
        ...

    def unsettled(self, first: int, last: int) -> int:
        """How many of the tasks with ids from *first* to *last* are neither done nor dead: 0 when all have ended."""
        ...

    def dead(self, *, limit: int = 100, after: int = 0) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id."""
        ...

    def find_dead(self, task_id: int) -> DeadTask | None:
        """The dead task of this id, without a search; None where it is not dead."""
        ...

    def redrive(self, task_ids: Sequence[int] | None = None, *, per_second: float | None = None) -> int:
        """Make dead tasks ready again, with no attempts counted: those named, or all. Returns how many.

        With *per_second* they become ready one by one, by id, at most that many a second, also where no process has
        the queue open.
        """
        ...

    def amend(self, task_id: int, body: bytes, *, seen: bytes) -> bool:
        """Give a dead task another *body*. False, and nothing is changed, where it is not dead or not *seen* now."""
        ...

    def discard(self, task_ids: Sequence[int]) -> int:
        """Take those of the tasks *task_ids* that are dead out of the queue, for good. Returns how many."""
        ...

    def close(self) -> None:
        """Close the queue; leases stay as they are and run out by themselves."""
        ...
