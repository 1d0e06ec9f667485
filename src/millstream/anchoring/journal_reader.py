"""Looking at the journal: batches by page and over time, why they ended, why messages are in none; changing nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.duplicate_check import ANCHORED_BEFORE
from millstream.anchoring.journal_writing import last_place
from millstream.anchoring.packed_members import packed_by_name, packed_members, places_with_rows
from millstream.anchoring.packing import PackedMembers
from millstream.anchoring.states import BatchState
from millstream.core.sql import reading
from millstream.core.sql_rows import among, total

_BUCKETS = 120
_ID_BYTES = 8
_NAMES_AT_ONCE = 5_000


class BatchRow(msgspec.Struct, frozen=True):
    """An accepted batch. ``number`` counts batches in the order of acceptance. ``start`` and ``end`` are the event
    times of its first and last message (microseconds), ``bytes`` is its size in a batch file, ``anchor`` its ledger
    entry (None before it is anchored), and ``ended`` the reason for its end. ``ended`` and ``end`` are None for batches
    of earlier releases.
    """

    number: int
    log: str
    batch: str
    source: str
    start: int
    bytes: int
    state: str
    anchor: int | None
    reason: str | None
    end: int | None = None
    ended: str | None = None


class RejectCount(msgspec.Struct, frozen=True):
    """The number of messages of a log that were rejected for one reason."""

    log: str
    reason: str
    messages: int


class RejectRow(msgspec.Struct, frozen=True):
    """A message ``id`` of ``log`` that was rejected, with the reason and the ledger entry that records it (None before
    its anchor).
    """

    log: str
    id: int
    reason: str
    anchor: int | None


class OpenCount(msgspec.Struct, frozen=True):
    """The messages of a log that are in batches the observer has not read back yet, and in batches it refused."""

    log: str
    messages: int
    refused: int


class CutReasonCount(msgspec.Struct, frozen=True):
    """The number of batches of a log that ended for one reason; ``ended`` is None if the reason was not recorded."""

    log: str
    ended: str | None
    batches: int


class BatchHistogramBucket(msgspec.Struct, frozen=True):
    """The number of batches of ``log`` that ended for one reason and begin at ``at`` or later and before ``until``
    (event time in microseconds).
    """

    log: str
    at: int
    until: int
    ended: str | None
    batches: int


class BatchFilter(msgspec.Struct, frozen=True):
    """Which batches: of one ``log``, of those ``rejected``, that ``ended`` so, that begin from ``since`` until before
    ``until`` (microseconds of event time). What is None does not matter."""

    log: str | None = None
    rejected: bool = False
    ended: str | None = None
    since: int | None = None
    until: int | None = None


ALL_BATCHES = BatchFilter()
"""All batches."""


class JournalReader:
    """The journal in the database of *engine*, whose tables a :class:`~millstream.anchoring.Journal` has made."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def last_number(self) -> int:
        """The number of the batch that was added last; 0 before the first."""
        with reading(self._engine) as connection:
            return last_place(connection)

    def first_waiting(self) -> int | None:
        """When the first batch was accepted that waits for an anchor (microseconds); None where none does, or where it
        was not kept. For a batch that an earlier release accepted it is its end (event time)."""
        cuts = [row.cut for row in self._rows(sa.select(t.cuts.c.cut).where(t.cuts.c.state == BatchState.CUT))]
        unanchored = sa.and_(among(t.batches.c.cut, cuts), t.batches.c.reason.is_(None))
        first = sa.func.min(sa.func.coalesce(t.batches.c.accepted, t.batches.c.end))
        chosen = [t.WAITING, unanchored] if cuts else [t.WAITING]
        found = [self._rows(sa.select(first).where(which))[0][0] for which in chosen]
        return min((int(at) for at in found if at is not None), default=None)

    def batches(
        self, chosen: BatchFilter = ALL_BATCHES, *, before: int | None = None, limit: int = 100
    ) -> Sequence[BatchRow]:
        """Up to *limit* of the *chosen* batches with numbers below *before*, the last one first."""
        query = self._batches().where(*_where(chosen)).order_by(t.batches.c.seq.desc()).limit(limit)
        query = query if before is None else query.where(t.batches.c.seq < before)
        rows = [_batch(row) for row in self._rows(query)]
        rows += itertools.islice(self._packed(chosen, before), limit)
        return sorted(rows, key=lambda row: -row.number)[:limit]

    def batch(self, log: str, batch: str) -> BatchRow | None:
        """The batch of this id; None where it was never added."""
        rows = self._rows(self._batches().where(t.batches.c.log == log, t.batches.c.batch == batch))
        if rows:
            return _batch(rows[0])
        with reading(self._engine) as connection:
            for found in packed_by_name(connection, log, [batch]):
                return _packed_row(log, found.place, found.members, found.at, _state_of(connection, found.cut))
        return None

    def names(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The ids of all batches by log, some thousand at a time, about the last ones first."""
        query = sa.select(t.batches.c.log, t.batches.c.batch).order_by(t.batches.c.seq.desc())
        with reading(self._engine) as connection:
            rows = connection.execute(query)
            while found := rows.fetchmany(_NAMES_AT_ONCE):
                for log in dict.fromkeys(row.log for row in found):
                    yield log, [row.batch for row in found if row.log == log]
            for row, members in packed_members(connection):
                yield row.log, members.names

    def starts(self, chosen: BatchFilter = ALL_BATCHES, buckets: int = _BUCKETS) -> Sequence[BatchHistogramBucket]:
        """How many of the *chosen* batches begin when, by log, time and why they ended; empty buckets are left out.

        The time from the first to the last of them is cut into so many *buckets*.
        """
        b, where = t.batches.c, _where(chosen)
        packed = self._packed_starts(chosen)
        spans = [self._rows(sa.select(sa.func.min(b.start), sa.func.max(b.start)).where(*where))[0]]
        spans += [(starts.min(), starts.max()) for *_, starts in packed if len(starts)]
        known = [(int(low), int(high)) for low, high in spans if low is not None]
        if not known:
            return []
        first, last = min(low for low, _ in known), max(high for _, high in known)
        width = max(1, (last - first) // buckets + 1)
        bucket = (b.start - first) // sa.literal(width, sa.BigInteger)
        numbered = sa.cast(bucket, sa.BigInteger).label("bucket")
        query = sa.select(b.log, numbered, b.ended, sa.func.count()).where(*where)
        counts = Counter[tuple[str, int, str | None]]()
        for log, number, ended, count in self._rows(query.group_by(b.log, numbered, b.ended)):
            counts[log, int(number), ended] += count
        for log, ended, starts in packed:
            for number, count in zip(*np.unique((starts - first) // width, return_counts=True), strict=True):
                counts[log, int(number), ended] += int(count)
        return [
            BatchHistogramBucket(log, at := first + number * width, at + width, ended, count)
            for (log, number, ended), count in sorted(counts.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
        ]

    def ends(self) -> Sequence[CutReasonCount]:
        """Counts of the reasons why batches ended, by log and reason."""
        b = t.batches.c
        counts = Counter[tuple[str, str | None]]()
        query = sa.select(b.log, b.ended, sa.func.count()).group_by(b.log, b.ended)
        for log, ended, count in self._rows(query):
            counts[log, ended] += count
        for log, ends in self._rows(sa.select(t.members.c.log, t.members.c.ends)):
            counts.update({(log, ended): count for ended, count in msgspec.json.decode(ends).items()})
        twice = query.join(t.members, t.members.c.cut == b.cut)
        for log, ended, count in self._rows(twice):
            counts[log, ended] -= count  # a refused batch of a packed cut has a row as well
        ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        return [CutReasonCount(*key, count) for key, count in ordered if count]

    def logs(self) -> Sequence[str]:
        """The logs of which batches or rejects were ever added, in order."""
        return [row.log for row in self._rows(sa.select(t.streams.c.log).distinct().order_by(t.streams.c.log))]

    def open_messages(self, observed: int = 0) -> Sequence[OpenCount]:
        """How many messages, by log, are in batches that no observed anchor holds.

        *observed* is the number of the last anchor that is indexed: what was indexed already is left out also before
        this journal was told, and so are batches that were rejected because they are anchored.
        """
        is_open = t.cuts.c.anchor.is_(None) | (t.cuts.c.anchor > observed)
        ids = sa.func.length(t.payloads.c.ids, type_=sa.Integer) // sa.literal(_ID_BYTES, sa.Integer)
        reason = t.batches.c.reason
        refused = reason.is_not(None) & reason.not_like(f"{ANCHORED_BEFORE}%")
        sums = [total(sa.case((which, ids))) for which in (reason.is_(None), refused)]
        query = sa.select(t.batches.c.log, *sums).join(t.payloads, t.batches.c.seq == t.payloads.c.seq)
        query = query.outerjoin(t.cuts, t.batches.c.cut == t.cuts.c.cut).where(is_open)
        packed = sa.select(t.packed.c.log, total(sa.func.length(t.packed.c.ids))).group_by(t.packed.c.log)
        packed = packed.join(t.cuts, t.packed.c.cut == t.cuts.c.cut).where(is_open)
        rows = {log: (int(open_), int(refused)) for log, open_, refused in self._rows(query.group_by(t.batches.c.log))}
        for log, size in self._rows(packed):
            open_, refused_ = rows.get(log, (0, 0))
            rows[log] = open_ + int(size) // _ID_BYTES, refused_
        return [OpenCount(log, *counts) for log, counts in sorted(rows.items())]

    def rejects(self) -> Sequence[RejectCount]:
        """Counts of rejected messages, by log and reason."""
        r = t.rejects.c
        query = sa.select(r.log, r.reason, sa.func.count()).group_by(r.log, r.reason).order_by(r.log, r.reason)
        return [RejectCount(*row) for row in self._rows(query)]

    def rejected(self, log: str, *, reason: str | None = None, after: int = 0, limit: int = 100) -> Sequence[RejectRow]:
        """Up to *limit* messages of *log* with ids above *after* that are in no batch, for one *reason* or any."""
        r = t.rejects.c
        query = sa.select(r.log, r.id, r.reason, t.cuts.c.anchor).outerjoin_from(
            t.rejects, t.cuts, r.cut == t.cuts.c.cut
        )
        query = query.where(r.log == log, r.id > after).order_by(r.id).limit(limit)
        query = query if reason is None else query.where(r.reason == reason)
        return [RejectRow(*row) for row in self._rows(query)]

    def _packed(self, chosen: BatchFilter, before: int | None) -> Iterator[BatchRow]:
        """Those *chosen* batches of packed cuts that have no rows, with numbers below *before*, the last one first."""
        where = _where_packed(chosen) + ([] if before is None else [t.members.c.first < before])
        with reading(self._engine) as connection:
            for row, members in packed_members(connection, *where):
                mask, state = _chosen(connection, row, members, chosen), _state_of(connection, row.cut)
                for at in np.flatnonzero(mask)[::-1].tolist():
                    if before is None or row.first + at < before:
                        yield _packed_row(row.log, row.first + at, members, at, state)

    def _packed_starts(self, chosen: BatchFilter) -> list[tuple[str, str, npt.NDArray[np.int64]]]:
        """When those *chosen* batches of packed cuts begin that have no rows: log, why they ended, start times."""
        found = list[tuple[str, str, npt.NDArray[np.int64]]]()
        with reading(self._engine) as connection:
            for row, members in packed_members(connection, *_where_packed(chosen)):
                mask, numbers, starts = (
                    _chosen(connection, row, members, chosen),
                    members.end_numbers(),
                    members.starts(),
                )
                for number, ended in enumerate(members.ends):
                    found.append((row.log, ended, starts[mask & (numbers == number)]))
        return found

    @staticmethod
    def _batches() -> sa.Select[Any]:
        b = t.batches.c
        columns = (b.seq, b.log, b.batch, b.source, b.start, b.size, b.reason, b.end, b.ended)
        return sa.select(*columns, t.cuts.c.state, t.cuts.c.anchor).outerjoin_from(
            t.batches, t.cuts, b.cut == t.cuts.c.cut
        )

    def _rows(self, query: Any) -> Sequence[Any]:
        with reading(self._engine) as connection:
            return connection.execute(query).all()


def _where(chosen: BatchFilter) -> list[sa.ColumnElement[bool]]:
    b, found = t.batches.c, list[sa.ColumnElement[bool]]()
    if chosen.log is not None:
        found.append(b.log == chosen.log)
    if chosen.rejected:
        found.append(b.reason.is_not(None))
    if chosen.ended is not None:
        found.append(b.ended == chosen.ended)
    if chosen.since is not None:
        found.append(b.start >= chosen.since)
    if chosen.until is not None:
        found.append(b.start < chosen.until)
    return found


def _where_packed(chosen: BatchFilter) -> list[sa.ColumnElement[bool]]:
    """Which packed cuts may have *chosen* batches: those that were rejected have rows."""
    own, found = t.members.c, list[sa.ColumnElement[bool]]()
    if chosen.log is not None:
        found.append(own.log == chosen.log)
    if chosen.rejected:
        found.append(sa.false())
    if chosen.ended is not None:
        found.append(own.ends.contains(msgspec.json.encode(chosen.ended).decode(), autoescape=True))
    if chosen.since is not None:
        found.append(own.latest >= chosen.since)
    if chosen.until is not None:
        found.append(own.earliest < chosen.until)
    return found


def _chosen(connection: sa.Connection, row: Any, members: PackedMembers, chosen: BatchFilter) -> npt.NDArray[np.bool_]:
    """Which of *members*, of the packed cut of *row*, are *chosen* and have no row."""
    starts, mask = members.starts(), np.ones(len(members.names), np.bool_)
    if chosen.ended is not None:
        wanted = [number for number, ended in enumerate(members.ends) if ended == chosen.ended]
        mask &= np.isin(members.end_numbers(), wanted)
    if chosen.since is not None:
        mask &= starts >= chosen.since
    if chosen.until is not None:
        mask &= starts < chosen.until
    mask[[place - row.first for place in places_with_rows(connection, row.cut)]] = False
    return mask


def _state_of(connection: sa.Connection, cut: int) -> tuple[str, int | None]:
    query = sa.select(t.cuts.c.state, t.cuts.c.anchor).where(t.cuts.c.cut == cut)
    state, anchor = connection.execute(query).one()
    return state, anchor


def _packed_row(log: str, number: int, members: PackedMembers, at: int, state: tuple[str, int | None]) -> BatchRow:
    own, (named, anchor) = members.row(at), state
    facts = (number, log, own["batch"], own["source"], own["start"], own["size"], BatchState(named), anchor, None)
    return BatchRow(*facts, own["end"], own["ended"])


def _batch(row: Any) -> BatchRow:
    state = BatchState.REJECTED if row.reason is not None else BatchState(row.state or BatchState.ACCEPTED)
    facts = (row.seq, row.log, row.batch, row.source, row.start, row.size, state, row.anchor, row.reason)
    return BatchRow(*facts, row.end, row.ended)
