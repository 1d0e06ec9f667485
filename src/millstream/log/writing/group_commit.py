"""Group commit without timers: a thread that waits and finds no commit running commits for all threads.

While one commit runs, the next one fills. Who commits next is a state machine (:mod:`.commit_turn`); what waits for it
lies in :mod:`.pending_requests`; a thread that waits for the result is woken by :mod:`.durability_notifier`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.core.clock import Clock
from millstream.log.errors import DurabilityTimeoutError, FencedError, LogError, WriterFailedError
from millstream.log.ids import IdRange
from millstream.log.runtime.scheduler_thread import SchedulerThread
from millstream.log.spec import LogSpec
from millstream.log.writing.append_request import AppendRequest
from millstream.log.writing.commit_turn import ASSIGNED, IDLE, CommitTurn
from millstream.log.writing.durability_notifier import DurabilityListener, DurabilityNotifier
from millstream.log.writing.pending_requests import PendingRequests
from millstream.log.writing.rate_limiter import RateLimiter
from millstream.log.writing.waiters import Waiter, wake


class GroupCommit:
    """Gives ids to append requests, and commits them in that order, many at once. Thread-safe.

    *commit* stores requests after the id it is given and returns the last id. Each of *on_durable* is called with the
    new watermark, outside every lock. ``pointer`` is the watermark, the last durable id; ``failure`` is what has ended
    the writer, and ``failure_is_known`` whether a caller was told.
    """

    def __init__(
        self,
        spec: LogSpec,
        clock: Clock,
        scheduler: SchedulerThread,
        commit: Callable[[list[AppendRequest], int], int],
        on_durable: Sequence[Callable[[int], None]],
        *,
        last_id: int,
        sequence: int,
    ) -> None:
        self._name = spec.name
        self._clock = clock
        self._scheduler = scheduler
        self._commit = commit
        self._on_durable = on_durable
        self._rate_limiter = RateLimiter(spec)
        self._lock = threading.Lock()
        self._turn = CommitTurn()
        self._pending = PendingRequests(spec, last_id=last_id, sequence=sequence)
        self._notifier = DurabilityNotifier(self._lock, clock)
        self._last_company = 0
        self._is_scheduled = self._is_lingering = False
        self._closed = False
        self.pointer = last_id
        self.failure: BaseException | None = None
        self.failure_is_known = False

    @property
    def last_given(self) -> int:
        """The last id that was given to a request."""
        return self._pending.last_id

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be appended."""
        return self._closed or self.failure is not None

    # Appending

    def enqueue(self, request: AppendRequest, *, leaves: bool = False) -> IdRange | None:
        """Give ids to *request*, once there is room for it; None where its sequence was given before.

        A caller that *leaves* does not wait for it: the scheduler thread commits it.
        """
        with self._lock:
            self._check_open()
            while not self._pending.has_room(request):
                self._make_room()
                self._check_open()
            ids = self._add(request)
            if leaves:
                self._leave_to_scheduler()
            return ids

    def enqueue_if_room(self, request: AppendRequest) -> tuple[int, IdRange | None]:
        """Like :meth:`enqueue`, after a 0. Without room it returns at once the id that has to be durable before there
        may be some; the scheduler thread sees to it.
        """
        with self._lock:
            if self.failure is not None or self._closed:
                self._check_open()
            pending = self._pending
            has_room = pending.has_room(request)
            ids = self._add(request) if has_room else None
            if pending.requests:
                pending.unattended = True
                if self._turn.state is IDLE and (self._is_lingering or not self._is_scheduled):
                    self._schedule()  # else one more of many coroutines need not call it
            return 0 if has_room else self.pointer + 1, ids  # what is pending ends there or later

    def leave(self) -> None:
        """Let the scheduler thread commit what is pending: no thread may be waiting for it."""
        with self._lock:
            self._leave_to_scheduler()

    def _check_open(self) -> None:
        if self.failure is not None:
            self.refuse_failure()
        if self._closed:
            raise LogError(f"this writer of log {self._name!r} is closed: open a new one")

    def _add(self, request: AppendRequest) -> IdRange | None:
        if self._rate_limiter.is_unlimited:
            return self._pending.add(request, 0.0)
        ids = self._pending.add(request, self._clock.monotonic())
        if self._pending.is_full():
            self._notifier.wake_all()
        return ids

    def _make_room(self) -> None:
        if self._turn.is_free_for(threading.get_ident()):
            self._lead_unlocked()
        else:
            self._notifier.wait(None)

    # Waiting

    def durable(self, last_id: int, timeout: float | None) -> None:
        """Wait until all up to *last_id* is durable, for *timeout* seconds at most."""
        if timeout is not None:
            self._durable_until(last_id, self._clock.monotonic() + timeout, timeout)
            return
        while self.pointer < last_id:
            waiter = Waiter(last_id)
            try:
                self._queue_up(waiter)
            except BaseException:
                self._take_over(waiter)
                raise
            if waiter.leads:
                self._lead()

    def listen(self, listener: DurabilityListener) -> None:
        """Call *listener* with the watermark, and whether the writer has failed, whenever one of them changes.

        It is called under a lock, so it may do no more than pass the news on. Once it returns False it is called no
        more.
        """
        with self._lock:
            self._notifier.listen(listener, self.pointer, self.failure is not None)

    def expect(self, last_id: int) -> None:
        """Raise where *last_id* is not durable and never will be."""
        if self.pointer >= last_id:
            return
        if self.failure is not None:
            self.refuse_failure()
        if last_id > self._pending.last_id:
            raise LogError(
                f"message {last_id} of log {self._name!r} has not been appended: the last id of this writer is "
                f"{self._pending.last_id}; wait for that id or an earlier one"
            )

    def _queue_up(self, waiter: Waiter) -> None:
        """Wait until the ids of *waiter* are durable, or it leads."""
        with self._lock:
            if self.pointer >= waiter.last_id:
                return
            self.expect(waiter.last_id)
            if self._turn.is_free_for(waiter.thread):
                self._turn.take(waiter.thread)
                waiter.leads = True
                return
            self._notifier.waiters.add(waiter)
        waiter.wait()

    def _durable_until(self, last_id: int, deadline: float, timeout: float) -> None:
        with self._lock:
            while self.pointer < last_id:
                self.expect(last_id)
                left = deadline - self._clock.monotonic()
                if self._turn.is_free_for(threading.get_ident()):
                    self._lead_unlocked()
                elif left > 0:
                    self._notifier.wait(left)
                else:
                    raise DurabilityTimeoutError(
                        f"message {last_id} of log {self._name!r} is not yet durable after {timeout:g} s: call "
                        "durable() again; do not append the message again"
                    )

    def _take_over(self, waiter: Waiter) -> None:
        """*waiter* was interrupted: do for others what it should have done."""
        with self._lock:
            if self._notifier.waiters.leave(waiter):
                return
        if waiter.successor is not None:
            waiter.successor.wake()
        if waiter.leads:
            self._end_turn()

    # Committing

    def _lead_unlocked(self) -> None:
        """Take the turn, release the lock, and commit."""
        self._turn.take(threading.get_ident())
        self._lock.release()
        try:
            self._lead()
        finally:
            self._lock.acquire()

    def _lead(self) -> None:
        """Commit a share of what is pending. This thread has the turn: it took it, or was woken with it.

        The lock is held for moments only. Threads that find it taken queue up behind it, and are overtaken there.
        """
        try:
            self._let_others_join()
            with self._lock:
                requests = self._gather()
            self._last_company = len(requests)
            if requests:
                self._store(requests)
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._end_turn()

    def _let_others_join(self) -> None:
        """Let those whom the last commit has just woken append first, as long as some of them still do.

        Else half of them would always be late for every other commit, and the slowest would never get their turn.
        """
        joined = -1
        while joined < len(self._pending.requests) < self._last_company and self._last_company > 1:
            joined = len(self._pending.requests)
            self._clock.sleep(0)

    def _gather(self) -> list[AppendRequest]:
        """Take what is pending, once linger and rate limits allow it; nothing after a failure."""
        while self.failure is None and (delay := self._delay()) > 0:
            self._notifier.wait(delay)
        if self.failure is not None or not self._pending.requests:
            return []
        if self._turn.state is ASSIGNED:
            self._turn.take(threading.get_ident())
        requests = self._pending.take(self._rate_limiter.max_messages)
        if not self._rate_limiter.is_unlimited:
            self._pending.since = self._clock.monotonic()
            self._rate_limiter.spend(self._pending.since, sum(request.count for request in requests))
        self._turn.store()
        return requests

    def _store(self, requests: list[AppendRequest]) -> None:
        self.pointer = self._commit(requests, self.pointer)
        for notify in self._on_durable:
            notify(self.pointer)

    def _end_turn(self) -> None:
        """Give up the turn: to a thread that waits for what is pending, else to the next thread."""
        due: list[Waiter] = []
        next_leader = None
        try:
            with self._lock:
                failed = self.failure is not None
                due = self._notifier.take_due(self.pointer, failed)
                self._turn.end()
                if self._pending.requests and not failed:
                    next_leader = self._notifier.waiters.promote()
                    if next_leader is not None:
                        self._turn.assign(next_leader.thread)
                self._schedule()
                self._notifier.publish(self.pointer, failed)
        finally:
            if due:
                wake(due)
            if next_leader is not None:
                next_leader.wake()

    def _delay(self) -> float:
        """For how many seconds the next commit has to be put off."""
        if self._rate_limiter.is_unlimited:
            return 0.0
        full = self._closed or self._pending.is_full()
        return self._rate_limiter.delay(self._clock.monotonic(), self._pending.since, full=full)

    # Commits that no thread waits for

    def _leave_to_scheduler(self) -> None:
        self._pending.unattended = bool(self._pending.requests)
        self._schedule()

    def _schedule(self) -> None:
        """Let the scheduler thread commit what is unattended. While a commit runs, the end of its turn does this."""
        if not self._pending.unattended or self._turn.state is not IDLE:
            return
        if not self._is_scheduled or (self._is_lingering and self._pending.is_full()):
            delay = self._delay()
            self._is_scheduled, self._is_lingering = True, delay > 0 and not self._pending.is_full()
            self._scheduler.after(delay, self._commit_unattended)

    def _commit_unattended(self) -> None:
        """Commit a share of what is unattended: other calls of the scheduler thread get their turn in between."""
        with self._lock:
            self._is_scheduled = self._is_lingering = False
            if not self._pending.requests or self._turn.state is not IDLE:
                return
            if self._delay() > 0:
                self._schedule()
                return
            self._turn.take(threading.get_ident())
        self._lead()

    # The end

    def close(self) -> bool:
        """Take no more requests; False where that was done before."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            self._notifier.wake_all()
        if self._turn.thread == threading.get_ident():  # interrupted before it could end its turn
            self._end_turn()
        return was_open

    def fail(self, error: BaseException) -> None:
        """Commit nothing more: waiting and later callers get *error*."""
        with self._lock:
            self.failure = self.failure or error
            self._turn.fail()
            self._pending.clear()
            due = self._notifier.take_due(self.pointer, failed=True)
            self._notifier.publish(self.pointer, failed=True)
        wake(due)

    def refuse_failure(self) -> None:
        """Raise what has gone wrong, if something has: :class:`FencedError`, :class:`WriterFailedError`."""
        error = self.failure
        if error is None:
            return
        self.failure_is_known = True
        if isinstance(error, FencedError):
            raise FencedError(str(error)) from error
        raise WriterFailedError(
            f"a commit to log {self._name!r} failed, and nothing after id {self.pointer} was confirmed: "
            f"{error}. Close this writer, fix the cause, and open a new one, whose last_id shows which unconfirmed "
            "messages are stored"
        ) from error
