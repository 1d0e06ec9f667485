"""Group commit without timers: whoever waits and finds no commit running commits for everybody.

While one commit runs, the next one fills. Each thread that waits has a lock of its own (:mod:`.waiters`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from millstream.core.clock import Clock
from millstream.log.errors import DurabilityTimeoutError, FencedError, LogError, LogInputError, WriterFailedError
from millstream.log.frontier import Frontier
from millstream.log.ids import IdRange
from millstream.log.runtime.scheduler_thread import SchedulerThread
from millstream.log.spec import LogSpec
from millstream.log.writing.append_request import AppendRequest
from millstream.log.writing.rate_limiter import RateLimiter
from millstream.log.writing.waiters import Waiter, Waiters, wake

COMMIT_BYTES = 8 << 20
"""About how much one commit takes at most, unless a single request is larger."""

PENDING_BYTES = 64 << 20
"""How much may wait for a commit before those who append have to wait (back-pressure)."""

MAX_ID = 2**63 - 1


class GroupCommit:
    """Gives ids to append requests, and commits them in that order, many at once. Thread-safe.

    *commit* stores requests after the id it is given and returns the last id; each of *tell* is told the new watermark,
    outside every lock.
    """

    def __init__(
        self,
        spec: LogSpec,
        clock: Clock,
        scheduler: SchedulerThread,
        commit: Callable[[list[AppendRequest], int], int],
        tell: Sequence[Callable[[int], None]],
        *,
        last_id: int,
        sequence: int,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._scheduler = scheduler
        self._commit = commit
        self._tell = tell
        self._rate_limiter = RateLimiter(spec)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = Waiters()
        self._pending: deque[AppendRequest] = deque()
        self._pending_bytes = 0
        self._pending_messages = 0
        self._pending_since = 0.0
        self._leader = 0
        self._company = 0
        self._commit_is_due = False
        self._unattended = False
        self._closed = False
        self._listeners: list[Callable[[int, bool], bool]] = []
        self.failure: BaseException | None = None
        self.failure_is_known = False
        self._frontier = Frontier(last_id)
        self._given = last_id
        self._given_sequence = sequence

    @property
    def pointer(self) -> int:
        """The last durable id."""
        return self._frontier.pointer

    @property
    def given(self) -> int:
        """The last id that was given."""
        return self._given

    def enqueue(self, request: AppendRequest) -> IdRange | None:
        """Give ids to *request*, once there is room for it; None where its sequence was given before."""
        with self._lock:
            self._refuse()
            while not self._has_room(request):
                self._make_room()
                self._refuse()
            return self._add(request)

    def enqueue_if_room(self, request: AppendRequest) -> tuple[bool, IdRange | None]:
        """Like :meth:`enqueue`, but where there is no room it returns False at once, and has seen to it."""
        with self._lock:
            self._refuse()
            if not self._has_room(request):
                self._leave_to_keeper()
                return False, None
            ids = self._add(request)
            self._leave_to_keeper()
            return True, ids

    def leave(self) -> None:
        """Nobody may be waiting for what is pending: see that it is committed."""
        with self._lock:
            self._leave_to_keeper()

    def durable(self, last_id: int, timeout: float | None) -> None:
        """Wait until all up to *last_id* is durable, for *timeout* seconds at most."""
        if timeout is not None:
            self._durable_until(last_id, self._clock.monotonic() + timeout, timeout)
            return
        while self._frontier.pointer < last_id:
            waiter = Waiter(last_id)
            try:
                self._queue_up(waiter)
            except BaseException:
                self._take_over(waiter)
                raise
            if waiter.leads:
                self._lead()

    def close(self) -> bool:
        """Take no more requests; False where that was done before."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            self._changed.notify_all()
        if self._leader == threading.get_ident():  # interrupted before it could end its turn
            self._end_turn()
        return was_open

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be committed."""
        return self._closed or self.failure is not None

    def fail(self, error: BaseException) -> None:
        """Give up: whoever waits, and whoever comes, is told *error*."""
        with self._lock:
            self.failure = self.failure or error
            self._pending.clear()
            self._pending_bytes = self._pending_messages = 0
            self._unattended = False
            due = self._waiters.take()
            self._changed.notify_all()
            self._spread_news()
        wake(due)

    def listen(self, listener: Callable[[int, bool], bool]) -> None:
        """Call *listener* with the watermark, and whether all is over, whenever one of them changes.

        It is called under a lock, so it may do no more than pass the news on. Once it says False it is called no more.
        """
        with self._lock:
            self._listeners.append(listener)
            listener(self._frontier.pointer, self.failure is not None)

    def refuse_failure(self) -> None:
        """Raise what has gone wrong, if something has: :class:`FencedError`, :class:`WriterFailedError`."""
        error = self.failure
        if error is None:
            return
        self.failure_is_known = True
        if isinstance(error, FencedError):
            raise FencedError(str(error)) from error
        raise WriterFailedError(
            f"a commit to {self._spec.name!r} failed, and nothing after id {self._frontier.pointer} was confirmed: "
            f"{error}. Close this writer, see to the cause, and open a new one"
        ) from error

    def expect(self, last_id: int) -> None:
        """Raise where *last_id* is not durable and never will be."""
        if self._frontier.pointer >= last_id:
            return
        self.refuse_failure()
        if last_id > self._given:
            raise LogError(f"id {last_id} has not been given yet; the last one is {self._given}")

    def _refuse(self) -> None:
        self.refuse_failure()
        if self._closed:
            raise LogError(f"this writer of {self._spec.name!r} is closed; open a new one")

    def _add(self, request: AppendRequest) -> IdRange | None:
        if request.sequence is not None and request.sequence <= self._given_sequence:
            return None
        ids = IdRange(self._given + 1, self._given + request.count)
        if not request.count:
            return ids
        if ids.last > MAX_ID:
            raise LogInputError(f"the log {self._spec.name!r} is full: it has no id after {self._given}. Begin another")
        if not self._pending:
            self._pending_since = self._clock.monotonic() if not self._rate_limiter.is_unlimited else 0.0
        self._given = ids.last
        self._given_sequence = request.sequence or self._given_sequence
        self._pending.append(request)
        self._pending_bytes += request.size
        self._pending_messages += request.count
        if not self._rate_limiter.is_unlimited and self._is_full():
            self._changed.notify_all()
        return ids

    def _has_room(self, request: AppendRequest) -> bool:
        return not self._pending or self._pending_bytes + request.size <= PENDING_BYTES

    def _make_room(self) -> None:
        if self._may_lead():
            self._lead_unlocked()
        else:
            self._clock.wait(self._changed, None)

    def _may_lead(self) -> bool:
        """Whether nobody else commits.

        A thread whose turn it is and that comes again was interrupted (Ctrl-C) before it began: it takes its turn now.
        """
        return self._leader in (0, threading.get_ident())

    def _lead_unlocked(self) -> None:
        """Let go of the lock and commit."""
        self._leader = threading.get_ident()
        self._changed.release()
        try:
            self._lead()
        finally:
            self._changed.acquire()

    def _queue_up(self, waiter: Waiter) -> None:
        """Wait until the ids of *waiter* are durable, or it leads."""
        with self._lock:
            if self._frontier.pointer >= waiter.last_id:
                return
            self.expect(waiter.last_id)
            waiter.leads = self._may_lead()
            if waiter.leads:
                self._leader = waiter.thread
                return
            self._waiters.add(waiter)
        waiter.wait()

    def _durable_until(self, last_id: int, deadline: float, timeout: float) -> None:
        with self._lock:
            while self._frontier.pointer < last_id:
                self.expect(last_id)
                left = deadline - self._clock.monotonic()
                if self._may_lead():
                    self._lead_unlocked()
                elif left > 0:
                    self._clock.wait(self._changed, left)
                else:
                    raise DurabilityTimeoutError(f"id {last_id} is not durable after {timeout} seconds; wait again")

    def _take_over(self, waiter: Waiter) -> None:
        """*waiter* was interrupted: do for others what it should have done."""
        with self._lock:
            if self._waiters.leave(waiter):
                return
        if waiter.successor is not None:
            waiter.successor.wake()
        if waiter.leads:
            self._end_turn()

    def _lead(self) -> None:
        """Commit a share of what is pending. It is this thread's turn: it, or who woke it, has set ``_leader``.

        The lock is held for moments only. Threads that find it taken queue up behind it, and are overtaken there.
        """
        try:
            self._let_others_join()
            with self._lock:
                self._await_turn()
                requests = self._take()
            self._company = len(requests)
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
        while joined < len(self._pending) < self._company and self._company > 1:
            joined = len(self._pending)
            self._clock.sleep(0)

    def _end_turn(self) -> None:
        due: list[Waiter] = []
        next_one = None
        try:
            with self._lock:
                due = self._waiters.take(self._frontier.pointer if self.failure is None else None)
                self._leader = 0
                next_one = self._next_leader()
                self._changed.notify_all()
                self._schedule()
                self._spread_news()
        finally:
            wake(due)
            if next_one is not None:
                next_one.wake()

    def _next_leader(self) -> Waiter | None:
        """One who waits for what is pending, and has the next turn; where nobody does, the scheduler thread will."""
        waiter = self._waiters.promote() if self._pending and self.failure is None else None
        self._leader = 0 if waiter is None else waiter.thread
        return waiter

    def _store(self, requests: list[AppendRequest]) -> None:
        last_id = self._commit(requests, self._frontier.pointer)
        self._frontier.add(self._frontier.pointer + 1, last_id)
        for tell in self._tell:
            tell(last_id)

    def _await_turn(self) -> None:
        """Wait as linger and rates ask."""
        while self.failure is None and (delay := self._delay()) > 0:
            self._clock.wait(self._changed, delay)

    def _delay(self) -> float:
        """For how many seconds the next commit has to be put off."""
        if self._rate_limiter.is_unlimited:
            return 0.0
        full = self._is_full() or self._closed
        return self._rate_limiter.delay(self._clock.monotonic(), self._pending_since, full=full)

    def _is_full(self) -> bool:
        return self._pending_bytes >= self._spec.block_bytes or self._pending_messages >= self._spec.block_messages

    def _take(self) -> list[AppendRequest]:
        requests: list[AppendRequest] = []
        size = count = 0
        if self._pending_bytes <= COMMIT_BYTES and self._rate_limiter.is_unlimited:
            requests, size, count = list(self._pending), self._pending_bytes, self._pending_messages
            self._pending.clear()
        while self._pending and not (requests and self._exceeds(size + self._pending[0].size, count)):
            requests.append(self._pending.popleft())
            size += requests[-1].size
            count += requests[-1].count
        self._pending_bytes -= size
        self._pending_messages -= count
        self._unattended = self._unattended and bool(self._pending)
        if not self._rate_limiter.is_unlimited:
            self._pending_since = self._clock.monotonic()
            self._rate_limiter.spend(self._pending_since, count)
        return requests

    def _exceeds(self, size: int, count: int) -> bool:
        return size > COMMIT_BYTES or count >= self._rate_limiter.max_messages

    def _leave_to_keeper(self) -> None:
        self._unattended = bool(self._pending)
        self._schedule()

    def _schedule(self) -> None:
        """See that somebody commits what nobody may be waiting for; while a commit runs, its end sees to that."""
        if self._unattended and not self._leader and not self._commit_is_due:
            self._commit_is_due = True
            self._scheduler.after(self._delay(), self._commit_pending)

    def _commit_pending(self) -> None:
        """Commit what is unattended, a share at a time, so that other chores of the store get their turn."""
        with self._lock:
            self._commit_is_due = False
            if not self._pending or self._leader or self.failure is not None:
                return
            if self._delay() > 0:
                self._schedule()
                return
            self._leader = threading.get_ident()
        self._lead()

    def _spread_news(self) -> None:
        over = self.failure is not None
        self._listeners = [listener for listener in self._listeners if listener(self._frontier.pointer, over)]
