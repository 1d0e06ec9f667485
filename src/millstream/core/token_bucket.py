"""A limit of calls a second, with bursts after a pause."""

from __future__ import annotations

import threading

from millstream.core.clock import Clock


class TokenBucket:
    """Lets *rate* calls a second pass, and up to *burst* at once after a pause. Thread-safe."""

    def __init__(self, rate: float, clock: Clock, *, burst: float = 1.0) -> None:
        self._rate, self._clock, self._burst = rate, clock, burst
        self._lock = threading.Lock()
        self._tokens, self._at = burst, clock.monotonic()

    def take(self) -> None:
        """Wait until it is this call's turn."""
        with self._lock:  # a later caller takes a later token, and waits longer
            self._refill()
            self._tokens -= 1
            wait = -self._tokens / self._rate
        if wait > 0:
            self._clock.sleep(wait)

    def try_take(self) -> float:
        """0 if this call may pass, otherwise the seconds until one may; it does not wait, and takes no later turn."""
        with self._lock:
            self._refill()
            if self._tokens < 1:
                return (1 - self._tokens) / self._rate
            self._tokens -= 1
            return 0.0

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
