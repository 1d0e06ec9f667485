"""The work queue on a log: every change of a task is a message, and the state is what the messages add up to."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence

import msgspec

from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.core.message import Message
from millstream.log import FencedError, Log, LogError, LogSpec, LogStore, Writer, WriterFailedError, system_log
from millstream.queue.events import (
    Acked,
    Amended,
    Died,
    Event,
    Extended,
    Leased,
    Nacked,
    Redriven,
    event_message,
    put_message,
)
from millstream.queue.protocol import DeadTask, Depth, Lease, QueueError, QueueInputError, leases_lost, redrive_times
from millstream.queue.snapshot import POINTER, recover, snapshot_messages

_PREFIX = "queue."
_LOGS = system_log(_PREFIX, "queue").name

SNAPSHOT_AFTER = 5_000
"""Messages after which the next snapshot is due; more where more tasks are open than that."""

_log = logging.getLogger(__name__)


def queue_log(name: str) -> LogSpec:
    """The system log of the work queue *name* of a node."""
    return system_log(_PREFIX + name, "queue")


def queues_on_logs(store: LogStore) -> Sequence[str]:
    """The names of the work queues that have such a log in *store*, sorted."""
    return [queue_name(name) for name in store.logs() if name.startswith(_LOGS)]


def queue_name(log: str) -> str:
    """The name of the work queue whose system log is called *log*."""
    return log.removeprefix(_LOGS)


class LogWorkQueue(ClosesOnExit):
    """A work queue on *log*, of which it is the one writer; exact in all it says.

    What a method confirms is durable, a lease too: an attempt counts even if the worker's process dies at once.
    Threads that call at the same time share commits. From time to time it writes a snapshot to the log, and trims older
    messages. Raises the log's ``WriterBusyError`` if the queue is open elsewhere, and :class:`DamagedQueueError` if the
    log is not a queue's. After a commit that failed, or was refused because another process had the queue, the next
    call reads the queue again, from what the log has. The methods are those of :class:`WorkQueue`.
    """

    def __init__(self, log: Log, clock: Clock | None = None, *, snapshot_after: int = SNAPSHOT_AFTER) -> None:
        self._log = log
        self._clock = clock or SystemClock()
        self._snapshot_after = snapshot_after
        self._lock = threading.Lock()
        self._snapshots = threading.Lock()
        self._closed = False
        self._open()

    def _open(self) -> None:
        writer = self._log.writer("queue")
        try:
            self._state, self._since_snapshot = recover(self._log)
        except BaseException:
            writer.close()
            raise
        self._writer, self._failed = writer, False

    @property
    def name(self) -> str:
        return self._log.name

    def put(self, tasks: Sequence[bytes], *, delay: float = 0.0) -> Sequence[int]:
        with self._opened() as writer:
            ready_at, now = self._after(delay) if delay else None, self._clock.now()
            messages = [put_message(task, ready_at, now) for task in tasks]
            if not messages:
                return []
            last = self._record(messages)
            ids = range(last - len(messages) + 1, last + 1)
            for task_id, task in zip(ids, tasks, strict=True):
                self._state.put(task_id, task, ready_at, now)
        self._confirm(writer, last)
        return ids

    def lease(self, count: int, *, visibility: float) -> Sequence[Lease]:
        with self._opened() as writer:
            until = self._until(visibility)
            self._mature()
            tasks = self._state.next_ready(count)
            if not tasks:
                return []
            number = self._apply(Leased([task.id for task in tasks], until))
            leases = [
                Lease(task_id=task.id, body=task.body, attempts=task.attempts, token=str(number), until=until)
                for task in tasks
            ]
        self._confirm(writer, number)
        return leases

    def extend(self, leases: Sequence[Lease], *, visibility: float) -> Sequence[Lease | None]:
        with self._opened() as writer:
            until = self._until(visibility)
            held = self._held(leases)
            if not held:
                return [None] * len(leases)
            number = self._apply(Extended(sorted({lease.task_id for lease in held}), until))
        self._confirm(writer, number)
        return [msgspec.structs.replace(lease, until=until) if lease in held else None for lease in leases]

    def ack(self, leases: Sequence[Lease]) -> None:
        number = 0
        with self._opened() as writer:
            held = self._held(leases)
            lost = [lease.task_id for lease in leases if lease not in held]
            if held:
                number = self._apply(Acked(sorted({lease.task_id for lease in held})))
        self._confirm(writer, number)
        if lost:
            raise leases_lost(lost)

    def nack(self, lease: Lease, *, delay: float = 0.0, counted: bool = True) -> None:
        with self._opened() as writer:
            ready_at = self._after(delay)
            self._require(lease)
            number = self._apply(Nacked([lease.task_id], ready_at, untried=not counted))
        self._confirm(writer, number)

    def dead_letter(self, lease: Lease, *, cause: str) -> None:
        with self._opened() as writer:
            self._require(lease)
            number = self._apply(Died([lease.task_id], self._clock.now(), cause))
        self._confirm(writer, number)

    def depth(self) -> Depth:
        with self._opened():
            return self._state.depth(self._clock.now())

    def unsettled(self, first: int, last: int) -> int:
        with self._opened():
            return self._state.unsettled(first, last)

    def dead(self, *, limit: int = 100, after: int = 0) -> Sequence[DeadTask]:
        with self._opened():
            return self._state.dead(limit=limit, after=after)

    def find_dead(self, task_id: int) -> DeadTask | None:
        with self._opened():
            return self._state.find_dead(task_id)

    def redrive(self, task_ids: Sequence[int] | None = None, *, per_second: float | None = None) -> int:
        with self._opened() as writer:
            now = self._clock.now()
            wanted = None if task_ids is None else set(task_ids)
            ids = [task.task_id for task in self._state.dead() if wanted is None or task.task_id in wanted]
            if not ids:
                return 0
            slots = list(redrive_times(ids, per_second, now))
            events = [Redriven(list(some), at if at > now else 0) for at, some in slots]
            number = self._record([event_message(event) for event in events])
            for event in events:
                self._state.apply(event, number)
        self._confirm(writer, number)
        return len(ids)

    def amend(self, task_id: int, body: bytes, *, seen: bytes) -> bool:
        with self._opened() as writer:
            found = self._state.find_dead(task_id)
            if found is None or found.body != seen:
                return False
            number = self._apply(Amended([task_id], body))
        self._confirm(writer, number)
        return True

    def discard(self, task_ids: Sequence[int]) -> int:
        with self._opened() as writer:
            wanted = set(task_ids)
            ids = [task.task_id for task in self._state.dead() if task.task_id in wanted]
            if not ids:
                return 0
            number = self._apply(Acked(ids))
        self._confirm(writer, number)
        return len(ids)

    def reclaim(self) -> int:
        """Take back every leased task at once; returns how many.

        For callers whose workers have ended, such as those of the node's previous process. Attempts stay counted. Not
        part of the protocol :class:`WorkQueue`: leases of workers elsewhere must expire.
        """
        with self._opened() as writer:
            now = self._mature()
            ids = self._state.leased()
            if not ids:
                return 0
            number = self._apply(Nacked(ids, now))
        self._confirm(writer, number)
        return len(ids)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._writer.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Writer]:
        """The lock of the queue, and its writer: a new one where a commit failed.

        Raises :class:`QueueError` where the queue is closed: what it knew may no longer hold.
        """
        with self._lock:
            if self._closed:
                raise QueueError(f"the queue {self.name!r} is closed: open the queue again")
            if self._failed:
                self._writer.close()  # a second time it does nothing
                self._open()
            yield self._writer

    def _apply(self, event: Event) -> int:
        """Record *event* and change the state by it; the id of its message."""
        number = self._record([event_message(event)])
        self._state.apply(event, number)
        return number

    def _record(self, messages: list[Message]) -> int:
        """Append *messages*; the id of the last one. They are in order, but durable only once confirmed."""
        try:
            ids = self._writer.append_nowait(messages)
        except (WriterFailedError, FencedError):
            self._failed = True
            raise
        assert ids is not None
        self._since_snapshot += len(messages)
        return ids.last

    def _confirm(self, writer: Writer, number: int) -> None:
        """Wait until everything up to message *number* is durable. The lock is not held: callers share the commit."""
        self._await_durable(writer, number)
        # One at a time: a slow one would set the pointer back into what a later one has trimmed.
        if self._since_snapshot >= self._snapshot_after and self._snapshots.acquire(blocking=False):
            try:
                self._take_snapshot()
            except LogError:  # what the caller asked for is durable; the next snapshot is due as after this one
                _log.exception("a snapshot of the queue %s failed", self.name)
            finally:
                self._snapshots.release()

    def _await_durable(self, writer: Writer, number: int) -> None:
        try:
            writer.durable(number)
        except (WriterFailedError, FencedError):
            if writer is self._writer:  # another thread may have replaced it already
                self._failed = True
            raise

    def _take_snapshot(self) -> None:
        with self._lock:
            if self._closed or self._since_snapshot < max(self._snapshot_after, 2 * len(self._state)):
                return
            try:
                writer, messages = self._writer, snapshot_messages(self._state)
                last = self._record(messages)
            finally:  # also if it fails: one that is too large would fail at each call
                self._since_snapshot = 0
        self._await_durable(writer, last)
        self._log.set_pointer(POINTER, last - len(messages))
        self._log.trim(last - len(messages) + 1)

    def _mature(self) -> int:
        now = self._clock.now()
        self._state.mature(now)
        return now

    def _held(self, leases: Sequence[Lease]) -> set[Lease]:
        """Those of *leases* that are current."""
        now = self._mature()
        return {lease for lease in leases if self._state.holds(lease.task_id, lease.token, now)}

    def _require(self, lease: Lease) -> None:
        if not self._state.holds(lease.task_id, lease.token, self._mature()):
            raise leases_lost([lease.task_id])

    def _until(self, visibility: float) -> int:
        if visibility <= 0:
            raise QueueInputError(f"the visibility timeout of a lease must be more than 0 seconds, not {visibility}")
        return self._after(visibility)

    def _after(self, seconds: float) -> int:
        if seconds < 0:
            raise QueueInputError(f"a delay must be 0 seconds or more, not {seconds}")
        return self._clock.now() + round(seconds * MICROSECONDS)
