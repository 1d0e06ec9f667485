"""One source of the order-free engine: what it holds, and when there will be something to close or to refuse."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import itemgetter

from millstream.batching.batch_config import BatchConfig
from millstream.batching.cut import CutBatch, OpenBatch
from millstream.batching.event import Reject, Row
from millstream.batching.size_limits import SizeLimitedBatch

IDLE = 1 << 65
"""A due time that never comes: above every clock."""

_size = itemgetter(5)


class SourceRules:
    """What the sources under one set of rules share: the rules as numbers, each wait from an event time to a clock."""

    __slots__ = ("caps", "clash", "copy", "full", "max_delay", "midpoint", "window")

    def __init__(self, config: BatchConfig) -> None:
        self.window, self.max_delay, self.caps = config.window, config.max_delay, config.caps
        self.midpoint = config.conflict_cut == "midpoint"
        self.clash = config.max_delay + self.midpoint
        self.copy = config.max_delay + 1
        self.full = config.max_delay + config.window + 1

    def open(self, rows: Sequence[Row]) -> OpenBatch:
        """An open batch of *rows*."""
        if self.caps is None:
            return OpenBatch(self.window, midpoint=self.midpoint, rows=rows)
        return SizeLimitedBatch(self.window, self.caps, midpoint=self.midpoint, rows=rows)


class SourceBuffer:
    """The open batch of a source, the rows that are not in it yet, and the clock at which a batch may close.

    A copy is refused as soon as no other copy can come any more, which is a matter of the clock alone: so hosts agree
    on what has come out by then, and one can continue where another was.

    ``inbox`` takes accepted rows as they come. ``due`` is never later than the next closing: :meth:`seen_at` lowers it
    for rows received since, :meth:`plan` computes it again. ``keys`` holds a time of each key up to the event time
    ``limit``, no earlier than the end of the window of ``first``, the first known time; what lies beyond cannot bear on
    the next closing. Capped, ``count`` and ``size`` sum up the rows to that limit, copies too: where they exceed a cap,
    it may close sooner. Most batches are whole windows in which nothing repeats: these are taken from ``pending`` as
    they lie there, and ``open`` is None until something does.
    """

    __slots__ = ("count", "due", "first", "inbox", "keys", "limit", "open", "pending", "rules", "size")

    def __init__(self, rules: SourceRules, rows: Sequence[Row] = (), pending: Sequence[Row] = ()) -> None:
        self.rules = rules
        self.open = rules.open(rows) if rows else None
        self.pending = list(pending)
        self.inbox: list[Row] = []
        self.due = self.first = self.limit = IDLE
        self.keys: dict[str, int] = {}
        self.count = self.size = 0
        if rows or pending:
            self.plan()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be batched."""
        return not (self.pending or self.inbox or self.open)

    def seen_at(self, key: str, time: int, size: int) -> bool:
        """Take note of a row up to ``limit``, put into the inbox; True where it makes the source due earlier.

        Nothing but its key need be noted of one that is capped by nothing, is not the first and repeats no key.
        """
        rules = self.rules
        if self.due == IDLE:
            self.limit = time + rules.window
        self.first = min(self.first, time)
        known = self.keys.get(key)
        if known is None:
            self.keys[key] = time
            due = time + rules.full
        else:
            due = time + (rules.copy if known == time else rules.clash)
        if rules.caps is not None and self._overflows(size):
            due = min(due, time + rules.copy)
        if due >= self.due:
            return False
        self.due = due
        return True

    def settle(self, clock: int) -> tuple[list[CutBatch], list[Reject]]:
        """Close what is certain at *clock*, and plan ahead."""
        self.merge()
        bound = clock - self.rules.max_delay
        if self.due < self.first + self.rules.full:  # before the window is full: to look at all of it would not help
            return self._settle_in_order(bound)
        pieces: list[CutBatch] = []
        while self.pending or self.open:
            rows, taken = self._window()
            keys = {row[1]: row[0] for row in rows}
            if len(keys) < len(rows) or not self._fit(rows):
                more, rejects = self._settle_in_order(bound)
                return pieces + more, rejects
            full_at = rows[0][0] + self.rules.window + 1
            if full_at > bound:
                self._expect(rows[0][0], keys)
                self.count, self.size = len(rows), sum(map(_size, rows))
                return pieces, []
            pieces.append(CutBatch(rows, "window", full_at))
            del self.pending[:taken]
            self.open = None
        return pieces, []

    def finish(self) -> tuple[list[CutBatch], list[Reject]]:
        """Close everything."""
        self.merge()
        return (self.open or self.rules.open(())).finish(self.pending)

    def merge(self) -> None:
        """Sort the inbox into ``pending``: a few rows one by one, many at once."""
        if not self.pending:
            self.pending, self.inbox = self.inbox, self.pending
            self.pending.sort()
            return
        if len(self.inbox) * 16 < len(self.pending):
            for row in self.inbox:
                insort(self.pending, row)
        else:
            self.pending += self.inbox
            self.pending.sort()
        self.inbox.clear()

    def plan(self) -> None:
        """Compute ``due``, ``keys``, ``limit`` and the sums from the rows, at least one; the inbox must be empty."""
        rows = self.open.rows if self.open else []
        self._expect((rows or self.pending)[0][0], {row[1]: row[0] for row in rows})
        self.count, self.size = len(rows), sum(map(_size, rows))
        rules = self.rules
        for row in self.pending:
            if row[0] > self.limit:
                break
            if rules.caps is not None and self._overflows(row[5]):
                self.due = min(self.due, row[0] + rules.copy)
            known = self.keys.get(row[1])
            if known is None:
                self.keys[row[1]] = row[0]
            elif known == row[0]:
                self.due = min(self.due, row[0] + rules.copy)
            else:
                self.due = min(self.due, row[0] + rules.clash)
                break

    def _expect(self, first: int, keys: dict[str, int]) -> None:
        """The batch that begins at *first* with *keys* is full at the end of its window, if nothing comes before."""
        self.first, self.keys = first, keys
        self.limit = first + self.rules.window
        self.due = first + self.rules.full

    def _window(self) -> tuple[list[Row], int]:
        """The known rows from the first one to the end of its window, and how many of them are pending."""
        rows = self.open.rows if self.open else []
        limit = (rows or self.pending)[0][0] + self.rules.window
        taken = bisect_left(self.pending, (limit + 1,))
        return rows + self.pending[:taken], taken

    def _fit(self, rows: Sequence[Row]) -> bool:
        """Whether *rows* are within the caps."""
        caps = self.rules.caps
        return caps is None or (len(rows) <= caps.count and sum(map(_size, rows)) <= caps.size)

    def _settle_in_order(self, bound: int) -> tuple[list[CutBatch], list[Reject]]:
        """Close what is certain below *bound* row by row: something repeats, or is too much for one batch."""
        if self.open is None:
            self.open = self.rules.open(())
        closed = self.open.settle(self.pending, bound)
        if not self.open.rows:
            self.open = None
        if self.open or self.pending:
            self.plan()
        return closed

    def _overflows(self, size: int) -> bool:
        """Count one more row of *size* bytes; whether the known rows are now more than the caps allow one batch.

        The instant at which they overflow, in order of time, is no earlier than that of this row, or it was reached
        before and is counted in ``due`` already.
        """
        assert self.rules.caps is not None
        self.count += 1
        self.size += size
        return self.count > self.rules.caps.count or self.size > self.rules.caps.size
