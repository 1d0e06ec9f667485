"""One source of the order-free engine: what it holds, and when there will be something to close or to refuse."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from millstream.batching.capped import CappedBatch
from millstream.batching.config import BatchConfig
from millstream.batching.cut import OpenBatch, Piece
from millstream.batching.event import Reject, Row

IDLE = 1 << 65
"""A due time that never comes: above every clock."""


class Source:
    """The open batch of a source, the rows that are not in it yet, and the clock at which a batch may close.

    A copy is refused as soon as no other copy can come any more, which is a matter of the clock alone: so hosts agree
    on what has come out by then, and one can go on where another was.

    ``inbox`` takes accepted rows as they come. ``due`` is never later than the next closing: :meth:`seen_at` lowers it
    for rows received since, :meth:`plan` computes it anew. ``keys`` holds a time of each key up to the event time
    ``limit``, the end of the window of the first known row; what lies beyond cannot bear on the next closing. Capped,
    ``count`` and ``size`` sum up the rows to that limit, copies too: where they exceed a cap, it may close sooner.
    """

    __slots__ = (
        "_caps",
        "_clash_wait",
        "_copy_wait",
        "_full_wait",
        "_max_delay",
        "_size_wait",
        "_window",
        "count",
        "due",
        "inbox",
        "keys",
        "limit",
        "open",
        "pending",
        "size",
    )

    def __init__(self, config: BatchConfig, rows: Sequence[Row] = (), pending: Sequence[Row] = ()) -> None:
        midpoint = config.conflict_cut == "midpoint"
        self._window = config.window
        self._max_delay = config.max_delay
        self._clash_wait = config.max_delay + midpoint
        self._full_wait = config.max_delay + config.window + 1
        self._copy_wait = self._size_wait = config.max_delay + 1
        self._caps = config.caps
        if self._caps is None:
            self.open = OpenBatch(config.window, midpoint=midpoint, rows=rows)
        else:
            self.open = CappedBatch(config.window, self._caps, midpoint=midpoint, rows=rows)
        self.pending = list(pending)
        self.inbox: list[Row] = []
        self.due = self.limit = IDLE
        self.keys: dict[str, int] = {}
        self.count = self.size = 0
        self.plan()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be batched."""
        return not (self.pending or self.inbox or self.open.rows)

    def seen_at(self, key: str, time: int, size: int) -> bool:
        """Take note of a row put into the inbox; True where it makes the source due earlier than before."""
        if self.due == IDLE:
            self.limit = time + self._window
        if time > self.limit:
            return False
        known = self.keys.get(key)
        if known is None:
            self.keys[key] = time
            due = time + self._full_wait
        else:
            due = time + (self._copy_wait if known == time else self._clash_wait)
        if self._caps is not None and self._overflows(size):
            due = min(due, time + self._size_wait)
        if due >= self.due:
            return False
        self.due = due
        return True

    def settle(self, clock: int) -> tuple[list[Piece], list[Reject]]:
        """Close what is certain at *clock*, and plan ahead."""
        self.merge()
        closed = self.open.settle(self.pending, clock - self._max_delay)
        self.plan()
        return closed

    def finish(self) -> tuple[list[Piece], list[Reject]]:
        """Close everything."""
        self.merge()
        return self.open.finish(self.pending)

    def merge(self) -> None:
        """Sort the inbox into ``pending``: a few rows one by one, many at once."""
        if len(self.inbox) * 16 < len(self.pending):
            for row in self.inbox:
                insort(self.pending, row)
        else:
            self.pending += self.inbox
            self.pending.sort()
        self.inbox.clear()

    def plan(self) -> None:
        """Compute ``due``, ``keys``, ``limit`` and the sums from the rows; the inbox must be empty."""
        self.keys = dict(self.open.keys)
        self.due = self.limit = IDLE
        if self._caps is not None:
            self.count, self.size = len(self.open.rows), sum(row[5] for row in self.open.rows)
        if not (self.open.rows or self.pending):
            return
        first = (self.open.rows or self.pending)[0][0]
        self.limit = first + self._window
        self.due = first + self._full_wait
        for row in self.pending:
            if row[0] > self.limit:
                break
            if self._caps is not None and self._overflows(row[5]):
                self.due = min(self.due, row[0] + self._size_wait)
            known = self.keys.get(row[1])
            if known is None:
                self.keys[row[1]] = row[0]
            elif known == row[0]:
                self.due = min(self.due, row[0] + self._copy_wait)
            else:
                self.due = min(self.due, row[0] + self._clash_wait)
                break

    def _overflows(self, size: int) -> bool:
        """Count one more row of *size* bytes; whether the known rows are now more than the caps allow one batch.

        The instant at which they overflow, in order of time, is no earlier than that of this row, or it was reached
        before and is counted in ``due`` already.
        """
        assert self._caps is not None
        self.count += 1
        self.size += size
        return self.count > self._caps.count or self.size > self._caps.size
