"""Coroutines that wait until ids are durable: one call into their event loop a commit, however many they are."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter

from millstream.log.writing.durability_notifier import DurabilityListener

_last_id = itemgetter(0)


class AsyncWaiters:
    """All coroutines that wait for one writer, by event loop. *listen* is that of its group commit."""

    def __init__(self, listen: Callable[[DurabilityListener], None]) -> None:
        self._listen = listen
        self._loops: dict[asyncio.AbstractEventLoop, EventLoopWaiters] = {}

    def reached(self, last_id: int) -> asyncio.Future[None]:
        """Is done when *last_id* is durable, or when the writer has failed; for the running event loop."""
        loop = get_running_loop()
        found = self._loops.get(loop)
        return (self._join(loop) if found is None else found).reached(last_id)

    def _join(self, loop: asyncio.AbstractEventLoop) -> EventLoopWaiters:
        open_ones = {other: waiters for other, waiters in list(self._loops.items()) if not other.is_closed()}
        found = EventLoopWaiters(loop)
        self._loops = {**open_ones, loop: found}
        self._listen(found.notice)
        return found


class EventLoopWaiters:
    """All coroutines of one event *loop* that wait for one writer.

    :meth:`reached` is for the loop's thread, :meth:`notice` for any.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # by id
        self._pointer = 0
        self._over = False
        self._is_called = False

    def reached(self, last_id: int) -> asyncio.Future[None]:
        """Is done when *last_id* is durable, or when the writer has failed."""
        future, waiting = self._loop.create_future(), self._waiting
        if waiting and waiting[-1][0] > last_id:
            insort(waiting, (last_id, future), key=_last_id)
        else:
            waiting.append((last_id, future))
        if self._over or self._pointer >= last_id:  # it has come to pass, perhaps just now
            self._resolve()
        return future

    def notice(self, pointer: int, over: bool) -> bool:
        """The watermark is at *pointer*; *over* says that it will not move any more. False once the loop is closed."""
        self._pointer, self._over = pointer, over
        if self._loop.is_closed():
            return False
        if self._waiting and not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:  # it was closed just now
                return False
        return True

    def _resolve(self) -> None:
        self._is_called = False
        count = len(self._waiting) if self._over else bisect_right(self._waiting, self._pointer, key=_last_id)
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        for _, future in due:
            if not future.done():
                future.set_result(None)
