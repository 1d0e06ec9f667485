"""How often, and after which pauses, a failed call is retried."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError

Result = TypeVar("Result")


class RetryPolicy(msgspec.Struct, frozen=True):
    """Exponential back-off with jitter: at most ``attempts`` calls, pausing ``first × factor^n`` seconds between them.

    ``jitter`` is the share of each pause that is drawn at random (0 gives exact pauses). With ``within``, no call
    begins later than so many seconds after the first one.
    """

    attempts: int = 4
    first: float = 0.2
    factor: float = 2.0
    longest: float = 60.0
    jitter: float = 0.2
    within: float | None = None

    def pauses(self, seed: int | None = None) -> Iterator[float]:
        """The pauses in seconds between the calls: one fewer than ``attempts``."""
        draw = random.Random(seed)
        for n in range(self.attempts - 1):
            pause = min(self.longest, self.first * self.factor**n)
            yield pause * (1 - self.jitter * draw.random())

    def call(self, function: Callable[[], Result], clock: Clock, *, seed: int | None = None) -> Result:
        """Call *function* until it succeeds; transient :class:`MillstreamError` are retried, all else is raised.

        Raises the last error when the attempts are used up.
        """
        pauses: Iterator[float] | None = None
        end = None if self.within is None else clock.monotonic() + self.within
        while True:
            try:
                return function()
            except MillstreamError as error:
                pauses = self.pauses(seed) if pauses is None else pauses  # almost every call succeeds and needs none
                pause = next(pauses, None) if error.transient else None
                if pause is None or (end is not None and clock.monotonic() + pause > end):
                    raise
            clock.sleep(pause)


NO_RETRY = RetryPolicy(attempts=1)
