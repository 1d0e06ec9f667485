"""Background threads of a store for what has to happen later: renewing leases, storing acknowledgements."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from millstream.core.clock import Clock

_log = logging.getLogger(__name__)


class SchedulerThread:
    """Calls methods after a while. It does not keep their objects alive: what was dropped is not called.

    Its thread ends when it is closed, or when it is garbage-collected.
    """

    def __init__(self, clock: Clock, name: str = "millstream-log-scheduler") -> None:
        self._chores = _ScheduledCalls(clock, name)
        self.close = weakref.finalize(self, self._chores.close)
        """Call nothing more, and wait for the call that is running."""

    def after(self, seconds: float, method: Callable[[], Any]) -> None:
        """Call the bound *method* once, *seconds* from now, unless the scheduler was closed before."""
        self._chores.add(seconds, weakref.WeakMethod(method))


class _ScheduledCalls:
    """The state that the thread references, so that it does not keep the scheduler alive."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._due: list[tuple[float, int, weakref.WeakMethod[Callable[[], Any]]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, seconds: float, method: weakref.WeakMethod[Callable[[], Any]]) -> None:
        with self._changed:
            if self._closed:
                return
            due = self._clock.monotonic() + seconds
            heapq.heappush(self._due, (due, next(self._order), method))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread  # comes last: the next call tries again where there can be no more threads now
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._call_next():
            pass

    def _call_next(self) -> bool:
        """Call the next method that is due; False when there is nothing more to do, ever.

        The method is a local variable here, so that its object can be dropped while the thread waits for the next.
        """
        method = self._next()
        if method is None:
            return False
        try:
            method()
        except BaseException:  # the other calls need the thread, also where a callback wants to exit
            _log.exception("a background task of the log failed; it runs again when it is next due")
        return True

    def _next(self) -> Callable[[], Any] | None:
        """The next method that is due; None when there is nothing more to do, ever."""
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - self._clock.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    method = heapq.heappop(self._due)[2]()
                    if method is not None:
                        return method
                else:
                    self._clock.wait(self._changed, wait)
        return None
