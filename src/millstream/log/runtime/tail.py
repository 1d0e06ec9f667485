"""The end of a log as this process sees it, and waiting for it to move."""

from __future__ import annotations

import threading

from millstream.core.clock import Clock
from millstream.log.runtime.callbacks import Callbacks


class Tail:
    """Notifies followers in this process that messages of writers in this process are durable."""

    def __init__(self, log: str, clock: Clock) -> None:
        self.appended = Callbacks(log)
        """A listener for the commits of this process."""
        self._clock = clock
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._turn = 0
        self._followers = 0  # threads in wait()

    @property
    def turn(self) -> int:
        """A number that changes with every :meth:`announce`; read it before looking for messages."""
        return self._turn

    def notify(self, last_id: int) -> None:
        """All up to *last_id* is durable: wake every follower, and call every listener."""
        self.announce()
        self.appended.call(last_id)

    def announce(self) -> None:
        """Wake every follower."""
        with self._lock:  # of the condition, whose own methods for it are slower
            self._turn += 1
            if self._followers:
                self._moved.notify_all()

    def wait(self, turn: int, seconds: float) -> None:
        """Return when something was announced after *turn* was read, or after *seconds*."""
        with self._lock:
            if self._turn == turn:
                self._followers += 1
                try:
                    self._clock.wait(self._moved, seconds)
                finally:
                    self._followers -= 1
