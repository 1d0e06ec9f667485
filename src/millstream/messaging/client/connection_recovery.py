"""When the connection to a server is made anew, by what its heartbeats come to."""

from __future__ import annotations

from millstream.core.clock import Clock
from millstream.messaging.client.errors import ClientError, TransportError

COOLDOWN = 30.0
"""Seconds between two new connections to a server that nobody asked for."""

_LATE_IN_A_ROW = 2


class ConnectionRecovery:
    """Watches the heartbeats to one server. A connection may look well and be dead: then it is made anew.

    That is so when two heartbeats in a row had no answer in time, or when one could not be sent although the
    connection claims to be there. A busy server is left alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late = 0
        self._last: float | None = None

    def succeeded(self) -> None:
        """A heartbeat was answered."""
        self._late = 0

    def failed(self, error: ClientError, *, is_ready: bool) -> bool:
        """A heartbeat came to *error* on a connection that says whether it *is_ready*: whether to make it anew."""
        reason = error.reason if isinstance(error, TransportError) else ""
        self._late = self._late + 1 if reason == "DEADLINE_EXCEEDED" else 0
        if self._late < _LATE_IN_A_ROW and not (reason == "UNAVAILABLE" and is_ready):
            return False
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < COOLDOWN:
            return False
        self._late, self._last = 0, now
        return True
