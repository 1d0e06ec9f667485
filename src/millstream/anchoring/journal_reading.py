"""Looking at the journal: batches by page, over time, and why messages are in none. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.states import BatchState


class BatchRow(msgspec.Struct, frozen=True):
    """One accepted batch. ``number`` is its place in the order of adding, ``start`` the event time at which it begins
    (microseconds), ``bytes`` those in a batch file; ``anchor`` is its ledger entry once it has one."""

    number: int
    log: str
    batch: str
    source: str
    start: int
    bytes: int
    state: str
    anchor: int | None
    reason: str | None


class RejectCount(msgspec.Struct, frozen=True):
    """How many messages of a log are in no batch for one reason."""

    log: str
    reason: str
    messages: int


class JournalReader:
    """The journal in the database of *engine*, whose tables a :class:`~millstream.anchoring.Journal` has made."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def last_number(self) -> int:
        """The number of the batch that was added last; 0 before the first."""
        return int(self._rows(sa.select(sa.func.coalesce(sa.func.max(t.batches.c.seq), 0)))[0][0])

    def batches(
        self, *, before: int | None = None, limit: int = 100, log: str | None = None, rejected: bool = False
    ) -> Sequence[BatchRow]:
        """Up to *limit* batches with numbers below *before*, the last one first; of one *log*, or *rejected* ones."""
        b = t.batches.c
        query = self._batches().order_by(b.seq.desc()).limit(limit)
        query = query if before is None else query.where(b.seq < before)
        query = query if log is None else query.where(b.log == log)
        query = query.where(b.reason.is_not(None)) if rejected else query
        return [_batch(row) for row in self._rows(query)]

    def batch(self, log: str, batch: str) -> BatchRow | None:
        """The batch of this id; None where it was never added."""
        rows = self._rows(self._batches().where(t.batches.c.log == log, t.batches.c.batch == batch))
        return _batch(rows[0]) if rows else None

    def starts(self, buckets: int = 120) -> Mapping[str, Sequence[tuple[int, int]]]:
        """How many batches begin when, by log: (beginning of the bucket in microseconds, batches), empty ones left out.

        The time from the first to the last batch of all is cut into so many *buckets*.
        """
        b = t.batches.c
        first, last = self._rows(sa.select(sa.func.min(b.start), sa.func.max(b.start)))[0]
        if first is None:
            return {}
        width = max(1, (last - first) // buckets + 1)
        bucket = (b.start - first) / sa.literal(width, sa.BigInteger)
        numbered = sa.cast(bucket, sa.BigInteger).label("bucket")
        query = sa.select(b.log, numbered, sa.func.count()).group_by(b.log, numbered).order_by(b.log, numbered)
        found: dict[str, list[tuple[int, int]]] = {}
        for log, number, count in self._rows(query):
            found.setdefault(log, []).append((first + int(number) * width, count))
        return found

    def rejects(self) -> Sequence[RejectCount]:
        """Why messages are in no batch, by log and reason."""
        r = t.rejects.c
        query = sa.select(r.log, r.reason, sa.func.count()).group_by(r.log, r.reason).order_by(r.log, r.reason)
        return [RejectCount(*row) for row in self._rows(query)]

    @staticmethod
    def _batches() -> sa.Select[Any]:
        b = t.batches.c
        columns = (b.seq, b.log, b.batch, b.source, b.start, b.size, b.reason, t.cuts.c.state, t.cuts.c.anchor)
        return sa.select(*columns).outerjoin_from(t.batches, t.cuts, b.cut == t.cuts.c.cut)

    def _rows(self, query: Any) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()


def _batch(row: Any) -> BatchRow:
    state = BatchState.REJECTED if row.reason is not None else BatchState(row.state or BatchState.ACCEPTED)
    return BatchRow(row.seq, row.log, row.batch, row.source, row.start, row.size, state, row.anchor, row.reason)
