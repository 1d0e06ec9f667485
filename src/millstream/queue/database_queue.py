"""Work queues over message brokers: tasks in a database, which decides, and notices of them at a broker."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.closing import ClosesOnExit
from millstream.core.decoding import prepared
from millstream.core.errors import BusyError
from millstream.queue.protocol import DeadTask, Depth, Lease, QueueError, QueueInputError, leases_lost
from millstream.queue.task_rows import TaskRows

NOTICE_GRACE_SECONDS = 60.0
"""A task that is due for so long, and that no process has leased, is taken without its notice: the broker lost that."""

MAX_NOTICE_IDS = 100
"""The most tasks that one notice speaks of: fewer messages than tasks, and still enough to share."""

_ROWS_SECONDS = 1.0
"""How long notices that lead to tasks, but to fewer than were asked for, suffice: the rows rarely have others."""

_log = logging.getLogger(__name__)
_TaskId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_ids: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(
    prepared(Annotated[list[_TaskId], msgspec.Meta(max_length=MAX_NOTICE_IDS)])
)


class TaskNotice(Protocol):
    """A message of the broker: tasks that may be leased. It is the broker's until it is settled."""

    @property
    def ids(self) -> Sequence[int]: ...


class NoticeChannel(Protocol):
    """The notices of one queue at a broker. Thread-safe.

    While the broker is unreachable nothing is sent or received and no error is raised; connecting is retried.
    """

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        """Send notices of the tasks *ids*, some of them to come after *delays* seconds; the ids that were confirmed."""
        ...

    def receive(self, count: int) -> Sequence[Any]:
        """Each a :class:`TaskNotice`, of about *count* tasks in all; none where there is none, or no broker."""
        ...

    def settle(self, notices: Sequence[Any]) -> None:
        """The tasks of *notices* are leased or gone. What is not settled comes again by itself."""
        ...

    def close(self) -> None:
        """Disconnect from the broker; what was received and not settled goes back to it."""
        ...


