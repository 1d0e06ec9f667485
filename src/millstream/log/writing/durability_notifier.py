"""Everybody who waits for a writer: threads, threads with a time limit, and event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from millstream.core.clock import Clock
from millstream.log.writing.waiters import Waiter, Waiters

DurabilityListener: TypeAlias = Callable[[int, bool], bool]
"""Is called with the watermark and whether it will not move any more; once it returns False it is called no more."""


class DurabilityNotifier:
    """Wakes those who wait for the watermark of one writer. All calls are made under *lock*, except :func:`wake`.

    A thread that waits for its ids sleeps on its own lock (:attr:`waiters`). One that waits for a limited time, for
    room or for its rate sleeps on the condition of :meth:`wait`. An event loop is a listener.
    """

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(lock)
        self._sleeping = 0  # threads in wait()
        self._listeners: list[DurabilityListener] = []
        self.waiters = Waiters()

    def wait(self, seconds: float | None) -> None:
        """Release the lock until something changes, for *seconds* at most."""
        self._sleeping += 1
        try:
            self._clock.wait(self._changed, seconds)
        finally:
            self._sleeping -= 1

    def wake_all(self) -> None:
        """End every :meth:`wait`."""
        if self._sleeping:
            self._changed.notify_all()

    def listen(self, listener: DurabilityListener, pointer: int, failed: bool) -> None:
        """Call *listener* now, and at every :meth:`publish` from now on."""
        self._listeners.append(listener)
        listener(pointer, failed)

    def take_due(self, pointer: int, failed: bool) -> list[Waiter]:
        """The waiters that *pointer* has reached, all of them after a failure, to be woken without the lock."""
        return self.waiters.take(None if failed else pointer)

    def publish(self, pointer: int, failed: bool) -> None:
        """Tell all but the waiters that the watermark is at *pointer*, or that it will not move any more."""
        self.wake_all()
        if self._listeners:
            self._listeners = [listener for listener in self._listeners if listener(pointer, failed)]
