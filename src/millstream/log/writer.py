"""The writer of a log: group commit without timers, confirmations by watermark.

Whoever waits for a commit and finds none running commits for everybody; while one commit runs, the next one fills.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from millstream.log.backend import Backend, Commit, Head, producer_key
from millstream.log.block import Origin
from millstream.log.errors import DamagedLogError, DurabilityTimeoutError, FencedError, LogError, WriterFailedError
from millstream.log.frontier import Frontier
from millstream.log.ids import IdRange
from millstream.log.lease import Lease
from millstream.log.pack import Messages, Pack, encode_packs, make_pack, refuse_more_than_bodies
from millstream.log.spec import LogSpec
from millstream.log.surroundings import Surroundings

COMMIT_BYTES = 8 << 20
"""About how much one commit takes at most, unless a single pack is larger."""

PENDING_BYTES = 64 << 20
"""How much may wait for a commit before those who append have to wait (back-pressure)."""

_log = logging.getLogger(__name__)


class Writer:
    """Appends to one log, under its lease. Thread-safe; many threads that append share commits.

    Made by :meth:`millstream.log.Log.writer`; close it, or use it in a ``with`` block.
    """

    def __init__(self, spec: LogSpec, producer: str, lease: Lease, around: Surroundings) -> None:
        self._backend = backend = around.backend
        self._clock = around.clock
        self._keeper = around.keeper
        self._tail = around.tail
        self._bodies_only = around.bodies_only
        self._spec = spec
        self._producer = producer
        self._lease = lease
        self._changed = threading.Condition()
        self._pending: deque[Pack] = deque()
        self._pending_bytes = 0
        self._committing = False
        self._shared = False
        self._commit_is_due = False
        self._unattended = False
        self._failure: BaseException | None = None
        self._reported = False
        self._closed = False
        self._callbacks: list[Callable[[int], None]] = []
        head = backend.head(spec.name)
        _refuse_damage(backend, spec.name, head)
        self._frontier = Frontier(head.last_id)
        self._given = head.last_id
        self._received_at = head.received_at
        self._sequence = int(backend.get_state(spec.name, producer_key(producer)).value or 0)
        self._given_sequence = self._sequence
        self._keeper.after(lease.seconds / 3, self._renew)

    @property
    def last_id(self) -> int:
        """The last durable id (0 in an empty log)."""
        return self._frontier.pointer

    @property
    def sequence(self) -> int:
        """The last durable sequence of this producer (0 at first)."""
        return self._sequence

    def append(self, messages: Messages, *, sequence: int | None = None) -> IdRange | None:
        """Store *messages* and return their ids once they are durable; all of them are stored, or none.

        With *sequence* (1, 2, 3 … of this producer) a call is safe to repeat: what has been stored is not stored
        again, and None is returned. An empty call stores nothing, not even its sequence. Raises
        :class:`LogInputError`, :class:`FencedError`, :class:`WriterFailedError`.
        """
        ids = self._enqueue(make_pack(messages, sequence))
        self.durable(self._given if ids is None else ids.last)
        return ids

    def append_nowait(self, messages: Messages, *, sequence: int | None = None) -> IdRange | None:
        """Like :meth:`append`, but return at once; :meth:`durable` tells when they are durable.

        It waits only while more than 64 MiB are under way.
        """
        ids = self._enqueue(make_pack(messages, sequence))
        with self._changed:
            self._unattended = bool(self._pending)
            self._schedule_commit()
        return ids

    def durable(self, last_id: int, *, timeout: float | None = None) -> None:
        """Wait until every message up to *last_id* is durable.

        Raises :class:`DurabilityTimeoutError` after *timeout* seconds, :class:`FencedError`,
        :class:`WriterFailedError`.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            while self._frontier.pointer < last_id:
                self._refuse_after_failure()
                if last_id > self._given:
                    raise LogError(f"id {last_id} has not been given yet; the last one is {self._given}")
                if not self._committing:
                    self._lead()
                    continue
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise DurabilityTimeoutError(f"id {last_id} is not durable after {timeout} seconds; wait again")
                self._clock.wait(self._changed, left)

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Call *callback* with the last durable id after every commit, in order, in a thread that appends.

        The next commit waits for it, so it must be quick and must not append; what it raises is logged.
        """
        with self._changed:
            self._callbacks.append(callback)

    def close(self) -> None:
        """Make everything durable and let the next writer in. Closing again does nothing.

        Raises :class:`FencedError` or :class:`WriterFailedError` where messages were lost and nobody has been told.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
        try:
            if not self._reported:
                self.durable(self._given)
        finally:
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._failure is not None:
            self._reported = True  # what went wrong is under way already
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a writer stays in its process; open the store by its URL in the other one")

    def _enqueue(self, pack: Pack) -> IdRange | None:
        if self._bodies_only:
            refuse_more_than_bodies(pack)
        with self._changed:
            self._wait_for_room(pack.size)
            if self._closed:
                raise LogError(f"this writer of {self._spec.name!r} is closed; open a new one")
            if pack.sequence is not None and pack.sequence <= self._given_sequence:
                return None
            ids = IdRange(self._given + 1, self._given + pack.count)
            self._given = ids.last
            if pack.count:
                self._given_sequence = pack.sequence or self._given_sequence
                self._pending.append(pack)
                self._pending_bytes += pack.size
            return ids

    def _wait_for_room(self, size: int) -> None:
        self._refuse_after_failure()
        while self._pending and self._pending_bytes + size > PENDING_BYTES:
            if self._committing:
                self._clock.wait(self._changed, None)
            else:
                self._lead()
            self._refuse_after_failure()

    def _lead(self) -> None:
        """Commit a share of what is pending; the lock is held on entry and on return, not in between."""
        self._committing = True
        try:
            with self._unlocked():
                self._let_others_join()
            packs = self._take()
            self._shared = len(packs) > 1
            with self._unlocked():
                self._commit(packs)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._committing = False
            self._changed.notify_all()
            self._schedule_commit()

    def _let_others_join(self) -> None:
        """Let the threads that the last commit has just woken append first.

        Without it half of the senders would always be late for every other commit; it halves the commits.
        """
        if self._shared:
            self._clock.sleep(0)

    def _take(self) -> list[Pack]:
        packs: list[Pack] = []
        size = 0
        while self._pending and (not packs or size + self._pending[0].size <= COMMIT_BYTES):
            packs.append(self._pending.popleft())
            size += packs[-1].size
        self._pending_bytes -= size
        self._unattended = self._unattended and bool(self._pending)
        return packs

    def _commit(self, packs: list[Pack]) -> None:
        previous = self._frontier.pointer
        now = max(self._clock.now(), self._received_at)
        sequence = max((pack.sequence for pack in packs if pack.sequence is not None), default=None)
        origin = Origin(self._spec.name, self._lease.epoch, self._producer, sequence or 0)
        blocks = encode_packs(packs, previous + 1, now, self._spec, origin)
        last = blocks[-1].header.last_id
        commit = Commit(self._lease.epoch, previous, last, now, blocks, self._producer, sequence)
        self._backend.commit(self._spec.name, commit)
        self._received_at = now
        self._sequence = self._sequence if sequence is None else sequence
        self._frontier.add(previous + 1, last)
        self._tell(last)

    def _tell(self, last_id: int) -> None:
        self._tail.announce()
        for callback in self._callbacks:
            try:
                callback(last_id)
            except Exception:
                _log.exception("a callback of the log %s failed", self._spec.name)

    def _commit_pending(self) -> None:
        """Commit what append_nowait has left, a share at a time, so that other chores of the store get their turn."""
        with self._changed:
            self._commit_is_due = False
            if self._pending and not self._committing and self._failure is None:
                self._lead()

    def _schedule_commit(self) -> None:
        """See that somebody commits what nobody may be waiting for; while a commit runs, its end sees to that."""
        if self._unattended and not self._committing and not self._commit_is_due:
            self._commit_is_due = True
            self._keeper.after(0, self._commit_pending)

    def _renew(self) -> None:
        if self._closed or self._failure is not None:
            return
        try:
            if not self._lease.renew():
                with self._changed:
                    self._fail(FencedError(f"the log {self._spec.name!r} has a newer writer; close this one"))
        finally:
            self._keeper.after(self._lease.seconds / 3, self._renew)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._pending.clear()
        self._pending_bytes = 0
        self._unattended = False
        self._changed.notify_all()

    def _refuse_after_failure(self) -> None:
        error = self._failure
        if error is None:
            return
        self._reported = True
        if isinstance(error, FencedError):
            raise FencedError(str(error)) from error
        raise WriterFailedError(
            f"a commit to {self._spec.name!r} failed, and nothing after id {self._frontier.pointer} was confirmed: "
            f"{error}. Close this writer, see to the cause, and open a new one"
        ) from error

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()


def _refuse_damage(backend: Backend, log: str, head: Head) -> None:
    """The writer pointer and the blocks are one transaction; where they disagree, nobody may write on top."""
    blocks = backend.ranges(log, max(head.last_id, 1), 2**63 - 1)
    stored = blocks[-1].last_id if blocks else 0
    if stored != head.last_id and (blocks or head.hot_id <= head.last_id):
        raise DamagedLogError(
            f"the log {log!r} should end at id {head.last_id}, but its last block ends at {stored}. Restore it from a "
            f"copy; `millstream log verify {log}` lists all damage"
        )
