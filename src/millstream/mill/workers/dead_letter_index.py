"""Which findings are dead letters already, so that a finding that is made again does not become another one."""

from __future__ import annotations

import hashlib

from millstream.queue.protocol import DeadTask, Lease, WorkQueue

_PAGE = 1000


class DeadLetterIndex:
    """The dead letters of *queue*, by body and cause.

    They are read once, at the first question; from then on only those of this process are added, and a question costs
    one look-up by id at most, however many there are. One that another process adds later is not known here: then a
    finding can have two. One that was redriven, discarded or amended does not count.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._ids: dict[bytes, int] | None = None

    def has(self, lease: Lease, cause: str) -> bool:
        """Whether a dead letter with the body of *lease* and with *cause* is known, and still is one."""
        ids, key = self._known(), _key(lease, cause)
        if key not in ids:
            return False
        dead = self._queue.find_dead(ids[key])
        if dead is not None and _key(dead, dead.cause) == key:
            return True
        del ids[key]
        return False

    def add(self, lease: Lease, cause: str) -> None:
        """The task of *lease* has become a dead letter with *cause*."""
        self._known()[_key(lease, cause)] = lease.task_id

    def _known(self) -> dict[bytes, int]:
        if self._ids is None:
            ids, last = dict[bytes, int](), 0
            while tasks := self._queue.dead(limit=_PAGE, after=last):
                ids |= {_key(task, task.cause): task.task_id for task in tasks}
                last = tasks[-1].task_id
            self._ids = ids
        return self._ids


def _key(task: Lease | DeadTask, cause: str) -> bytes:
    digest = hashlib.blake2b(task.body, digest_size=16)
    digest.update(b"\0" + cause.encode("utf-8", "surrogatepass"))
    return digest.digest()
