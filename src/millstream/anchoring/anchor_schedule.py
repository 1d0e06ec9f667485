"""When the batches that came are anchored."""

from __future__ import annotations

from millstream.anchoring.feed import AnchorFeed, FeedProgress
from millstream.core.clock import MICROSECONDS, Clock


class AnchorSchedule:
    """Lets *feed* anchor what came, each *every* microseconds, when :meth:`when_due` is called."""

    def __init__(self, feed: AnchorFeed, clock: Clock, every: int) -> None:
        self.feed = feed
        self._clock, self._every = clock, every / MICROSECONDS
        self._next = clock.monotonic() + self._every

    def when_due(self) -> FeedProgress | None:
        """Anchor what has come where it is time; what was done, None where it is not time."""
        if self._clock.monotonic() < self._next:
            return None
        done = self.feed.step(force=True)
        self._next = self._clock.monotonic() + self._every
        return done
