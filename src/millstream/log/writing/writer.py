"""The writer of a log: what is appended at the same time shares a commit, confirmations are given by watermark."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from millstream.core.message import Message
from millstream.log.backend import Backend, Head
from millstream.log.encoding.nerve_packet import encode_packet
from millstream.log.encoding.proto import Encodable, encode_proto
from millstream.log.errors import DamagedLogError, FencedError, StorageError
from millstream.log.ids import MAX_ID, IdRange
from millstream.log.runtime.callbacks import Callbacks
from millstream.log.runtime.context import LogContext
from millstream.log.sourced import Sourced
from millstream.log.spec import LogSpec
from millstream.log.writing.append_request import (
    AppendRequest,
    Messages,
    make_request,
    require_bodies_only,
    set_columns,
)
from millstream.log.writing.committer import Committer
from millstream.log.writing.group_commit import GroupCommit
from millstream.log.writing.lease import WriterLease

if TYPE_CHECKING:
    from millstream.log.writing.event_loop_waiters import AsyncWaiters


class Writer:
    """Appends to one log, under its lease. Thread-safe; many threads or coroutines that append share commits.

    Made by :meth:`millstream.log.Log.writer`; close it, or use it in a ``with`` block.
    """

    def __init__(self, spec: LogSpec, producer: str, lease: WriterLease, context: LogContext) -> None:
        head = context.backend.head(spec.name)
        _refuse_damage(context.backend, spec.name, head)
        self._spec = spec
        self._lease = lease
        self._renewals = context.renewals
        self._bodies_only = context.bodies_only
        self._committer = Committer(spec, producer, lease, context.backend, context.clock)
        self._callbacks = Callbacks(spec.name)
        self._closing: list[Callable[[], object]] = []
        self._async_waiters: AsyncWaiters | None = None
        self._group = GroupCommit(
            msgspec.structs.replace(spec, linger=max(spec.linger, context.min_linger)),
            context.clock,
            context.scheduler,
            self._committer.commit,
            (context.tail.notify, self._callbacks.call),
            last_id=head.last_id,
            sequence=self._committer.sequence,
        )
        self._renewals.after(lease.seconds / 3, self._renew)

    @property
    def last_id(self) -> int:
        """The last durable id (0 in an empty log)."""
        return self._group.pointer

    @property
    def sequence(self) -> int:
        """The last durable sequence of this producer (0 at first)."""
        return self._committer.sequence

    def append(self, messages: Messages, *, sequence: int | None = None) -> IdRange | None:
        """Store *messages* and return their ids once they are durable; all of them are stored, or none.

        With *sequence* (1, 2, 3 … of this producer) a call is safe to repeat: what has been stored is not stored
        again, and None is returned. An empty call stores nothing, not even its sequence. Raises
        :class:`LogInputError`, :class:`FencedError`, :class:`WriterFailedError`.
        """
        ids = self._group.enqueue(self._request(messages, sequence))
        self._group.durable(self._group.last_given if ids is None else ids.last, None)
        return ids

    async def append_async(self, messages: Messages, *, sequence: int | None = None) -> IdRange | None:
        """Like :meth:`append`, for a coroutine: thousands of them may wait, and no thread does.

        A coroutine that is cancelled while it waits may have stored its messages.
        """
        request, group = self._request(messages, sequence), self._group
        full_until, ids = group.enqueue_if_room(request)
        while full_until:
            await self._reached(full_until)
            full_until, ids = group.enqueue_if_room(request)
        last_id = group.last_given if ids is None else ids.last
        if group.pointer < last_id:
            waiters = self._async_waiters
            await (self._reached(last_id) if waiters is None else waiters.reached(last_id))
            if group.pointer < last_id:
                group.expect(last_id)
        return ids

    def append_nowait(self, messages: Messages, *, sequence: int | None = None) -> IdRange | None:
        """Like :meth:`append`, but return at once; :meth:`durable` tells when they are durable.

        It waits only while more than 64 MiB are under way.
        """
        return self._group.enqueue(self._request(messages, sequence), leaves=True)

    def send(self, message: Message | bytes) -> int:
        """Store one message and return its id once it is durable; :meth:`append` is for many."""
        ids = self._group.enqueue(self._request([message]))
        assert ids is not None
        self._group.durable(ids.last, None)
        return ids.last

    def append_proto(
        self, messages: Iterable[Encodable], *, key: str = "", source: str = "", sequence: int | None = None
    ) -> IdRange | None:
        """:meth:`append` protobuf messages, each as a body under its type's name; see :meth:`Log.read_proto`.

        All get the same *key* and *source*.
        """
        if self._bodies_only and not (key or source):
            return self.append([message.SerializeToString() for message in messages], sequence=sequence)
        return self.append(encode_proto(messages, key, source), sequence=sequence)

    def append_sourced(self, messages: Iterable[Sourced], *, sequence: int | None = None) -> IdRange | None:
        """:meth:`append` messages that say which object they come from; :meth:`Log.read_sourced` gives them back.

        In the nerve layout they are its packets.
        """
        if self._bodies_only:
            return self.append([encode_packet(message) for message in messages], sequence=sequence)
        return self.append([message.message() for message in messages], sequence=sequence)

    def durable(self, last_id: int, *, timeout: float | None = None) -> None:
        """Wait until every message up to *last_id* is durable.

        Raises :class:`DurabilityTimeoutError` after *timeout* seconds, :class:`FencedError`,
        :class:`WriterFailedError`.
        """
        self._group.durable(last_id, timeout)

    async def durable_async(self, last_id: int) -> None:
        """Like :meth:`durable`, for a coroutine."""
        if self._group.pointer < last_id:
            self._group.expect(last_id)
            self._group.leave()
            await self._reached(last_id)
            self._group.expect(last_id)

    def on_durable(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call *callback* with the last durable id after every commit, in order, outside all locks.

        It runs in whichever thread commits, and the next commit waits for it: it must be quick and must not append.
        For an event loop, hand it on: ``lambda last_id: loop.call_soon_threadsafe(noticed, last_id)``. What it raises
        is logged. The function that is returned ends it.
        """
        return self._callbacks.add(callback)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call *callback* once this writer was closed and has given back its lease."""
        self._closing.append(callback)

    def close(self) -> None:
        """Make everything durable and let the next writer in. Closing again does nothing.

        Raises :class:`FencedError` or :class:`WriterFailedError` where messages were lost and no caller has been told.
        """
        if not self._group.close():
            return
        with contextlib.ExitStack() as stack:  # calls all of them, the last one first, whatever one of them raises
            for callback in reversed(self._closing):
                stack.callback(callback)
            stack.callback(self._lease.release)
            if not self._group.failure_is_known:
                self._group.durable(self._group.last_given, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._group.failure is None:
            self.close()
            return
        self._group.failure_is_known = True  # what went wrong is under way already
        with contextlib.suppress(StorageError):  # a lease that cannot be given back runs out by itself
            self.close()

    def __reduce__(self) -> str:
        raise TypeError("a writer cannot be passed to another process: open the store by its URL there")

    def _request(self, messages: Messages, sequence: int | None = None) -> AppendRequest:
        request = make_request(messages, sequence)
        if self._bodies_only:
            require_bodies_only(set_columns(request))
        return request

    def _reached(self, last_id: int) -> Awaitable[None]:
        """Is done once another thread has committed *last_id*, or the writer has failed."""
        if self._async_waiters is None:
            # Imports asyncio (15 ms), of which programs without an event loop have no need.
            from millstream.log.writing.event_loop_waiters import AsyncWaiters

            self._async_waiters = AsyncWaiters(self._group.listen)
        return self._async_waiters.reached(last_id)

    def _renew(self) -> None:
        if self._group.is_over:
            return
        try:
            if not self._lease.renew():
                self._group.fail(
                    FencedError(f"another writer has taken over log {self._spec.name!r}: close this writer")
                )
        except DamagedLogError as error:
            self._group.fail(error)
        finally:
            self._renewals.after(self._lease.seconds / 3, self._renew)


def _refuse_damage(backend: Backend, log: str, head: Head) -> None:
    """The writer pointer and the blocks are one transaction; where they disagree, no process may write on top."""
    stored = _last_stored(backend, log, head)
    if stored == head.last_id:
        return
    first = stored + 1
    missing = f": ids {first} to {head.last_id} were confirmed and are missing" if first <= head.last_id else ""
    raise DamagedLogError(
        f"log {log!r} should end at id {head.last_id}, but its last block ends at {stored}{missing}. Restore "
        f"the log store from a backup; `millstream log verify {log}` lists all damage"
    )


def _last_stored(backend: Backend, log: str, head: Head) -> int:
    """The id at which the last block ends; the one before the hot mark where there is none from there on.

    A sound log ends with the first block that is looked for; where blocks are missing, the search goes back ever
    further, and not through the whole index.
    """
    step = 0
    while True:
        first_id = max(head.last_id - step, head.hot_id)
        blocks = backend.ranges(log, first_id, MAX_ID)
        if blocks or first_id == head.hot_id:
            return blocks[-1].last_id if blocks else head.hot_id - 1
        step = 2 * step + 1
