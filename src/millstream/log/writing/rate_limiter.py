"""How fast a writer may go: a limit on commits and on messages a second, and waiting for company before a commit."""

from __future__ import annotations

import sys

from millstream.log.spec import LogSpec

_GRAIN = 0.1  # seconds; what a message rate allows in that time is one commit


class RateLimiter:
    """Computes when the next commit of a log may begin, by the ``linger``, ``commit_rate`` and ``message_rate`` of its
    spec.

    Times are seconds on one monotonic clock. A rate is held by waiting after a commit for as long as that commit was
    worth, so a log that was idle does not save up.
    """

    def __init__(self, spec: LogSpec) -> None:
        self._linger = spec.linger
        self._commit_seconds = 1 / spec.commit_rate if spec.commit_rate else 0.0
        self._message_seconds = 1 / spec.message_rate if spec.message_rate else 0.0
        self._next = 0.0
        self.max_messages = max(int(spec.message_rate * _GRAIN), 1) if spec.message_rate else sys.maxsize
        """A commit that has this many takes no more requests."""
        self.is_unlimited = not (self._linger or self._commit_seconds or self._message_seconds)
        """True where a commit never has to wait."""

    def delay(self, now: float, waiting_since: float, *, full: bool) -> float:
        """How long a commit of what waits since *waiting_since* has to be put off; *full* ends the lingering."""
        linger = 0.0 if full else waiting_since + self._linger - now
        return max(linger, self._next - now, 0.0)

    def spend(self, now: float, messages: int) -> None:
        """A commit of so many *messages* begins *now*."""
        self._next = now + max(self._commit_seconds, messages * self._message_seconds)
