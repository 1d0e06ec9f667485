"""The change guard: a mass delete or a mass change of copies is held until a person approves it (promise P8).

Each space of a destination has a budget of deletes and of changes for a length of time: a share of its copies, and
never less than a fixed number. A plan that would go beyond it is held as a whole, and so is one whose source lists
nothing, or has lost more than the budget without a record. What an audited change asks for at once is counted against
the same budget, item by item. Since every duplication decides from what it finds, a held task need not be kept: after
an approval the next loop finds the same differences again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.column_types import EXACT_LONG_TEXT, NAME, WHOLE_NUMBER
from millstream.core.sql import SqlDatabase
from millstream.core.sql_rows import total
from millstream.mill.duplication.differences import ComparedItem, DuplicationPlan
from millstream.mill.duplication.held_items import HeldItems
from millstream.mill.errors import UnknownApprovalError
from millstream.mill.policies.policy import Pair

ChangeKind = Literal["deletes", "changes"]

MIN_COPIES = 10
"""A source that lists nothing is no matter for the guard where there are fewer copies."""

SIZE_SECONDS = 60.0
"""How long the number of copies of a space is remembered; it is only a base for shares."""

_HOUR = 3600 * MICROSECONDS
metadata = sa.MetaData()

_spent = sa.Table(
    "mill_brake_spent",
    metadata,
    sa.Column("destination", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("kind", NAME, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
)

_holds = sa.Table(
    "mill_brake_holds",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("source", NAME, nullable=False),
    sa.Column("destination", NAME, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT, nullable=False),
    sa.Column("deletes", sa.BigInteger, nullable=False),
    sa.Column("changes", sa.BigInteger, nullable=False),
    sa.Column("vanished", sa.BigInteger, nullable=False),
    sa.Column("held_at", sa.BigInteger, nullable=False),
    sa.Column("approved_at", sa.BigInteger),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("used_deletes", sa.BigInteger, nullable=False, default=0),
    sa.Column("used_changes", sa.BigInteger, nullable=False, default=0),
    sa.Column("rejected_at", sa.BigInteger),
    sa.Column("rejected_by", EXACT_LONG_TEXT),
    sa.Column("rejection", EXACT_LONG_TEXT),
    sa.Index("mill_brake_holds_place", "destination", "space"),
    sqlite_autoincrement=True,  # a number is never reused: a user may be about to approve it
)


class ChangeBudgets(msgspec.Struct, frozen=True):
    """The changes of the copies of a space that need no approval: in ``window`` (microseconds), a share of them, or
    ``least``.

    An approval is good for the counted items, for ``approval`` (microseconds).
    """

    deletes: float = 0.05
    changes: float = 0.25
    least: int = 100
    window: int = 24 * _HOUR
    approval: int = 7 * 24 * _HOUR

    def of(self, kind: ChangeKind, copied: int) -> int:
        """The items of a space of *copied* copies that may go, or change."""
        return max(self.least, int(copied * (self.deletes if kind == "deletes" else self.changes)))


class PendingApproval(msgspec.Struct, frozen=True):
    """A plan that waits for approval, or is approved, with its numbers of items. ``vanished`` items are only at the
    destination and have no tombstone: an approved plan does not delete them. One that was rejected by ``rejected_by``,
    with the reason ``rejection``, is held until its source is in order again, or until it is approved after all.
    """

    number: int
    source: str
    destination: str
    space: str
    reason: str
    deletes: int
    changes: int
    vanished: int
    held_at: int
    approved_at: int | None = None
    expires_at: int | None = None
    used_deletes: int = 0
    used_changes: int = 0
    rejected_at: int | None = None
    rejected_by: str | None = None
    rejection: str | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Its numbers of items, as the operator audit log has them."""
        return {"deletes": self.deletes, "changes": self.changes, "vanished": self.vanished}

    @property
    def is_done(self) -> bool:
        """Whether all deletes and replacements that were approved have been made."""
        made = self.used_deletes >= self.deletes and self.used_changes >= self.changes
        return self.approved_at is not None and made and bool(self.deletes or self.changes)

    @property
    def pair(self) -> Pair:
        """The stores between which it stands."""
        return Pair(self.source, self.destination)

    @property
    def unused_deletes(self) -> int:
        """How many of the deletes were not made yet."""
        return self.deletes - self.used_deletes


