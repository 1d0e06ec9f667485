"""The operator audit log: who did what through the console or its interface, in order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.column_types import EXACT_LONG_TEXT, WHOLE_NUMBER
from millstream.core.printable import printable
from millstream.core.sql import make_tables_once

if TYPE_CHECKING:
    from millstream.mill.duplication.change_guard import DecisionRecorder, PendingApproval

_log = logging.getLogger(__name__)

metadata = sa.MetaData()

_events = sa.Table(
    "console_trail",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("user", EXACT_LONG_TEXT, nullable=False),
    sa.Column("action", EXACT_LONG_TEXT, nullable=False),
    sa.Column("target", EXACT_LONG_TEXT, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT, nullable=False),
    sa.Column("facts", sa.JSON, nullable=False),
)


class OperatorAuditEvent(msgspec.Struct, frozen=True):
    """An event of the operator audit log: its time ``at`` (microseconds since the epoch), its ``target``, and its
    ``facts``.
    """

    number: int
    at: int
    user: str
    action: str
    target: str
    reason: str
    facts: Mapping[str, Any]


class OperatorAuditLog:
    """The operator audit log in the database of *engine*; its table is created if absent. Events are only added."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        make_tables_once(engine, metadata)

    def add(self, user: str, action: str, target: str, *, reason: str = "", **facts: Any) -> None:
        """Write down that *user* did *action* to *target*; durable when this returns.

        What cannot be written down is logged: the change may have been made before, and be found done if it is
        repeated.
        """
        try:
            with self._engine.begin() as connection:
                self.add_in(connection, user, action, target, reason=reason, **facts)
        except Exception:
            event = printable(f"{action} ({target}) by {user}")
            _log.error("not recorded in the operator audit log, whether it was done or not: %s", event)
            raise

    def add_in(
        self, connection: sa.Connection, user: str, action: str, target: str, *, reason: str = "", **facts: Any
    ) -> None:
        """:meth:`add` in the transaction of *connection*, which makes the change itself in the same database."""
        values = {"at": self._clock.now(), "user": user, "action": action, "target": target, "reason": reason}
        connection.execute(sa.insert(_events), {**values, "facts": facts})

    def decision_recorder(self, user: str, action: str, *, reason: str = "", **facts: Any) -> DecisionRecorder:
        """:meth:`add_in` of what *user* decides about a held plan, in the transaction that makes the decision."""

        def record(connection: sa.Connection, plan: PendingApproval) -> None:
            of_plan = {"plan": plan.number, **plan.counts}
            self.add_in(connection, user, action, f"{plan.space} {plan.pair}", reason=reason, **facts, **of_plan)

        return record

    def check(self) -> None:
        """Before a change that is recorded: raise what the database does where it does not answer. A repeated change
        may find nothing left to do, and would record nothing."""
        with self._engine.connect() as connection:
            connection.execute(sa.select(_events.c.number).limit(1))

    def last(
        self,
        limit: int = 100,
        before: int | None = None,
        *,
        about: str | None = None,
        target: str | None = None,
        user: str | None = None,
    ) -> Sequence[OperatorAuditEvent]:
        """The last *limit* events (of those below number *before*), the latest first; where they are given, only those
        whose target or action contains *about*, in small or capital letters, those of one *target* and its parts
        (``queue audit`` and ``queue audit, task 7``), and those by one *user*."""
        query = sa.select(_events).order_by(_events.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(_events.c.number < before)
        if about is not None:
            columns = (_events.c.target, _events.c.action)
            query = query.where(sa.or_(*(column.icontains(about, autoescape=True) for column in columns)))
        if target is not None:
            named = _events.c.target
            query = query.where((named == target) | named.startswith(f"{target},", autoescape=True))
        if user is not None:
            query = query.where(_events.c.user == user)
        with self._engine.connect() as connection:
            return [OperatorAuditEvent(*row) for row in connection.execute(query)]

    def of(self, action: str, target: str, limit: int = 1000) -> Sequence[OperatorAuditEvent]:
        """The last *limit* times that *action* was done to *target*, the latest first."""
        query = sa.select(_events).where(_events.c.action == action, _events.c.target == target)
        with self._engine.connect() as connection:
            return [
                OperatorAuditEvent(*row)
                for row in connection.execute(query.order_by(_events.c.number.desc()).limit(limit))
            ]