class DatabaseWorkQueue(ClosesOnExit):
    """The queue *name*: its tasks are rows in the database of *engine*, *notices* of them travel over a broker.

    The rows decide; the notices spread the tasks over all processes that lease, with no process asking the database in
    vain. A task is durable before its notice is sent. What the broker does not confirm is sent again when it is back;
    meanwhile workers take it from the database. The methods are those of :class:`~millstream.queue.WorkQueue`.
    """

    def __init__(
        self, notices: NoticeChannel, engine: sa.Engine, name: str, clock: Clock, *, server_time: bool = True
    ) -> None:
        self._queue = name
        self._notices = notices
        self._rows = TaskRows(engine, name, clock, server_time=server_time)
        self._received: deque[tuple[TaskNotice, deque[int]]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._clock, self._rows_turn = clock, 0.0

    @property
    def name(self) -> str:
        return self._queue

    def put(self, tasks: Sequence[bytes], *, delay: float = 0.0) -> Sequence[int]:
        self._check_open()
        wait = _duration(delay, "delay", zero=True)
        if not tasks:
            return []
        ids = self._rows.put(tasks, wait)
        self._send(ids, dict.fromkeys(ids, delay) if delay else {})
        return ids

    def lease(self, count: int, *, visibility: float) -> Sequence[Lease]:
        self._check_open()
        length = _duration(visibility, "visibility")
        if count < 1:
            return []
        leases = list[Lease]()
        try:
            with self._lock:
                self._lease_noticed(leases, count, length)
            if len(leases) < count and self._is_rows_turn(found_some=bool(leases)):
                self._lease_overlooked(leases, count, length)
        except Exception:
            if not leases:  # those there are would be nobody's until they end
                raise
        return leases

    def extend(self, leases: Sequence[Lease], *, visibility: float) -> Sequence[Lease | None]:
        self._check_open()
        length = _duration(visibility, "visibility")
        return self._rows.extend(leases, length) if leases else []

    def ack(self, leases: Sequence[Lease]) -> None:
        self._check_open()
        if lost := self._rows.remove(leases):
            raise leases_lost(lost)

    def nack(self, lease: Lease, *, delay: float = 0.0, counted: bool = True) -> None:
        self._check_open()
        wait = _duration(delay, "delay", zero=True)
        _require(self._rows.give_back(lease, wait, counted=counted), lease)
        self._send([lease.task_id], {lease.task_id: delay} if delay else {})

    def dead_letter(self, lease: Lease, *, cause: str) -> None:
        self._check_open()
        _require(self._rows.bury(lease, cause), lease)

    def depth(self) -> Depth:
        self._check_open()
        return self._rows.depth()

    def unsettled(self, first: int, last: int) -> int:
        self._check_open()
        return self._rows.unsettled(first, last)

    def dead(self, *, limit: int = 100, after: int = 0) -> Sequence[DeadTask]:
        self._check_open()
        return self._rows.dead(limit, after)

    def find_dead(self, task_id: int) -> DeadTask | None:
        self._check_open()
        return self._rows.find_dead(task_id)

    def redrive(self, task_ids: Sequence[int] | None = None, *, per_second: float | None = None) -> int:
        self._check_open()
        revived = self._rows.revive(task_ids, per_second)
        self._announce(revived)
        return len(revived)

    def amend(self, task_id: int, body: bytes, *, seen: bytes) -> bool:
        self._check_open()
        return self._rows.amend(task_id, body, seen)

    def discard(self, task_ids: Sequence[int]) -> int:
        self._check_open()
        return self._rows.discard(task_ids)

    def close(self) -> None:
        self._closed = True
        self._notices.close()

    def _lease_noticed(self, leases: list[Lease], count: int, visibility: int) -> None:
        """Add to *leases*, until there are *count*, those of tasks that the broker has told of.

        What came early, or while a transaction had it locked, is sent on its way again.
        """
        while len(leases) < count:
            ids = self._next_ids(count - len(leases))
            if not ids:
                break
            unclaimed = ids
            try:
                claimed = self._rows.claim(ids, visibility)
                leases += claimed
                unclaimed = sorted(set(ids) - {lease.task_id for lease in claimed})
                if unclaimed:
                    early = self._rows.seconds_until_due(unclaimed)
                    self._notices.send(list(early), {task_id: wait / MICROSECONDS for task_id, wait in early.items()})
            except Exception:
                self._received[0][1].extendleft(reversed(unclaimed))  # for the next call: no other notice of them comes
                raise
            self._settle()

    def _lease_overlooked(self, leases: list[Lease], count: int, visibility: int) -> None:
        """Add to *leases*, until there are *count*, those of tasks that no notice tells of."""
        overlooked, unnoticed = self._rows.overlooked(count - len(leases), microseconds(NOTICE_GRACE_SECONDS))
        claimed = self._rows.claim(overlooked, visibility)
        leases += claimed
        self._announce({**unnoticed, **{one.task_id: visibility for one in claimed if one.task_id in unnoticed}})

    def _next_ids(self, count: int) -> list[int]:
        if not self._received:
            notices = self._notices.receive(count)
            self._received.extend((notice, deque(notice.ids)) for notice in notices)
        ids = list[int]()
        for _, remaining in self._received:
            while remaining and len(ids) < count:
                ids.append(remaining.popleft())
        if not ids:
            self._settle()
        return list(dict.fromkeys(ids))

    def _settle(self) -> None:
        """Acknowledge the notices whose tasks have all been looked at; their leases are durable by now."""
        done = list[TaskNotice]()
        while self._received and not self._received[0][1]:
            done.append(self._received.popleft()[0])
        if done:
            self._notices.settle(done)

    def _send(self, ids: Sequence[int], delays: Mapping[int, float]) -> None:
        """Send notices of tasks that are durable: what fails now fails no call, which would be repeated."""
        confirmed = self._notices.send(ids, delays or None)
        if confirmed:
            try:
                self._rows.noticed(confirmed)
            except BusyError as error:
                _log.warning("notices of %d tasks of queue %s are sent again: %s", len(confirmed), self._queue, error)

    def _is_rows_turn(self, *, found_some: bool) -> bool:
        """Whether the rows are asked for what notices do not tell of: always where these led to no task, else only now
        and then."""
        now = self._clock.monotonic()
        if found_some and now < self._rows_turn:
            return False
        self._rows_turn = now + _ROWS_SECONDS
        return True

    def _announce(self, waiting: Mapping[int, int]) -> None:
        """Tell the broker of the tasks *waiting*, and of the microseconds until they are due."""
        if waiting:
            self._send(list(waiting), {task_id: wait / MICROSECONDS for task_id, wait in waiting.items() if wait})

    def _check_open(self) -> None:
        if self._closed:
            raise QueueError(f"queue {self._queue!r} is closed: open the queue again")


def _duration(seconds: float, name: str, *, zero: bool = False) -> int:
    if not (seconds >= 0 if zero else seconds > 0):
        raise QueueInputError(f"{name} must be {'zero or more' if zero else 'more than zero'} seconds, not {seconds}")
    return microseconds(seconds)


def _require(kept: bool, lease: Lease) -> None:
    if not kept:
        raise leases_lost([lease.task_id])


def microseconds(seconds: float) -> int:
    """*seconds* as a whole number of microseconds."""
    return round(seconds * MICROSECONDS)


def write_notice(ids: Sequence[int]) -> bytes:
    """The body of a message that says that the tasks *ids* may be leased."""
    return msgspec.json.encode(list(ids))


def read_notice(body: bytes) -> list[int]:
    """What :func:`write_notice` wrote; nothing where it is none."""
    try:
        return _ids.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        _log.warning("a message that is not a notice was dropped")
        return []
