"""The order-free rule with caps on the count and the bytes of a batch (``docs/formats/batch-id.md``, "Caps").

An instant that does not fit into the open batch begins a new batch, so that it stays together. Only an instant that
exceeds the caps by itself is split, in the order of its keys, because a cap must never be exceeded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from millstream.batching.batch_config import SizeLimits
from millstream.batching.cut import CutBatch, OpenBatch, duplicate_reject
from millstream.batching.event import Reject, Row


class SizeLimitedBatch(OpenBatch):
    """An open batch that holds at most ``caps.count`` rows and ``caps.size`` bytes; a single row may be larger."""

    __slots__ = ("caps", "size")

    def __init__(self, window: int, caps: SizeLimits, *, midpoint: bool, rows: Sequence[Row] = ()) -> None:
        self.caps = caps
        super().__init__(window, midpoint=midpoint, rows=rows)

    def extend(self, ready: Sequence[Row]) -> tuple[list[CutBatch], list[Reject]]:
        """As :meth:`OpenBatch.extend`, an instant at a time: all of it must be known to tell whether it fits."""
        pieces: list[CutBatch] = []
        rejects: list[Reject] = []
        begin = 0
        while begin < len(ready):
            end = bisect_left(ready, (ready[begin][0] + 1,), begin)
            instant = _without_copies(ready[begin:end], rejects)
            pieces.extend(self._make_way(instant))
            pieces.extend(self._take(instant))
            begin = end
        return pieces, rejects

    def _make_way(self, instant: Sequence[Row]) -> Iterator[CutBatch]:
        """End the batch before *instant* where that may not join it: by time, else by key, then by size."""
        time = instant[0][0]
        if self.rows and time >= self.full_at:
            yield self._end("window", self.full_at)
        if any(row[1] in self.keys for row in instant):
            yield self._split(len(self.rows), instant, 0)
        if self.rows and not self._has_room(len(instant), sum(row[5] for row in instant)):
            yield self._end("size", time + 1)

    def _take(self, instant: Sequence[Row]) -> Iterator[CutBatch]:
        """Take the rows of *instant*; the batch ends in the middle of it only where it is too large for any batch."""
        for row in instant:
            if self.rows and not self._has_room(1, row[5]):
                yield self._end("size", row[0] + 1)
            self.rows.append(row)
            self.keys[row[1]] = row[0]
            self.size += row[5]

    def _begin(self, rows: list[Row]) -> None:
        super()._begin(rows)
        self.size = sum(row[5] for row in rows)

    def _has_room(self, count: int, size: int) -> bool:
        return len(self.rows) + count <= self.caps.count and self.size + size <= self.caps.size


def _without_copies(instant: Sequence[Row], rejects: list[Reject]) -> Sequence[Row]:
    """*instant* with the first row of each key; the others are added to *rejects*."""
    kept: list[Row] = []
    for row in instant:
        if kept and kept[-1][1] == row[1]:
            rejects.append(duplicate_reject(kept[-1], row))
        else:
            kept.append(row)
    return kept
