"""Time as a constructor argument.

Nothing outside this module reads the system's time or sleeps: everything with a timeout takes a :class:`Clock`, and
its tests move a :class:`VirtualClock` instead of waiting.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

MICROSECONDS = 1_000_000
"""Ticks in a second: every time in Millstream is an int64 count of microseconds since the epoch, UTC."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> int:
        """Microseconds since the epoch, UTC. May jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever move forward, for measuring durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread for *seconds*."""
        ...

    def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
        """Wait on *condition* (held by the caller) for at most *seconds*; True if it was notified."""
        ...


def uptime(clock: Clock) -> float:
    """Seconds that only ever move forward on *clock*, also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if isinstance(clock, SystemClock) else clock.monotonic()


def processor_seconds() -> float:
    """Seconds of processor time that the calling thread has used: the difference of two is what work has cost."""
    return time.thread_time()


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
        return condition.wait(seconds)


class VirtualClock:
    """A clock that moves only when it is told to, for tests.

    ``sleep`` advances the clock at once; ``wait`` blocks in real time until notified or until another thread has
    advanced the clock past the deadline.
    """

    def __init__(self, start: int = 1_700_000_000 * MICROSECONDS) -> None:
        self._now = start
        self._elapsed = 0.0
        self._moved = threading.Condition()
        self._waiters: set[threading.Condition] = set()

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
        deadline = None if seconds is None else self._elapsed + seconds
        with self._moved:
            self._waiters.add(condition)
        try:
            notified = deadline is None or self._elapsed < deadline
            if notified:
                condition.wait()
            return deadline is None or self._elapsed < deadline
        finally:
            with self._moved:
                self._waiters.discard(condition)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by *seconds* and wake everyone who waits on it."""
        if seconds < 0:
            raise ValueError("a clock advances by zero or more seconds; use jump() to set the wall clock back")
        with self._moved:
            self._elapsed += seconds
            self._now += round(seconds * MICROSECONDS)
            waiters = list(self._waiters)
        for condition in waiters:
            with condition:
                condition.notify_all()

    def jump(self, seconds: float) -> None:
        """Set the wall clock *seconds* forward or back, as an administrator or NTP would; monotonic time stays."""
        self._now += round(seconds * MICROSECONDS)
