"""The operation queue of one instance: add, peek, remove with ack and nack, len (seed document "Batch Writer").

The database has every operation from the moment it is accepted; the queue says which instance works on it. Where a
broker is given, the ids of accepted operations travel through it, so that instances share the work evenly and hear of
it at once. Without one an instance takes accepted operations from the database by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from millstream.anchoring.registry.errors import QueueStoppedError
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.settings import OperationQueueSettings
from millstream.anchoring.registry.states import NOTHING_QUEUED, QueuedOperation, QueueSummary

COUNT_SECONDS = 10.0
"""Maximum age in seconds of the count of the queue: a database that is lost at a commit may add what is not counted."""


class OperationQueue:
    """The queue of *instance* in *store*. Thread-safe."""

    def __init__(self, store: OperationStore, instance: str, settings: OperationQueueSettings | None = None) -> None:
        self.store = store
        self.instance = instance
        self.settings = settings or OperationQueueSettings()
        self._held: set[int] = set()
        self._lock = threading.Lock()
        self._open = True
        self._clock = store.database.clock
        self._counted: QueueSummary | None = None
        self._counted_at = 0.0
        self._added = NOTHING_QUEUED

    def add(self, operations: Sequence[str]) -> int:
        """Take *operations* (ids of accepted ones) into this queue; returns how many no other instance had taken."""
        self._check_open()
        return self._add(self.store.take(self.instance, operations))

    def claim(self, limit: int, *, older_than: float = 0.0) -> int:
        """Take up to *limit* accepted operations from the database that have been due for *older_than* seconds.

        Returns how many. With a broker this finds those whose notice was lost.
        """
        self._check_open()
        return self._add(self.store.claim(self.instance, limit, older_than=older_than))

    def peek(self, limit: int) -> Sequence[QueuedOperation]:
        """The first operations that may be cut, without removing them: for each DID only its earliest."""
        self._check_open()
        with self._lock:
            held = set(self._held)
        waiting = self.store.next_in_queue(self.instance, limit + len(held))
        return [operation for operation in waiting if operation.seq not in held][:limit]

    def summary(self) -> QueueSummary:
        """What :meth:`peek` would show without a limit, and what was removed, in numbers."""
        self._check_open()
        return self.store.queue_summary(self.instance)

    def bound(self) -> QueueSummary:
        """What :meth:`summary` gives, or more: it also counts what may not be cut yet, or was removed since
        :meth:`count_anew`. The database is asked only now and then."""
        self._check_open()
        if self._counted is None or self._clock.monotonic() - self._counted_at >= COUNT_SECONDS:
            self.count_anew()
        with self._lock:
            return (self._counted or NOTHING_QUEUED) + self._added

    def count_anew(self) -> None:
        """Let :meth:`bound` begin with what is in the queue now: operations have left it."""
        with self._lock:
            if self._counted is not None:
                self._counted += self._added
            self._added = NOTHING_QUEUED  # what is added from now on may count twice
        self._counted_at = self._clock.monotonic()
        counted = self.store.whole_queue(self.instance)
        with self._lock:
            self._counted = counted

    def remove(self, operations: Sequence[QueuedOperation]) -> RemovedOperations:
        """Take *operations* (as :meth:`peek` has shown them) out of the hands of other threads."""
        self._check_open()
        with self._lock:
            free = [operation for operation in operations if operation.seq not in self._held]
            self._held.update(operation.seq for operation in free)
        return RemovedOperations(self, free)

    def __len__(self) -> int:
        """How many operations are in the queue, those whose turn has not come included."""
        return self.store.queued(self.instance) if self._open else 0

    def close(self) -> None:
        """Hand everything back: others may take it at once. Closing again does nothing."""
        if self._open:
            self._open = False
            while self.store.repost(self.instance, self.settings.max_repost):
                pass

    def _add(self, added: tuple[int, QueueSummary]) -> int:
        count, summary = added
        with self._lock:
            self._added += summary
            if count > summary.count:  # another transaction accepted some in between
                self._counted = None
        return count

    def _check_open(self) -> None:
        if not self._open:
            raise QueueStoppedError

    def _settle(self, operations: Sequence[QueuedOperation]) -> None:
        with self._lock:
            self._held.difference_update(operation.seq for operation in operations)


class RemovedOperations:
    """Operations in the hands of one batch. End it with :meth:`ack` or :meth:`nack`; a ``with`` block gives back what
    was settled in neither way, at no cost of a retry."""

    def __init__(self, queue: OperationQueue, operations: Sequence[QueuedOperation]) -> None:
        self._queue = queue
        self.operations = operations

    def ack(self) -> None:
        """They are in a cut, or rejected: the queue is done with them."""
        self._queue._settle(self.operations)

    def nack(self, reasons: Mapping[int, str]) -> None:
        """Something failed: each is retried later, or dead when its retries are used up.

        *reasons* are by place in the order of acceptance; where one has none, another's failure was the cause.
        """
        settings, store = self._queue.settings, self._queue.store
        delays = {operation.seq: settings.delay(operation.retries) for operation in self.operations}
        store.requeue(self._queue.instance, delays, reasons=reasons, most=settings.max_retries)
        self._queue._settle(self.operations)

    def __enter__(self) -> RemovedOperations:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue._settle(self.operations)
