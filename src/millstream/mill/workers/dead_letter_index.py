"""Which findings are dead letters already, so that each has one of them however often its item is checked."""

from __future__ import annotations

import hashlib

from millstream.queue.protocol import DeadTask, Lease, WorkQueue

_READ = 1000


class DeadLetterIndex:
    """The dead letters of *queue*, by what they say. Only what was added since is read again: there may be many.

    One that another process adds for an older task is not seen: then a finding has two. One that was redriven,
    discarded or amended does not count.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._ids: dict[bytes, int] = {}
        self._last = 0

    def has(self, lease: Lease, cause: str) -> bool:
        """Whether there is a dead letter with the body of *lease* and with *cause* now."""
        while tasks := self._queue.dead(limit=_READ, after=self._last):
            for task in tasks:
                self._ids[_key(task, task.cause)] = task.task_id
            self._last = tasks[-1].task_id
        key = _key(lease, cause)
        known = self._ids.get(key)
        if known is None:
            return False
        found = self._queue.dead(limit=1, after=known - 1)
        if found and found[0].task_id == known and _key(found[0], found[0].cause) == key:
            return True
        del self._ids[key]
        return False

    def add(self, lease: Lease, cause: str) -> None:
        """The task of *lease* has become a dead letter with *cause*."""
        self._ids[_key(lease, cause)] = lease.task_id


def _key(task: Lease | DeadTask, cause: str) -> bytes:
    digest = hashlib.blake2b(task.body, digest_size=16)
    digest.update(b"\0" + cause.encode("utf-8", "surrogatepass"))
    return digest.digest()
