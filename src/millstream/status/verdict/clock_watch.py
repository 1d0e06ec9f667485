"""Notices that the clock was set while this process runs."""

from __future__ import annotations

import threading

import msgspec

from millstream.core.clock import MICROSECONDS, Clock, uptime

_ACCEPTED_AFTER = 3600.0
"""Seconds after which a clock that was set is taken to be right."""


class ClockStep(msgspec.Struct, frozen=True):
    """The clock was set by ``amount`` microseconds (negative: back), which was noticed at ``at`` (microseconds)."""

    amount: int
    at: int


class ClockWatch:
    """Compares the wall clock of *clock* with the one that only counts seconds. Thread-safe.

    A step of more than *limit* microseconds is told until the clock is set back, or an hour has passed: a process that
    runs cannot know which of the two times is right. Smaller ones, such as those of NTP, are followed.
    """

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock, self._limit = clock, limit
        self._lock = threading.Lock()
        self._offset = self._present_offset()
        self._step: tuple[float, ClockStep] | None = None

    def look(self) -> ClockStep | None:
        """The step that is told now."""
        with self._lock:
            offset, elapsed = self._present_offset(), uptime(self._clock)
            amount = offset - self._offset
            began = elapsed if self._step is None else self._step[0]
            if abs(amount) <= self._limit or elapsed - began > _ACCEPTED_AFTER:
                self._offset, self._step = offset, None
            elif self._step is None or abs(amount - self._step[1].amount) > self._limit:
                self._step = elapsed, ClockStep(amount, self._clock.now())
            return None if self._step is None else self._step[1]

    def _present_offset(self) -> int:
        return self._clock.now() - round(uptime(self._clock) * MICROSECONDS)
