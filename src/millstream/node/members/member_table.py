"""The members of a node in its database: processes that serve it, since when, and which stopped sending heartbeats.

All times are of the database's clock, in microseconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.decoding import prepared
from millstream.core.errors import InputError, NotFoundError
from millstream.core.leases import Leases
from millstream.core.sql import SqlBusyError, SqlDatabase
from millstream.core.sql_failures import SQL_PASSES, describe_sql_failure
from millstream.core.sql_rows import insert_new
from millstream.node.members import tables as t
from millstream.node.members.members_status import (
    DAY,
    WORK,
    Member,
    MemberDetails,
    MembersStatus,
    RoleLease,
    unowned_roles,
)
from millstream.stores.audit.holders import HolderState, process_of

Result = TypeVar("Result")

KEPT = 30 * 24 * 3600 * MICROSECONDS
"""For how long members that have ended are remembered: changes that they began may be found until then."""


class UnknownMemberError(NotFoundError):
    """No member of the node has this id."""


class WorkerDrainError(InputError):
    """A process of `millstream mill work` has no roles to give up."""


class MemberTable:
    """The members in the database of *engine*, whose leases last *seconds*; tables are made where they are absent.

    Thread-safe. Raises :class:`~millstream.core.sql.SqlBusyError` where the database does not answer.
    """

    def __init__(self, engine: sa.Engine, clock: Clock, seconds: float) -> None:
        self.database = SqlDatabase(engine, clock, t.metadata)
        self.clock, self.seconds = clock, seconds
        self._duration = int(seconds * MICROSECONDS)
        self._heartbeats = _KeptConnection(engine)

    def leases(self, member: str) -> Leases:
        """The leases of roles as *member* takes them."""
        return Leases(self.database, t.leases, member, self.seconds)

    def join(self, details: MemberDetails, *, before: str = "") -> str:
        """A new member; its id, which no member ever had. It drains where the same process did as *before*.

        That member ends as a lost one, and its roles are free: a late heartbeat may have prolonged them.
        """
        name = f"{details.host[:40]}-{secrets.token_hex(4)}"

        def transaction(connection: sa.Connection, now: int) -> None:
            connection.execute(sa.delete(t.members).where(t.members.c.ended < now - KEPT))
            draining = connection.scalar(sa.select(t.members.c.draining).where(t.members.c.id == before)) or False
            if before:
                _end_in(connection, now, t.members.c.id == before, lost=True)
            row = {"id": name, "since": now, "seen": now, "until": now + self._duration, "draining": draining}
            insert = insert_new(connection, t.members)  # it is there where the reply to the commit was lost
            connection.execute(insert.values(row | {"details": msgspec.json.encode(details)}))

        self.database.write(transaction)
        return name

    def renew(self, member: str, details: MemberDetails, roles: Sequence[str], *, draining: bool = False) -> bool:
        """*member* is alive and keeps *roles*; False where it was counted as lost.

        With *draining* it takes no roles any more. It does not wait for others that write to the database, or that have
        all connections of the pool.
        """
        alive = sa.and_(t.members.c.id == member, t.members.c.ended.is_(None))

        def heartbeat(connection: sa.Connection) -> bool:
            now = self.database.now(connection)
            change = {"seen": now, "until": now + self._duration, "details": msgspec.json.encode(details)}
            if draining:
                change["draining"] = True
            if not connection.execute(sa.update(t.members).where(alive).values(change)).rowcount:
                return False
            if roles:
                self.leases(member).renew_in(connection, now, roles)
            return True

        return self._heartbeats.begin(heartbeat)

    def close(self) -> None:
        """Give the connection of the heartbeats back, until the next one."""
        self._heartbeats.close()

    def leave(self, member: str, *, lost: bool = False) -> None:
        """*member* ends in order, or is *lost*, because its process was killed: its roles are free."""
        self._end(lambda _: t.members.c.id == member, lost=lost)

    def end_lost(self) -> Sequence[str]:
        """Count members as lost that have sent no heartbeat for longer than their lease; their ids."""
        return self._end(lambda now: t.members.c.until < now, lost=True)

    def _end(self, condition: Callable[[int], sa.ColumnElement[bool]], *, lost: bool) -> Sequence[str]:
        def transaction(connection: sa.Connection, now: int) -> Sequence[str]:
            return _end_in(connection, now, condition(now), lost=lost)

        def one(connection: sa.Connection, now: int) -> str | None:
            return connection.scalar(
                sa.select(t.members.c.id).where(t.members.c.ended.is_(None), condition(now)).limit(1)
            )

        if self.database.read(one) is None:  # nearly always: without a lock
            return []
        return self.database.write(transaction)

    def drain(self, member: str, *, draining: bool) -> None:
        """*member* is to give its roles up and take none, or may take some again.

        Raises :class:`UnknownMemberError`, and :class:`WorkerDrainError` for a process that has only workers.
        """
        alive = sa.and_(t.members.c.id == member, t.members.c.ended.is_(None))
        rows = self.database.rows(sa.select(t.members.c.details).where(alive))
        details = decode_details(rows[0].details) if rows else None
        if draining and details is not None and details.command == WORK:
            raise WorkerDrainError(
                f"the member {member} runs `millstream {WORK}` and has no roles to give up: to stop its workers, send "
                f"SIGTERM to process {details.pid} on {details.host}: the process finishes its running tasks, and ends"
            )
        change = sa.update(t.members).where(alive).values(draining=draining)
        if not self.database.write(lambda connection, _now: connection.execute(change).rowcount):
            raise UnknownMemberError(f"no member {member!r} serves this node: see `millstream node ls`")

    def holder_state(self, holder: str) -> HolderState:
        """Whether the process of *holder*, on another host, is a member; unknown where it never was one."""
        process, now = process_of(holder), self.time()
        members = [one for one in self.all() if process_of(one.details.process) == process]
        if not members:
            return HolderState.UNKNOWN
        alive = any(one.ended is None and one.until >= now for one in members)
        return HolderState.RUNNING if alive else HolderState.ENDED

    def alive(self) -> Sequence[Member]:
        """The members that have not ended, in the order in which they joined."""
        return self._members(t.members.c.ended.is_(None))

    def survivors(self) -> tuple[Sequence[Member], Sequence[str]]:
        """What :meth:`alive` returns after :meth:`end_lost`, and the ids that this returned.

        This takes one look at the tables while no member is lost.
        """

        def query(connection: sa.Connection, now: int) -> tuple[int, Sequence[Member]]:
            return now, _members(connection, t.members.c.ended.is_(None), _leases(connection))

        now, alive = self.database.read(query)
        if all(one.until >= now for one in alive):
            return alive, ()
        ended = self.end_lost()
        return self.alive(), ended

    def owner(self, role: str) -> Member | None:
        """The member that owns *role* now."""
        return next((one for one in self.alive() if role in one.owns), None)

    def find(self, member: str) -> Member:
        """The member of this id, which may have ended. Raises :class:`UnknownMemberError`."""
        for found in self._members(t.members.c.id == member):
            return found
        raise UnknownMemberError(f"unknown member {member!r}: see `millstream node ls`")

    def time(self) -> int:
        """The present time of the database."""
        return self.database.read(lambda _connection, now: now)

    def all(self) -> Sequence[Member]:
        """All members that are remembered, in the order in which they joined."""
        return self._members(sa.true())

    def status(self) -> MembersStatus:
        """The members that serve the node or ended in the last day, and the roles that none of them runs.

        Raises :class:`~millstream.core.sql.SqlBusyError` at once where the database does not answer, or is locked.
        """
        try:
            with self.database.engine.connect() as connection:
                now = self.database.now(connection)
                recent = sa.or_(t.members.c.ended.is_(None), t.members.c.ended > now - DAY)
                leases = _leases(connection)
                members = _members(connection, recent, leases)
        except SQL_PASSES as error:
            raise SqlBusyError(f"the node's database {describe_sql_failure(error)}") from error
        serving = [one for one in members if one.ended is None and one.until >= now]
        return MembersStatus(at=now, lease=self._duration, members=members, unowned=unowned_roles(serving, leases, now))

    def _members(self, condition: sa.ColumnElement[bool]) -> Sequence[Member]:
        return self.database.query(lambda connection: _members(connection, condition, _leases(connection)))


class _KeptConnection:
    """A connection of *engine* that is kept from the first transaction on. For one thread."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._kept: sa.Connection | None = None

    def begin(self, transaction: Callable[[sa.Connection], Result]) -> Result:
        """Run *transaction* and commit it; once again, by another connection, where the kept one is lost."""
        if self._kept is not None:
            try:
                return self._run(self._kept, transaction)
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
        return self._run(self._engine.connect(), transaction)

    def close(self) -> None:
        """Give the connection back."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _run(self, connection: sa.Connection, transaction: Callable[[sa.Connection], Result]) -> Result:
        self._kept = connection
        try:
            with connection.begin():
                return transaction(connection)
        except BaseException:
            self.close()
            raise


def _end_in(connection: sa.Connection, now: int, condition: sa.ColumnElement[bool], *, lost: bool) -> Sequence[str]:
    """End the members that fulfil *condition*, and free their roles; their ids."""
    chosen = sa.and_(t.members.c.ended.is_(None), condition)
    ids = list(connection.scalars(sa.select(t.members.c.id).where(chosen).with_for_update()))
    if ids:
        connection.execute(sa.update(t.members).where(t.members.c.id.in_(ids)).values(ended=now, lost=lost))
        held = sa.and_(t.leases.c.holder.in_(ids), t.leases.c.until > 0)
        ran = sa.case((t.leases.c.unowned_since.is_(None), now), else_=t.leases.c.unowned_since)
        connection.execute(sa.update(t.leases).where(held).values(until=0, unowned_since=ran))
    return ids


_LEASES = sa.select(*(t.leases.c[name] for name in RoleLease.__struct_fields__)).order_by(t.leases.c.role)


def _leases(connection: sa.Connection) -> Sequence[RoleLease]:
    return [RoleLease(**row._mapping) for row in connection.execute(_LEASES)]


def _members(
    connection: sa.Connection, condition: sa.ColumnElement[bool], leases: Sequence[RoleLease]
) -> Sequence[Member]:
    rows = connection.execute(sa.select(t.members).where(condition).order_by(t.members.c.since, t.members.c.id)).all()
    owned: dict[str, dict[str, int]] = {}
    for lease in leases:
        if lease.until:
            owned.setdefault(lease.holder, {})[lease.role] = lease.acquired
    return [_member(row, owned.get(row.id, {})) for row in rows]


def _member(row: sa.Row[tuple[object, ...]], owns: Mapping[str, int]) -> Member:
    fields, details = row._mapping, decode_details(row.details)
    named = {name: fields[name] for name in ("id", "since", "seen", "until", "ended")}
    draining, lost = bool(fields["draining"]), bool(fields["lost"])
    return Member(**named, draining=draining, lost=lost, details=details, owns=owns)


def decode_details(data: bytes) -> MemberDetails:
    """The details of a member, from the column ``details``."""
    return msgspec.json.decode(bytes(data), type=prepared(MemberDetails))
