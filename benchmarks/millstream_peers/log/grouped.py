"""Senders that share transactions, so that a peer that commits batches is not measured message by message."""

from __future__ import annotations

import asyncio
import heapq
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from millstream.bench.log.protocol import Part
from millstream.core.clock import SystemClock

READ_IDS = 50_000
"""At a time, as in the seed document's receiver."""

_NAP = 0.001  # seconds until a reader looks again; the document's waits half a second

MOST_ROWS = 10_000
"""In one transaction, as in the seed document's shard buffer."""


class _PendingAppend(msgspec.Struct):
    bodies: Sequence[bytes]
    future: asyncio.Future[int] | None = None
    first: int = 0


class GroupingSender(ABC):
    """A peer says how a group of messages is committed; who waits and finds no commit running commits for all."""

    most_rows = MOST_ROWS

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: deque[_PendingAppend] = deque()
        self._committing = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        self.last_id = 0

    def append(self, bodies: Sequence[bytes]) -> int:
        """Store *bodies*; returns the first id once they are durable."""
        mine = _PendingAppend(bodies)
        with self._changed:
            self._pending.append(mine)
            while not mine.first:
                self._check()
                if self._committing:
                    self._changed.wait()
                else:
                    self._lead()
        return mine.first

    async def append_async(self, bodies: Sequence[bytes]) -> int:
        """Like :meth:`append`, for a coroutine; a thread commits for all of them."""
        mine = _PendingAppend(bodies, asyncio.get_running_loop().create_future())
        assert mine.future is not None
        with self._changed:
            self._check()
            self._pending.append(mine)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
            elif not self._committing:
                self._changed.notify_all()
        return await mine.future

    def close(self) -> None:
        """Commit no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        with self._changed:
            while not self._closed and self.failure is None:
                if self._pending and not self._committing:
                    self._lead()
                else:
                    self._changed.wait()

    def _lead(self) -> None:
        group: list[_PendingAppend] = []
        bodies: list[bytes] = []
        while self._pending and len(bodies) < self.most_rows:
            group.append(self._pending.popleft())
            bodies += group[-1].bodies
        first, self._committing = self.last_id + 1, True
        self._changed.release()
        try:
            self._commit(bodies, first)
            for waiting in group:
                waiting.first = first
                first += len(waiting.bodies)
        except BaseException as error:
            self.failure = error
        finally:
            self._changed.acquire()
            self._committing = False
            self.last_id = first - 1
            self._changed.notify_all()
            self._tell(group)

    def _tell(self, group: list[_PendingAppend]) -> None:
        futures = [waiting for waiting in group if waiting.future is not None]
        if futures and futures[0].future is not None:
            futures[0].future.get_loop().call_soon_threadsafe(_resolve, futures, self.failure)

    @abstractmethod
    def _commit(self, bodies: list[bytes], first: int) -> None:
        """Store *bodies* under the ids from *first* on, durably."""


class ShardedReceiver(ABC):
    """Merges the rows of shards by id; a peer says how far its writer is, and how the rows of a range are read."""

    def __init__(self) -> None:
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        """The messages from the first one to the one *total*, waiting for those that are not there yet."""
        first = 1
        while first <= total:
            last = min(first + READ_IDS - 1, self._written())
            if last < first:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)
                continue
            ids: list[int] = []
            bodies: list[bytes] = []
            for number, body in heapq.merge(*self._read(first, last)):
                ids.append(number)
                bodies.append(body)
            self._move_reader(last)
            yield ids, bodies
            first = last + 1

    @abstractmethod
    def _written(self) -> int:
        """The last id that was written."""

    @abstractmethod
    def _read(self, first: int, last: int) -> Iterable[Sequence[tuple[Any, ...]]]:
        """The rows of each shard from *first* to *last*."""

    @abstractmethod
    def _move_reader(self, last: int) -> None:
        """Keep that all is read up to *last*."""


def _resolve(group: list[_PendingAppend], failure: BaseException | None) -> None:
    for waiting in group:
        if waiting.future is not None and not waiting.future.done():
            if failure is None:
                waiting.future.set_result(waiting.first)
            else:
                waiting.future.set_exception(failure)
