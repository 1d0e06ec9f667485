"""When a server that did not answer is asked again."""

from __future__ import annotations


class RetryPause:
    """The pause before a server is asked again: *first* seconds, twice as long after each failure, at most *longest*.

    Times are those of a monotonic clock, in seconds. Not thread-safe.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._until, self._seconds = 0.0, first

    def is_over(self, now: float) -> bool:
        """Whether the server may be asked at *now*."""
        return self._until <= now

    def note(self, now: float, *, failed: bool) -> None:
        """The server was asked, and answered at *now*, or *failed* to."""
        if not failed:
            self._until, self._seconds = 0.0, self._first
        else:
            self._until = now + self._seconds
            self._seconds = min(2 * self._seconds, self._longest)
