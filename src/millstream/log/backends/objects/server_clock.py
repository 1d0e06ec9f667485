"""The clock of a server, from the dates of its answers."""

from __future__ import annotations

import threading

from millstream.core.clock import MICROSECONDS, Clock

_REFRESH_SECONDS = 600.0


class ServerClock:
    """Follows the server's clock between its answers by the *clock* of this machine. Thread-safe; never goes back.

    The dates of answers are whole seconds, so that it is behind by a second at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: int | None = None
        self._observed = 0.0
        self._last = 0

    @property
    def is_set(self) -> bool:
        """Whether a date was seen."""
        return self._offset is not None

    def observe(self, date: int) -> None:
        """An answer has just arrived that states *date* (microseconds since the epoch).

        The largest offset of some minutes counts: an answer that was under way for long has an old date.
        """
        now = self._clock.monotonic()
        offset = date - round(now * MICROSECONDS)
        with self._lock:
            if self._offset is None or offset >= self._offset or now - self._observed > _REFRESH_SECONDS:
                self._offset, self._observed = offset, now

    def now(self) -> int:
        """The server's time in microseconds since the epoch. Before :meth:`observe` it is this machine's."""
        with self._lock:
            if self._offset is None:
                present = self._clock.now()
            else:
                present = round(self._clock.monotonic() * MICROSECONDS) + self._offset
            self._last = max(self._last, present)
            return self._last
