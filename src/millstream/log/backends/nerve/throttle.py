"""The maximum of commits per second for each table (seed document nerve, ``MaxRPSPerThread``); reads have no limit."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from millstream.core.clock import Clock


class Throttle:
    """Lets each key pass at most *rate* times a second; with a rate of 0 at once. Thread-safe."""

    def __init__(self, clock: Clock, rate: int) -> None:
        self._clock = clock
        self._interval = 1 / rate if rate else 0.0
        self._lock = threading.Lock()
        self._free_at: dict[str, float] = {}

    def wait(self, keys: Iterable[str]) -> None:
        """Return when it is the turn of all *keys*."""
        if not self._interval:
            return
        with self._lock:
            now = self._clock.monotonic()
            wanted = list(keys)
            due = max([now, *(self._free_at.get(key, now) for key in wanted)])
            self._free_at.update(dict.fromkeys(wanted, due + self._interval))
        if due > now:
            self._clock.sleep(due - now)