DecisionRecorder = Callable[[sa.Connection, PendingApproval], object]
"""Records a decision about a plan in the transaction that makes it, so that none is made without its record."""


def _no_record(_connection: sa.Connection, _plan: PendingApproval) -> None:
    pass


class _Account(NamedTuple):
    """The key of a budget."""

    destination: str
    space: str
    kind: ChangeKind


class ChangeGuard:
    """The budgets of all spaces, and what is held, in the database of *engine*. Thread-safe, also over processes.

    *count* gives the number of copies of a space in a store. ``items`` are those that plans would delete or replace, or
    that have no original.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Clock,
        count: Callable[[str, str], int],
        budgets: ChangeBudgets = ChangeBudgets(),  # noqa: B008  (frozen)
    ) -> None:
        self._database, self.items = SqlDatabase(engine, clock, metadata), HeldItems(engine, clock)
        self._clock, self._count, self._budgets = clock, count, budgets
        self._sizes: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def check(
        self,
        plan: DuplicationPlan,
        items: Callable[[], Iterable[ComparedItem]] | None = None,
        *,
        keep_vanished: bool = True,
    ) -> int | None:
        """The number under which *plan* is held; None where it may be carried out.

        A plan that has grown gets a new number, so an approval never covers more than was shown. The *items* of a held
        plan are kept to be shown, and with *keep_vanished* those without an original of any plan.
        """
        number = self._check(plan)
        if items is not None and (number is not None or (plan.held and keep_vanished)):
            self.items.record(plan.pair, plan.space, items(), is_held=number is not None)
        elif items is not None:
            self.items.clear(plan.pair, plan.space)
        return number

    def _check(self, plan: DuplicationPlan) -> int | None:

        def transaction(connection: sa.Connection, now: int) -> int | None:
            reason = self._reason(connection, plan, now)
            if reason is None:
                connection.execute(sa.delete(_holds).where(_waiting(plan.pair, plan.space)))
                return None
            counts = {"deletes": plan.deletes, "changes": plan.replaced, "vanished": plan.held}
            grown = sa.or_(*(_holds.c[name] < count for name, count in counts.items()))
            connection.execute(sa.delete(_holds).where(_waiting(plan.pair, plan.space), grown))
            return _hold(connection, plan.pair, plan.space, {"reason": reason, "held_at": now, **counts})

        return self._database.write(transaction)

    def preview(self, plan: DuplicationPlan) -> str | None:
        """The reason why *plan* would be held as a whole if it was executed now; None if it would not be."""
        return self._database.read(lambda connection, now: self._reason(connection, plan, now))

    def spend(self, pair: Pair, space: str, kind: ChangeKind) -> int | None:
        """One copy is about to be deleted or replaced: count it. The number of the hold where that is too much.

        What was approved is used up first, then the budget. A hold that grows gets a new number after each ``least``
        items of the budgets, so that an approval covers few more than were shown.
        """
        account = _Account(pair.destination, space, kind)
        budget = self._budgets.of(kind, self._size(pair.destination, space))
        used = _holds.c[f"used_{kind}"]

        def transaction(connection: sa.Connection, now: int) -> int | None:
            if _use(connection, sa.and_(_active(pair, space, now), used < _holds.c[kind]), kind, 1):
                return None
            if self._spent(connection, account, now) < budget:
                self._add(connection, account, now, 1)
                return None
            reason = f"audited changes use up the budget of {budget:,} {kind} of copies"
            values = {"reason": reason, "held_at": now}
            return _hold(connection, pair, space, values, more=kind, most=max(1, self._budgets.least))

        return self._database.write(transaction)

    def refund(self, pair: Pair, space: str, kind: ChangeKind) -> None:
        """Undo the last count: the change did not happen."""
        used = _holds.c[f"used_{kind}"]

        def transaction(connection: sa.Connection, now: int) -> None:
            if not _use(connection, sa.and_(_active(pair, space, now), used > 0), kind, -1):
                self._add(connection, _Account(pair.destination, space, kind), now, -1)

        self._database.write(transaction)

    def pending(self, *, approved: bool = False) -> Sequence[PendingApproval]:
        """The held plans by number; with *approved* also those with a valid approval."""

        def query(connection: sa.Connection, now: int) -> Sequence[PendingApproval]:
            waits = _holds.c.approved_at.is_(None)
            wanted = sa.or_(waits, _holds.c.expires_at > now) if approved else waits
            rows = connection.execute(sa.select(_holds).where(wanted).order_by(_holds.c.number))
            return [PendingApproval(*row) for row in rows]

        return self._database.read(query)

    def count_undecided(self) -> int:
        """The number of plans that wait for a decision."""
        return sum(hold.rejected_at is None for hold in self.pending())

    def approve(
        self, numbers: Sequence[int] | None = None, record: DecisionRecorder = _no_record
    ) -> Sequence[PendingApproval]:
        """Approve what is held under *numbers*, or everything that was not rejected; what was approved.

        What was approved before of the same space, and not used yet, is a part of what is shown now, and does not come
        on top. *record* gets each plan, in the same transaction. Raises :class:`UnknownApprovalError` for a number that
        nothing waits under, and approves none then.
        """

        def transaction(connection: sa.Connection, now: int) -> Sequence[PendingApproval]:
            rows = connection.execute(sa.select(_holds).where(_holds.c.approved_at.is_(None)).order_by(_holds.c.number))
            waiting = {hold.number: hold for hold in (PendingApproval(*row) for row in rows)}
            for number in numbers or ():
                if number not in waiting:
                    raise _unknown(number)
            undecided = [number for number, hold in waiting.items() if hold.rejected_at is None]
            chosen = undecided if numbers is None else list(dict.fromkeys(numbers))
            for number in chosen:
                _supersede(connection, waiting[number], now)
            given = {"approved_at": now, "expires_at": now + self._budgets.approval}
            connection.execute(sa.update(_holds).where(_holds.c.number.in_(chosen)).values(given))
            approved = [msgspec.structs.replace(waiting[number], **given) for number in chosen]
            for hold in approved:
                record(connection, hold)
            return approved

        return self._database.write(transaction)

    def reject(self, number: int, by: str, reason: str, record: DecisionRecorder = _no_record) -> PendingApproval:
        """Reject what is held under *number*: it stays held, and needs a new decision only if it grows.

        *record* gets the plan, in the same transaction. Raises :class:`UnknownApprovalError` for a number that nothing
        waits under.
        """

        def transaction(connection: sa.Connection, now: int) -> PendingApproval:
            waiting = sa.and_(_holds.c.number == number, _holds.c.approved_at.is_(None))
            values = {"rejected_at": now, "rejected_by": by, "rejection": reason}
            if not connection.execute(sa.update(_holds).where(waiting).values(values)).rowcount:
                raise _unknown(number)
            rejected = PendingApproval(*connection.execute(sa.select(_holds).where(waiting)).one())
            record(connection, rejected)
            return rejected

        return self._database.write(transaction)

    def withdraw(self, store: str) -> None:
        """Withdraw the held plans from or to *store*, which was removed, with their items and those that vanished."""
        waiting = sa.and_(
            sa.or_(_holds.c.source == store, _holds.c.destination == store), _holds.c.approved_at.is_(None)
        )
        self._database.write(lambda connection, _: connection.execute(sa.delete(_holds).where(waiting)))
        self.items.remove_store(store)

    def _reason(self, connection: sa.Connection, plan: DuplicationPlan, now: int) -> str | None:
        """The reason why *plan* exceeds the budget."""
        approved = sa.select(_holds).where(_active(plan.pair, plan.space, now))
        granted = [PendingApproval(*row) for row in connection.execute(approved)]
        where, copied = f"of {plan.copied:,} copies", plan.copied
        gone = plan.deletes + plan.held
        if copied >= MIN_COPIES and gone == copied and not any(h.unused_deletes + h.vanished >= gone for h in granted):
            return f"the source lists nothing, and {copied:,} copies would be without an original"
        for kind, wanted in _wanted(plan):
            budget = self._budgets.of(kind, copied)
            used = self._spent(connection, _Account(plan.pair.destination, plan.space, kind), now)
            grants = sum(getattr(h, kind) - getattr(h, f"used_{kind}") for h in granted)
            if wanted > max(0, budget - used) + grants:
                spent = f", and {used:,} were made lately" if used else ""
                return f"{wanted:,} {kind} {where}; the budget is {budget:,}{spent}"
        budget = self._budgets.of("deletes", copied)
        if plan.held > max([budget, *(h.vanished for h in granted)]):
            return f"{plan.held:,} {where} have lost their original without a record; the budget is {budget:,}"
        return None

    def _spent(self, connection: sa.Connection, account: _Account, now: int) -> int:
        since = (now - self._budgets.window) // _HOUR
        query = sa.select(total(_spent.c.count)).where(_of(account), _spent.c.hour > since)
        return int(connection.scalar(query) or 0)

    def _add(self, connection: sa.Connection, account: _Account, now: int, number: int) -> None:
        hour = now // _HOUR
        change = sa.update(_spent).where(_of(account), _spent.c.hour == hour).values(count=_spent.c.count + number)
        if not connection.execute(change).rowcount:
            row = {**account._asdict(), "hour": hour, "count": max(number, 0)}
            connection.execute(sa.insert(_spent).values(row))
            connection.execute(sa.delete(_spent).where(_spent.c.hour <= (now - self._budgets.window) // _HOUR))

    def _size(self, store: str, space: str) -> int:
        now = self._clock.monotonic()
        with self._lock:
            at, size = self._sizes.get((store, space), (float("-inf"), 0))
            if now - at > SIZE_SECONDS:
                size = self._count(store, space)
                self._sizes[store, space] = now, size
            return size


def _unknown(number: int) -> UnknownApprovalError:
    return UnknownApprovalError(f"no held plan has the number {number}; `millstream mill approve` lists the held plans")


def _wanted(plan: DuplicationPlan) -> tuple[tuple[ChangeKind, int], tuple[ChangeKind, int]]:
    return ("deletes", plan.deletes), ("changes", plan.replaced)


def _of(account: _Account) -> sa.ColumnElement[bool]:
    return sa.and_(*(_spent.c[name] == value for name, value in account._asdict().items()))


def _place(pair: Pair, space: str) -> sa.ColumnElement[bool]:
    stores = sa.and_(_holds.c.source == pair.source, _holds.c.destination == pair.destination)
    return sa.and_(stores, _holds.c.space == space)


def _waiting(pair: Pair, space: str) -> sa.ColumnElement[bool]:
    return sa.and_(_place(pair, space), _holds.c.approved_at.is_(None))


def _active(pair: Pair, space: str, now: int) -> sa.ColumnElement[bool]:
    """Approved, and the approval is still good."""
    return sa.and_(_place(pair, space), _holds.c.expires_at > now)


def _supersede(connection: sa.Connection, hold: PendingApproval, now: int) -> None:
    """Take back what earlier approvals of the place of *hold* have left of the kinds that it counts."""
    for kind in ("deletes", "changes"):
        if getattr(hold, kind):
            used = sa.update(_holds).where(_active(hold.pair, hold.space, now)).values({kind: _holds.c[f"used_{kind}"]})
            connection.execute(used)


def _use(connection: sa.Connection, which: sa.ColumnElement[bool], kind: ChangeKind, number: int) -> bool:
    """Count *number* items as used of one of the approvals *which*; whether there is any."""
    found = connection.scalar(sa.select(_holds.c.number).where(which).order_by(_holds.c.number).limit(1))
    if found is None:
        return False
    used = _holds.c[f"used_{kind}"]
    connection.execute(sa.update(_holds).where(_holds.c.number == found).values({used: used + number}))
    return True


def _hold(
    connection: sa.Connection,
    pair: Pair,
    space: str,
    values: dict[str, Any],
    *,
    more: ChangeKind | None = None,
    most: int = 0,
) -> int:
    """Keep what waits for *pair* and *space* under one number; with *more*, of one item more than before.

    One that has grown by *most* items under its number gets a new one then.
    """
    waiting = connection.execute(sa.select(_holds).where(_waiting(pair, space))).mappings().first()
    counts = {name: waiting[name] if waiting is not None else 0 for name in ("deletes", "changes", "vanished")}
    grown = more is not None and counts[more] > 0 and counts[more] % most == 0
    row = {"source": pair.source, "destination": pair.destination, "space": space, **counts, **values}
    if more is not None:
        row[more] += 1
    if waiting is not None and not grown:
        row["held_at"] = waiting["held_at"]
        connection.execute(sa.update(_holds).where(_holds.c.number == waiting["number"]).values(row))
        return int(waiting["number"])
    connection.execute(sa.delete(_holds).where(_waiting(pair, space)))
    connection.execute(sa.insert(_holds).values(row))
    return int(connection.scalar(sa.select(_holds.c.number).where(_waiting(pair, space))) or 0)
