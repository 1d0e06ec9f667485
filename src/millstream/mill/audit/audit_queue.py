"""The audit queue, which is filled from the outbox at each request for work."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import msgspec

from millstream.core.clock import Clock, SystemClock
from millstream.mill.tasks import Audit, encode_task
from millstream.queue.protocol import DeadTask, Depth, Lease, WorkQueue
from millstream.stores.audit import AuditOutbox

MOST = 1000
"""Events that are put on the queue together."""

_LOOK_SECONDS = 60.0
"""How often it is checked whether events were delivered whose tasks the queue lost."""

_log = logging.getLogger(__name__)


class AuditQueue:
    """The work queue *queue*, with an :class:`Audit` task for each event of *outbox*. See :class:`WorkQueue`.

    An event whose task is lost, because the queue was restored from a backup or is another one now, or because a dead
    task was discarded, gets a new task.
    """

    def __init__(self, queue: WorkQueue, outbox: AuditOutbox, clock: Clock | None = None) -> None:
        self._queue, self._outbox, self._clock = queue, outbox, clock or SystemClock()
        self._next_look = -math.inf

    @property
    def name(self) -> str:
        return self._queue.name

    def pump(self) -> int:
        """Put up to :data:`MOST` events that wait in the outbox on the queue; returns how many.

        Not all of them: a dispatcher extends no leases while it waits for them.
        """
        return self._deliver() or (self._take_back_lost() and self._deliver())

    def _deliver(self) -> int:
        return self._outbox.deliver(lambda numbers: self.put([encode_task(Audit(n)) for n in numbers]), limit=MOST)

    def _take_back_lost(self) -> bool:
        """Whether there were events that were delivered, and have no task: they wait in the outbox again.

        Dead tasks keep their events, and nobody knows which, so they are dealt with before.
        """
        if self._clock.monotonic() < self._next_look:
            return False
        self._next_look = self._clock.monotonic() + _LOOK_SECONDS
        last = self._outbox.last_delivered()  # before the queue: what is delivered meanwhile is beyond it
        if last is None or (depth := self._queue.depth()).open or depth.dead:
            return False
        _log.warning("audit events up to number %d have no task on the queue %s: they get new ones", last, self.name)
        self._outbox.redeliver(last)
        return True

    def put(self, tasks: Sequence[bytes], *, delay: float = 0.0) -> Sequence[int]:
        return self._queue.put(tasks, delay=delay)

    def lease(self, count: int, *, visibility: float) -> Sequence[Lease]:
        leases = self._queue.lease(count, visibility=visibility)
        if len(leases) < count and self.pump():  # else the outbox would be asked for every few tasks
            leases = [*leases, *self._queue.lease(count - len(leases), visibility=visibility)]
        return leases

    def extend(self, leases: Sequence[Lease], *, visibility: float) -> Sequence[Lease | None]:
        return self._queue.extend(leases, visibility=visibility)

    def ack(self, leases: Sequence[Lease]) -> None:
        self._queue.ack(leases)

    def nack(self, lease: Lease, *, delay: float = 0.0, counted: bool = True) -> None:
        self._queue.nack(lease, delay=delay, counted=counted)

    def dead_letter(self, lease: Lease, *, cause: str) -> None:
        self._queue.dead_letter(lease, cause=cause)

    def depth(self) -> Depth:
        """Events that wait in the outbox are counted as ready."""
        return with_outbox(self._queue.depth(), self._outbox)

    def unsettled(self, first: int, last: int) -> int:
        return self._queue.unsettled(first, last)

    def dead(self, *, limit: int = 100, after: int = 0) -> Sequence[DeadTask]:
        return self._queue.dead(limit=limit, after=after)

    def find_dead(self, task_id: int) -> DeadTask | None:
        return self._queue.find_dead(task_id)

    def redrive(self, task_ids: Sequence[int] | None = None, *, per_second: float | None = None) -> int:
        return self._queue.redrive(task_ids, per_second=per_second)

    def amend(self, task_id: int, body: bytes, *, seen: bytes) -> bool:
        return self._queue.amend(task_id, body, seen=seen)

    def discard(self, task_ids: Sequence[int]) -> int:
        return self._queue.discard(task_ids)

    def close(self) -> None:
        self._queue.close()


def with_outbox(depth: Depth, outbox: AuditOutbox) -> Depth:
    """*depth* of the audit queue, with the events that wait in *outbox* as ready tasks."""
    count = outbox.undelivered()
    if not count:
        return depth
    waiting = [at for at in (depth.oldest, outbox.oldest()) if at is not None]
    return msgspec.structs.replace(depth, ready=depth.ready + count, oldest=min(waiting, default=None))
