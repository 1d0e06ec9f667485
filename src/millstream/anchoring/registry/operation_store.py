"""The durable state of every operation, from acceptance to its end: one row each, one transaction a change."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.follow_state import read_only, refuse_if_following
from millstream.anchoring.registry.states import (
    FINAL,
    NOTHING_QUEUED,
    OpenCut,
    OperationState,
    OperationStatus,
    QueuedOperation,
    QueueSummary,
    Submission,
)
from millstream.core.sql_rows import DriverQuery, among, insert_rows, json_array, one_of, update_rows

_ops = t.operations
_STATUS = [_ops.c[n] for n in ("id", "suffix", "type", "state", "accepted_at", "retries", "anchor", "place", "reason")]
_QUEUED = [_ops.c[n] for n in ("seq", "id", "suffix", "request", "version", "retries", "accepted_at", "type")]
_ACCEPTED = ["id", "suffix", "type", "version", "request", "state", "open", "retries", "accepted_at", "available_at"]
_CHUNK = 5_000
_PIECE_BYTES = 1 << 20
_OPEN = DriverQuery(
    sa.select(_ops.c.seq, _ops.c.suffix, _ops.c.id).where(
        among(_ops.c.suffix, sa.bindparam("suffixes", type_=sa.Text)), _ops.c.open
    )
)
_REQUESTS = DriverQuery(
    sa.select(_ops.c.id, _ops.c.suffix, _ops.c.request).where(among(_ops.c.id, sa.bindparam("ids", type_=sa.Text)))
)
_NOT_HELD = "the anchor does not contain this operation, or was made outside the operation's time window"


class _TakenOverError(Exception):
    """Rolls a transaction back."""


class OperationStore:
    """The operations in *database*. Thread-safe. Final ones are kept for *lifespan* seconds.

    *follows* is the ledger of another registry that this one is told to follow; then no operations are taken.
    """

    def __init__(self, database: RegistryDatabase, *, lifespan: float = 24 * 3600, follows: str = "") -> None:
        self.database = database
        self._follows = follows
        self._lifespan = int(lifespan * 1_000_000)

    # Acceptance

    def accept(self, submissions: Sequence[Submission]) -> Sequence[OperationStatus]:
        """Store *submissions* durably, all or none; a known one is not changed. Statuses, in order.

        A rejected one is accepted again: the caller has checked it, and the cause may no longer exist.

        Raises :class:`~millstream.anchoring.registry.ReadOnlyError` where this registry follows another one.
        """

        def transaction(connection: sa.Connection, now: int) -> Sequence[OperationStatus]:
            self._refuse(connection)
            fresh = {s.id: OperationStatus(s.id, s.suffix, s.type, OperationState.ACCEPTED, now) for s in submissions}
            rows = [_row(submission, now) for submission in {s.id: s for s in submissions}.values()]
            if insert_rows(connection, _ops, _ACCEPTED, rows) < len(rows):
                known = _statuses(connection, _ops.c.id, list(fresh))
                rejected = {name for name, status in known.items() if status.state == OperationState.REJECTED}
                others = {name: status for name, status in known.items() if name not in rejected}
                if _take_again(connection, rejected, now) < len(rejected) or len(known) < len(rows):
                    # Some expired between two of these statements.
                    insert_rows(connection, _ops, _ACCEPTED, [row for row in rows if row[0] not in others])
                fresh |= others
            return [fresh[submission.id] for submission in submissions]

        return self.database.write(transaction)

    def require_database(self) -> None:
        """Raise :class:`~millstream.anchoring.registry.DatabaseBusyError` where the database does not answer."""
        self.database.rows(sa.select(_ops.c.id).limit(1))

    def check_writable(self) -> None:
        """Raise :class:`~millstream.anchoring.registry.ReadOnlyError` where this registry follows another one."""
        self.database.query(self._refuse)

    def _refuse(self, connection: sa.Connection) -> None:
        if self._follows:
            raise read_only(self._follows)
        refuse_if_following(connection)

    def status(self, operation: str) -> OperationStatus | None:
        """The status of the operation of this id; None if it was never accepted, or its record has expired."""
        return self.database.query(lambda c: _statuses(c, _ops.c.id, [operation]).get(operation))

    def statuses(self, operations: Sequence[str]) -> Mapping[str, OperationStatus]:
        """The statuses of those of *operations* (ids) that are recorded."""
        chunks = [operations[start : start + _CHUNK] for start in range(0, len(operations), _CHUNK)]

        def transaction(connection: sa.Connection, _now: int) -> Mapping[str, OperationStatus]:
            found = dict[str, OperationStatus]()
            for chunk in chunks:
                found |= _statuses(connection, _ops.c.id, chunk)
            return found

        return self.database.read(transaction)

    def statuses_of(self, suffix: str) -> Sequence[OperationStatus]:
        """All operations on *suffix* that are recorded, in the order of acceptance."""
        query = sa.select(*_STATUS).where(_ops.c.suffix == suffix).order_by(_ops.c.seq)
        return self.database.query(lambda c: [_status(row) for row in c.execute(query)])

    def statuses_page(self, suffix: str, *, after: int, limit: int) -> Sequence[tuple[int, OperationStatus]]:
        """Up to *limit* of :meth:`statuses_of`, each with its place in the order of acceptance, those above *after*."""

        def transaction(connection: sa.Connection, _now: int) -> Sequence[tuple[int, OperationStatus]]:
            found = list[tuple[int, OperationStatus]]()
            for is_open in (True, False):  # the order of the index, so that no more than the limit is ever sorted
                chosen = sa.and_(_ops.c.suffix == suffix, _ops.c.open == is_open, _ops.c.seq > after)
                query = sa.select(*_STATUS, _ops.c.seq).where(chosen).order_by(_ops.c.seq).limit(limit)
                found += [(row.seq, _status(row[:-1])) for row in connection.execute(query)]
            return sorted(found, key=lambda row: row[0])[:limit]

        return self.database.read(transaction)

    def open_ids(self, connection: sa.Connection, suffixes: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Suffix and id of the operations on *suffixes* that are not in a final state, in the order of acceptance."""
        rows = _OPEN.rows(connection, suffixes=json_array(suffixes))
        return [(suffix, name) for _, suffix, name in sorted(map(tuple, rows))]

    def requests(self, connection: sa.Connection, operations: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
        """Id, suffix and request of those of *operations* (ids) that are recorded."""
        for start in range(0, len(operations), _CHUNK):
            rows = _REQUESTS.rows(connection, ids=json_array(operations[start : start + _CHUNK]))
            yield from ((name, suffix, request) for name, suffix, request in rows)

    def open_count(self) -> int:
        """How many operations are not in a final state."""
        query = sa.select(sa.func.count()).where(_ops.c.open)
        return int(self.database.query(lambda c: c.scalar(query)) or 0)

    def counts(self) -> Mapping[str, int]:
        """The number of operations in each state."""
        query = sa.select(_ops.c.state, sa.func.count()).group_by(_ops.c.state)
        found = self.database.query(lambda c: {row[0]: int(row[1]) for row in c.execute(query)})
        return {state.value: found.get(state.value, 0) for state in OperationState}

    # The queue of an instance

    def claim(self, instance: str, limit: int, *, older_than: float = 0.0) -> tuple[int, QueueSummary]:
        """Put up to *limit* accepted operations into the queue of *instance*, oldest first: those that have been due
        for *older_than* seconds. Returns how many, and what they are; another instance may have taken some of those.
        """

        def transaction(connection: sa.Connection, now: int) -> tuple[int, QueueSummary]:
            latest = now - int(older_than * 1_000_000)
            due = sa.and_(_ops.c.state == OperationState.ACCEPTED, _ops.c.available_at <= latest)
            first = sa.select(_ops.c.seq).where(due).order_by(_ops.c.seq).limit(limit).subquery()
            last = connection.scalar(sa.select(sa.func.max(first.c.seq)))
            if last is None:
                return 0, NOTHING_QUEUED
            return _queue(connection, instance, sa.and_(due, _ops.c.seq <= last))

        return self.database.write(transaction)

    def has_work(self, instance: str) -> bool:
        """Whether an operation is accepted or in the queue of *instance*, or a cut of it is open."""
        return self.database.query(lambda connection: bool(connection.scalar(_work_of(instance))))

    def take(self, instance: str, operations: Sequence[str]) -> tuple[int, QueueSummary]:
        """Put those of *operations* (ids) that are accepted into the queue of *instance*; returns what :meth:`claim`
        does."""

        def transaction(connection: sa.Connection, _now: int) -> tuple[int, QueueSummary]:
            return _queue(connection, instance, one_of(connection, _ops.c.id, operations))

        return self.database.write(transaction)

    def queued(self, instance: str) -> int:
        """How many operations are in the queue of *instance*."""
        query = sa.select(sa.func.count()).where(_in_queue(instance))
        return int(self.database.query(lambda c: c.scalar(query)) or 0)

    def next_in_queue(self, instance: str, limit: int) -> Sequence[QueuedOperation]:
        """The first operations of *instance* that may be cut: none whose DID has an earlier one under way."""
        rows = self.database.query(lambda c: _NEXT.rows(c, instance=instance, limit=limit))
        return [QueuedOperation(*row) for row in rows]

    def queue_summary(self, instance: str) -> QueueSummary:
        """What there is of operations of *instance* that may be cut; no request is read."""
        return self.database.query(lambda c: _summary(c, _may_be_cut(instance)))

    def whole_queue(self, instance: str) -> QueueSummary:
        """As :meth:`queue_summary`, with the operations whose DID has an earlier one under way."""
        return self.database.query(lambda c: _summary(c, _in_queue(instance)))

    def requeue(self, instance: str, delays: Mapping[int, float], *, reasons: Mapping[int, str], most: int) -> None:
        """Queued operations failed: each may be claimed again after its delay in seconds, by any instance.

        *delays* and *reasons* are by place in the order of acceptance. An operation with *most* retries is dead.
        """

        def transaction(connection: sa.Connection, now: int) -> None:
            rows = connection.execute(
                sa.select(_ops.c.seq, _ops.c.retries).where(_in_queue(instance), _ops.c.seq.in_(list(delays)))
            ).all()
            for seq, retries in rows:
                values = _retried(now, delays[seq]) if retries < most else self._ended(OperationState.DEAD, now)
                change = {**values, "reason": reasons.get(seq), "retries": min(retries + 1, most)}
                connection.execute(sa.update(_ops).where(_ops.c.seq == seq, _in_queue(instance)).values(change))

        self.database.write(transaction)

    def reject(self, instance: str, reasons: Mapping[int, str]) -> None:
        """Operations in the queue of *instance* can never be anchored: reasons by place in the order of acceptance."""

        def transaction(connection: sa.Connection, now: int) -> None:
            ended = self._ended(OperationState.REJECTED, now)
            for seq, reason in reasons.items():
                mine = sa.and_(_ops.c.seq == seq, _in_queue(instance))
                connection.execute(sa.update(_ops).where(mine).values(**ended, reason=reason))

        self.database.write(transaction)

    def redrive(self, operations: Sequence[str] | None = None) -> int:
        """Let dead operations, those named or all, be retried with all their retries. Returns how many."""
        chosen = _ops.c.state == OperationState.DEAD
        if operations is not None:
            chosen = sa.and_(chosen, _ops.c.id.in_(operations))

        def transaction(connection: sa.Connection, now: int) -> int:
            return connection.execute(sa.update(_ops).where(chosen).values(_begun_anew(now))).rowcount

        return self.database.write(transaction)

    # Cuts

    def prepare(
        self, cut: OpenCut, operations: Sequence[QueuedOperation], files: Sequence[tuple[str, bytes]]
    ) -> OpenCut | None:
        """Write *cut* of these *operations* down, in this order, before anything of it leaves this database.

        *files* are its files by their CIDs. None where one of the operations is no longer in the queue of the cut's
        instance: others have taken it over.
        """

        def transaction(connection: sa.Connection, _now: int) -> OpenCut:
            row = {"instance": cut.instance, "anchor_string": cut.anchor_string, "version": cut.version}
            values = {**row, "ledger_after": cut.ledger_after, "open": True}
            key = int(connection.execute(sa.insert(t.cuts).values(values)).inserted_primary_key[0])  # type: ignore[index]
            places = [(operation.seq, place) for place, operation in enumerate(operations)]
            change = {"state": OperationState.CUT.value, "cut": key}
            mine = {"state": OperationState.QUEUED.value, "instance": cut.instance}
            if update_rows(connection, _ops.c.place, _ops.c.seq, places, change=change, only=mine) != len(places):
                raise _TakenOverError
            rows = enumerate((uri, piece) for uri, data in files for piece in _pieces(data))
            stored = [{"cut": key, "place": place, "uri": uri, "data": piece} for place, (uri, piece) in rows]
            connection.execute(sa.insert(t.cut_files), stored)
            return OpenCut(key, *_fields(cut)[1:])

        try:
            return self.database.write(transaction)
        except _TakenOverError:
            return None

    def is_cut_by_other(self, anchor_string: str, instance: str) -> bool:
        """Whether an instance other than *instance* has an open cut with *anchor_string*.

        That instance, or the one that takes the cut over, reads its files and closes it.
        """
        found = t.cuts.c.open & (t.cuts.c.instance != instance) & (t.cuts.c.anchor_string == anchor_string)
        return self.database.query(lambda connection: bool(connection.scalar(sa.select(sa.exists().where(found)))))

    def open_cuts(self, instance: str | None = None) -> Sequence[OpenCut]:
        """The cuts that are not observed yet, oldest first; those of *instance*, or all."""
        columns = [t.cuts.c[name] for name in OpenCut.__struct_fields__]
        query = sa.select(*columns).where(t.cuts.c.open).order_by(t.cuts.c.cut)
        query = query if instance is None else query.where(t.cuts.c.instance == instance)
        return self.database.query(lambda c: [OpenCut(*row) for row in c.execute(query)])

    def operations_of(self, cut: OpenCut) -> Sequence[QueuedOperation]:
        """The operations of *cut*, in its order."""
        query = sa.select(*_QUEUED).where(_ops.c.cut == cut.cut).order_by(_ops.c.place)
        return self.database.query(lambda c: [QueuedOperation(*row) for row in c.execute(query)])

    def files_of(self, cut: OpenCut) -> Mapping[str, bytes]:
        """The files of the open *cut* by their CIDs, in its order; none if an earlier version wrote it down."""
        query = sa.select(t.cut_files.c.uri, t.cut_files.c.data).where(t.cut_files.c.cut == cut.cut)
        files = dict[str, bytes]()
        for uri, piece in self.database.query(lambda c: c.execute(query.order_by(t.cut_files.c.place)).all()):
            files[uri] = files.get(uri, b"") + piece
        return files

    def anchored(self, cut: OpenCut, number: int) -> None:
        """The ledger has *cut* as entry *number*. Its operations show that after :meth:`show_anchored`."""
        change = sa.update(t.cuts).where(t.cuts.c.cut == cut.cut).values(number=number)
        self.database.write(lambda connection, _now: connection.execute(change))

    def show_anchored(self, cut: OpenCut, number: int) -> None:
        """The operations of *cut* are anchored as entry *number*, and not observed yet."""
        still = sa.and_(_ops.c.cut == cut.cut, _ops.c.state == OperationState.CUT)
        change = sa.update(_ops).where(still).values(state=OperationState.ANCHORED, anchor=number)
        self.database.write(lambda connection, _now: connection.execute(change))

    def close_cut(self, cut: OpenCut, number: int, fault: str | None) -> None:
        """The observer has read *cut* back from ledger entry *number*; operations that it did not find in the anchor
        are rejected with *fault*."""

        def transaction(connection: sa.Connection, now: int) -> None:
            left = sa.update(_ops).where(_ops.c.cut == cut.cut, _ops.c.open)
            ended = self._ended(OperationState.REJECTED, now)
            connection.execute(left.values(**ended, anchor=number, reason=fault or _NOT_HELD))
            connection.execute(sa.update(t.cuts).where(t.cuts.c.cut == cut.cut).values(open=False))
            connection.execute(sa.delete(t.cut_files).where(t.cut_files.c.cut == cut.cut))

        self.database.write(transaction)

    def observed(
        self,
        connection: sa.Connection,
        now: int,
        number: int,
        places: Sequence[tuple[int, int]],
        ids: Sequence[tuple[str, int]],
    ) -> None:
        """Ledger entry *number* holds operations at these places; part of the observer's change.

        *places* has them by their place in the order of acceptance, *ids* by their ids.
        """
        change = {**self._ended(OperationState.OBSERVED, now), "anchor": number, "reason": None}
        seen = {"state": OperationState.OBSERVED.value}
        if places:
            update_rows(connection, _ops.c.place, _ops.c.seq, places, change=change, never=seen)
        if ids:
            update_rows(connection, _ops.c.place, _ops.c.id, ids, change=change, never=seen)

    def accept_anchored_again(self, connection: sa.Connection, now: int) -> None:
        """All operations that were cut, anchored or observed are accepted again, and no cut is open: the ledger lost
        entries. Part of the change that forgets what was observed."""
        taken = (OperationState.CUT, OperationState.ANCHORED, OperationState.OBSERVED)
        fresh = {**_begun_anew(now), "cut": None, "anchor": None, "place": None}
        connection.execute(sa.update(_ops).where(_ops.c.state.in_([state.value for state in taken])).values(fresh))
        connection.execute(sa.update(t.cuts).where(t.cuts.c.open).values(open=False))
        connection.execute(sa.delete(t.cut_files))

    # Death and expiry

    def repost(self, instance: str, limit: int) -> int:
        """*instance* is gone: its queued operations may be claimed by others, at no cost of a retry."""

        def transaction(connection: sa.Connection, now: int) -> int:
            query = sa.select(_ops.c.seq).where(_in_queue(instance)).order_by(_ops.c.seq).limit(limit)
            found = [row.seq for row in connection.execute(query)]
            still = sa.and_(_ops.c.seq.in_(found), _in_queue(instance))  # it may be alive, and have cut some since
            return connection.execute(sa.update(_ops).where(still).values(_retried(now, 0))).rowcount

        return self.database.write(transaction)

    def reassign(self, dead: str, heir: str) -> int:
        """The open cuts of *dead* are finished by *heir*. Returns how many there are."""
        change = sa.update(t.cuts).where(t.cuts.c.instance == dead, t.cuts.c.open).values(instance=heir)
        return self.database.write(lambda c, _now: c.execute(change).rowcount)

    def expire(self, limit: int = 5_000) -> int:
        """Forget final operations whose lifespan is over, *limit* at a time. Returns how many."""

        def transaction(connection: sa.Connection, now: int) -> int:
            over = sa.and_(_ops.c.expires_at <= now, ~_ops.c.open)
            found = list(connection.scalars(sa.select(_ops.c.seq).where(over).limit(limit)))
            # One that was rejected may have been accepted again since.
            return connection.execute(sa.delete(_ops).where(_ops.c.seq.in_(found), over)).rowcount if found else 0

        total = 0
        while forgotten := self.database.write(transaction):
            total += forgotten
        return total

    def unpublished(self, suffix: str, lifespan: float) -> Sequence[QueuedOperation]:
        """The operations on *suffix* that were accepted within the last *lifespan* seconds and have not come to an end:
        not observed, rejected or dead. In the order of acceptance."""

        def query(connection: sa.Connection, now: int) -> Sequence[QueuedOperation]:
            recent = _ops.c.accepted_at > now - int(lifespan * 1_000_000)
            chosen = sa.select(*_QUEUED).where(_ops.c.suffix == suffix, _ops.c.open, recent)
            return [QueuedOperation(*row) for row in connection.execute(chosen.order_by(_ops.c.seq))]

        return self.database.read(query)

    def _ended(self, state: OperationState, now: int) -> dict[str, Any]:
        assert state in FINAL
        return {"state": state.value, "open": False, "instance": None, "expires_at": now + self._lifespan}


def _row(submission: Submission, now: int) -> Sequence[Any]:
    """A new operation, in the order of ``_ACCEPTED``."""
    given = (submission.id, submission.suffix, submission.type, submission.version, submission.request)
    return (*given, OperationState.ACCEPTED.value, True, 0, now, now)


def _retried(now: int, delay: float) -> dict[str, Any]:
    available = now + int(delay * 1_000_000)
    return {"state": OperationState.ACCEPTED, "instance": None, "available_at": available}


def _begun_anew(now: int) -> dict[str, Any]:
    return {**_retried(now, 0), "open": True, "retries": 0, "reason": None, "expires_at": None}


def _take_again(connection: sa.Connection, operations: Collection[str], now: int) -> int:
    """Accept those of *operations* (ids) again that are rejected; returns how many."""
    fresh = {**_begun_anew(now), "accepted_at": now, "cut": None, "anchor": None, "place": None}
    ids, count = list(operations), 0
    for start in range(0, len(ids), _CHUNK):
        chosen = sa.and_(_ops.c.id.in_(ids[start : start + _CHUNK]), _ops.c.state == OperationState.REJECTED)
        count += connection.execute(sa.update(_ops).where(chosen).values(fresh)).rowcount
    return count


def _in_queue(instance: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    return sa.and_(_ops.c.state == OperationState.QUEUED.value, _ops.c.instance == instance)


@functools.lru_cache(maxsize=8)
def _work_of(instance: str) -> sa.Select[tuple[bool]]:
    """Whether there is work for *instance*; made once, as it is asked every second."""
    accepted = sa.exists().where(_ops.c.state == OperationState.ACCEPTED)
    cut = sa.exists().where(t.cuts.c.open, t.cuts.c.instance == instance)
    return sa.select(sa.or_(accepted, sa.exists().where(_in_queue(instance)), cut))


def _may_be_cut(instance: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """In the queue of *instance*, and the earliest operation under way of its DID."""
    earlier = _ops.alias("earlier")
    same = sa.and_(earlier.c.suffix == _ops.c.suffix, earlier.c.open, earlier.c.seq < _ops.c.seq)
    return sa.and_(_in_queue(instance), ~sa.exists(sa.select(sa.literal(1)).select_from(earlier).where(same)))


_NEXT = DriverQuery(
    sa.select(*_QUEUED)
    .where(_may_be_cut(sa.bindparam("instance", type_=sa.Text)))
    .order_by(_ops.c.seq)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


def _queue(connection: sa.Connection, instance: str, chosen: sa.ColumnElement[bool]) -> tuple[int, QueueSummary]:
    """Queue those of the operations *chosen* that no instance has; returns how many, and what they are."""
    free = sa.and_(chosen, _ops.c.state == OperationState.ACCEPTED)
    change = sa.update(_ops).where(free).values(state=OperationState.QUEUED, instance=instance)
    if connection.dialect.name == "postgresql":  # others cannot count the rows of a change in the same statement
        changed = change.returning(*_COUNTED).cte("changed")
        summary = _summary_of(connection, sa.select(*changed.c))
        return summary.count, summary
    summary = _summary(connection, free)
    return connection.execute(change).rowcount, summary


_COUNTED = (_ops.c.type, _ops.c.version, sa.func.length(_ops.c.request).label("size"), _ops.c.accepted_at)


def _summary(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> QueueSummary:
    """What there is of the operations *chosen*; no request is read."""
    return _summary_of(connection, sa.select(*_COUNTED).where(chosen))


def _summary_of(connection: sa.Connection, rows: sa.Select[Any]) -> QueueSummary:
    """The summary of the operations of which *rows* has the columns ``_COUNTED``."""
    row = rows.subquery("counted").c
    key = (row.type, row.version)
    query = sa.select(*key, sa.func.count(), sa.func.sum(row.size), sa.func.min(row.accepted_at)).group_by(*key)
    found = NOTHING_QUEUED
    for kind, version, number, size, oldest in connection.execute(query):
        found += QueueSummary({kind: (int(number), int(size))}, int(oldest), frozenset({version}))
    return found


def _pieces(data: bytes) -> list[bytes]:
    """*data* in parts that a statement may have."""
    return [data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]


def _fields(cut: OpenCut) -> Sequence[Any]:
    return [getattr(cut, name) for name in OpenCut.__struct_fields__]


def _status(row: Any) -> OperationStatus:
    values = list(row)
    values[3] = OperationState(values[3])
    return OperationStatus(*values)


def _statuses(connection: sa.Connection, column: Any, values: Iterable[str]) -> dict[str, OperationStatus]:
    found = connection.execute(sa.select(*_STATUS).where(column.in_(list(values))))
    return {row.id: _status(row) for row in found}
