"""Where the batches of one source end: the order-free rule (reference "batching", §6.3 and §6.4).

Records are taken in order of event time, and records of one event time (an *instant*) stay together. A batch begins
with an instant; the next instant joins while it lies within the window, repeats no key and fits the caps (those are
added by :mod:`~millstream.batching.size_limits`). A cut is certain once
nothing can arrive any more that would move it; the event time up to which all must be known is its *deciding time*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from millstream.batching.event import CutReason, Reject, Row

_NEVER = -(1 << 64)


class CutBatch(NamedTuple):
    """The rows of one batch, why it ended, and the deciding time: all records below it must be known."""

    rows: list[Row]
    cut: CutReason
    decided: int


class OpenBatch:
    """The batch of one source that is still growing, made of whole instants in order of time.

    ``window`` (ticks) and ``midpoint`` are the rules; ``rows`` are the members so far, sorted, no key twice.
    """

    __slots__ = ("keys", "midpoint", "rows", "window")

    def __init__(self, window: int, *, midpoint: bool, rows: Sequence[Row] = ()) -> None:
        self.window = window
        self.midpoint = midpoint
        self._begin(list(rows))

    @property
    def full_at(self) -> int:
        """The deciding time of a cut by the window. Asked only while there are rows."""
        return self.rows[0][0] + self.window + 1

    def settle(self, pending: list[Row], bound: int) -> tuple[list[CutBatch], list[Reject]]:
        """Move what lies below *bound* from *pending* (sorted) into the batch; return what that closed and refused.

        *bound* is an event time below which every record is known. All cuts decided by then are made.
        """
        count = bisect_left(pending, (bound,))
        pieces, rejects = self.extend(pending[:count])
        del pending[:count]
        if self.rows and self.full_at <= bound:
            pieces.append(self._end("window", self.full_at))
        if not self.midpoint and self._repeats(pending, bound):
            pieces.append(self._end("conflict", bound))
        return pieces, rejects

    def extend(self, ready: Sequence[Row]) -> tuple[list[CutBatch], list[Reject]]:
        """Take *ready* (sorted, whole instants, all later than the members) and return what it closed and refused."""
        pieces: list[CutBatch] = []
        rejects: list[Reject] = []
        rows, keys = self.rows, self.keys
        limit = rows[0][0] + self.window if rows else _NEVER
        instant, mark = _NEVER, 0
        for position, row in enumerate(ready):
            time = row[0]
            if time != instant:
                if time > limit:
                    if rows:
                        pieces.append(self._end("window", self.full_at))
                        rows, keys = self.rows, self.keys
                    limit = time + self.window
                instant, mark = time, len(rows)
            seen = keys.get(row[1])
            if seen == time:
                rejects.append(duplicate_reject(rows[-1], row))
                continue
            if seen is not None:
                pieces.append(self._split(mark, ready, position))
                rows, keys = self.rows, self.keys
                limit = (rows[0][0] if rows else time) + self.window
            keys[row[1]] = time
            rows.append(row)
        return pieces, rejects

    def finish(self, pending: list[Row]) -> tuple[list[CutBatch], list[Reject]]:
        """Take all of *pending* (sorted) and close what remains: the stream has ended."""
        pieces, rejects = self.extend(pending)
        pending.clear()
        if self.rows:
            pieces.append(self._end("flush", self.full_at))
        return pieces, rejects

    def _begin(self, rows: list[Row]) -> None:
        self.rows = rows
        self.keys = {row[1]: row[0] for row in rows}

    def _end(self, cut: CutReason, decided: int) -> CutBatch:
        piece = CutBatch(self.rows, cut, decided)
        self._begin([])
        return piece

    def _repeats(self, pending: list[Row], instant: int) -> bool:
        """Whether the rows of *instant* at the head of *pending*, perhaps not all of them yet, repeat a member's key.

        The cut is certain at once: whatever else may come at this instant, the batch ends before it.
        """
        if not self.rows:
            return False
        return any(row[1] in self.keys for row in pending[: bisect_left(pending, (instant + 1,))])

    def _split(self, mark: int, ready: Sequence[Row], position: int) -> CutBatch:
        """Cut because ``ready[position]`` repeats a key; ``rows[mark:]`` are of the same instant."""
        instant = ready[position][0]
        if self.midpoint:
            mark = bisect_left(self.rows, (self._middle(ready, position),))
        piece = CutBatch(self.rows[:mark], "conflict", instant + 1 if self.midpoint else instant)
        self._begin(self.rows[mark:])
        return piece

    def _middle(self, ready: Sequence[Row], position: int) -> int:
        """The first whole tick at or after the latest midpoint between the instant's repeated keys and their members.

        The latest one parts all the clashing pairs at once, so an instant cuts once, whichever key is examined first.
        """
        instant = ready[position][0]
        end = bisect_left(ready, (instant + 1,), position)
        times = (self.keys.get(row[1], instant) for row in ready[position:end])
        latest = max(time for time in times if time != instant)
        return (latest + instant + 1) // 2


def duplicate_reject(kept: Row, row: Row) -> Reject:
    """Refuse *row*: same key and event time as *kept*, which sorts before it (lowest digest, then earliest receipt)."""
    return Reject(row[4], "duplicate" if row[2] == kept[2] else "conflicting_duplicate")
