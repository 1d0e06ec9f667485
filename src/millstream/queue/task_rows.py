"""The tasks of all queues, one row each: what a broker cannot keep, namely leases, attempts and causes of death."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.column_types import LONG_BYTES, LONG_TEXT, WHOLE_NUMBER, exact_text
from millstream.core.sql import SqlDatabase, has_table, reading, server_time
from millstream.core.sql_rows import insert_new, one_of, update_rows
from millstream.queue.protocol import DeadTask, Depth, Lease, redrive_times

Result = TypeVar("Result")

metadata = sa.MetaData()
_name = exact_text(200)

counters = sa.Table(
    "queue_counters",
    metadata,
    sa.Column("queue", _name, primary_key=True),
    sa.Column("last", WHOLE_NUMBER, nullable=False),
)
tasks = sa.Table(
    "queue_tasks",
    metadata,
    sa.Column("queue", _name, primary_key=True),
    sa.Column("task_id", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("position", WHOLE_NUMBER, nullable=False),
    sa.Column("body", LONG_BYTES, nullable=False),
    sa.Column("dead", sa.Boolean, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("token", _name, nullable=False),
    sa.Column("due", WHOLE_NUMBER, nullable=False),
    sa.Column("noticed", sa.Boolean, nullable=False),
    sa.Column("waited", sa.Boolean, nullable=False),
    sa.Column("cause", LONG_TEXT),
    sa.Column("died_at", WHOLE_NUMBER),
    sa.Index("queue_tasks_due", "queue", "dead", "due", "position"),
)
_DEAD_COLUMNS = [tasks.c[name] for name in DeadTask.__struct_fields__]
_CHUNK = 1_000
UNNOTICED_TASKS = 5_000
"""Up to how many tasks are told of together to a broker that is back."""


def queue_names(engine: sa.Engine) -> Sequence[str]:
    """The names of all queues that ever had a task in the database of *engine*, in their order."""
    query = sa.select(counters.c.queue).order_by(counters.c.queue)
    return _unless_absent(engine, lambda connection: list(connection.scalars(query))) or []


def queue_depths(engine: sa.Engine, clock: Clock, names: Sequence[str]) -> Mapping[str, Depth]:
    """The exact number of tasks of the queues *names* in each state; none where the database has no such tables."""
    on_server = engine.dialect.name != "sqlite"
    found = _unless_absent(engine, lambda c: _depths(c, server_time(c) if on_server else clock.now(), names))
    none = Depth(ready=0, leased=0, delayed=0, dead=0, exact=True, as_of=clock.now())
    return dict.fromkeys(names, none) if found is None else found


def _unless_absent(engine: sa.Engine, query: Callable[[sa.Connection], Result]) -> Result | None:
    """What *query* returns; None where the database of *engine* has no tables of queues."""
    with reading(engine) as connection:
        try:
            return query(connection)
        except (sa.exc.ProgrammingError, sa.exc.OperationalError):
            if connection.invalidated or has_table(connection, tasks.name):
                raise
            return None


def _depths(connection: sa.Connection, now: int, names: Sequence[str]) -> Mapping[str, Depth]:
    late, leased = tasks.c.due > now, tasks.c.token != ""
    columns = (tasks.c.queue, tasks.c.dead, sa.and_(late, leased), sa.and_(late, sa.not_(leased)))
    counted = sa.select(*columns, sa.func.count(), sa.func.min(tasks.c.due)).where(tasks.c.queue.in_(names))
    counts = {name: {"ready": 0, "leased": 0, "delayed": 0, "dead": 0} for name in names}
    oldest = dict[str, int]()
    for name, dead, held, waiting, count, due in connection.execute(counted.group_by(*columns)):
        state = "dead" if dead else "leased" if held else "delayed" if waiting else "ready"
        counts[name][state] += count
        if state == "ready":
            oldest[name] = due
    return {name: Depth(**counts[name], exact=True, as_of=now, oldest=oldest.get(name)) for name in names}


class TaskRows:
    """The tasks of the queue *name*. Thread-safe.

    A task is free when its ``token`` is empty, and leased until ``due`` when it is not; a free one may be leased from
    ``due`` on. It was ``noticed`` when the broker has said that it has the notice of it; it has ``waited`` when it was
    put with a delay or given back.
    """

    def __init__(self, engine: sa.Engine, name: str, clock: Clock, *, server_time: bool = True) -> None:
        self._database = SqlDatabase(engine, clock, metadata, server_time=server_time)
        self._name = name
        self._mine = tasks.c.queue == name

    def put(self, bodies: Sequence[bytes], delay: int) -> Sequence[int]:
        """Add tasks that are due *delay* microseconds from now; their ids, which grow."""

        def transaction(connection: sa.Connection, now: int) -> Sequence[int]:
            first = self._next(connection, len(bodies))
            fresh = {"queue": self._name, "dead": False, "attempts": 0, "token": "", "due": now + delay}
            fresh |= {"noticed": False, "waited": delay > 0}
            rows = [{**fresh, "task_id": n, "position": n, "body": body} for n, body in enumerate(bodies, first)]
            for start in range(0, len(rows), _CHUNK):
                connection.execute(sa.insert(tasks), rows[start : start + _CHUNK])
            return range(first, first + len(bodies))

        return self._database.write(transaction)

    def claim(self, ids: Sequence[int], visibility: int) -> Sequence[Lease]:
        """Lease those of the tasks *ids* that may be leased now, for *visibility* microseconds, oldest first."""
        token = secrets.token_hex(8)
        before = tasks.c.token == token  # leased by this call already, where only the reply was lost

        def transaction(connection: sa.Connection, now: int) -> Sequence[Lease]:
            attempts = (tasks.c.attempts + sa.case((before, 0), else_=1)).label("attempts")
            query = sa.select(tasks.c.task_id, tasks.c.body, attempts).order_by(tasks.c.position)
            free = sa.or_(tasks.c.due <= now, before)
            query = query.where(self._mine, one_of(connection, tasks.c.task_id, ids), sa.not_(tasks.c.dead), free)
            # Rows are locked by their key, as all changes do: in the order of another index they would dead-lock.
            query = query.with_hint(tasks, "FORCE INDEX (PRIMARY)", "mysql").with_for_update(skip_locked=True)
            rows = connection.execute(query).all()
            until = now + visibility
            if rows:
                # MariaDB and MySQL set columns from left to right: the token, which the attempts ask for, comes last.
                change = {tasks.c.attempts: attempts.element, tasks.c.due: until, tasks.c.token: token}
                found = [row.task_id for row in rows]
                connection.execute(
                    sa.update(tasks)
                    .where(self._mine, one_of(connection, tasks.c.task_id, found))
                    .ordered_values(*change.items())
                )
            return [
                Lease(task_id=row.task_id, body=row.body, attempts=row.attempts, token=token, until=until)
                for row in rows
            ]

        return self._database.write(transaction) if ids else []

    def overlooked(self, count: int, patience: int) -> tuple[Sequence[int], Mapping[int, int]]:
        """What notices do not tell of. First up to *count* tasks that may be leased and that no notice is going to lead
        to, oldest first; then some tasks whose notices never reached the broker, each with the microseconds until it is
        due.

        The former are tasks whose lease ran out or whose delay is over, those whose notice never reached the broker,
        and those that no process has asked for *patience* microseconds after they were due.
        """

        def query(connection: sa.Connection) -> tuple[Sequence[int], Mapping[int, int]]:
            now = self._database.statement_time(connection)
            due, unheard, forgotten = tasks.c.due <= now, sa.not_(tasks.c.noticed), tasks.c.due <= now - patience
            leads = sa.and_(due, sa.or_(tasks.c.token != "", tasks.c.waited, unheard, forgotten))
            found = sa.select(tasks.c.task_id, (tasks.c.due - now).label("wait"), tasks.c.noticed)
            found = found.where(self._mine, sa.not_(tasks.c.dead), sa.or_(leads, unheard))
            # Those that are due come first: tasks that are not would use up the limit while no broker answers.
            found = found.order_by(sa.case((due, 0), else_=1), tasks.c.position).limit(max(count, UNNOTICED_TASKS))
            rows = connection.execute(found).all()
            unclaimed = [row.task_id for row in rows if row.wait <= 0]
            return unclaimed[:count], {row.task_id: max(0, row.wait) for row in rows if not row.noticed}

        return self._database.query(query)

    def extend(self, leases: Sequence[Lease], visibility: int) -> Sequence[Lease | None]:
        """*leases*, lasting *visibility* microseconds from now; None for each that is lost."""

        def transaction(connection: sa.Connection, now: int) -> Sequence[Lease | None]:
            until, held = now + visibility, set[Lease]()
            for some, found in self._still_held(connection, leases, now):
                connection.execute(sa.update(tasks).where(some).values(due=until))
                held |= found
            return [msgspec.structs.replace(one, until=until) if one in held else None for one in leases]

        return self._database.write(transaction)

    def remove(self, leases: Sequence[Lease]) -> Sequence[int]:
        """The tasks of those *leases* that still hold are done; returns the ids of the other tasks."""
        if not leases:
            return []

        def transaction(connection: sa.Connection, now: int) -> Sequence[int]:
            held = set[Lease]()
            for some, found in self._still_held(connection, leases, now):
                connection.execute(sa.delete(tasks).where(some))
                held |= found
            return [one.task_id for one in leases if one not in held]

        return self._database.write(transaction)

    def give_back(self, lease: Lease, delay: int, *, counted: bool = True) -> bool:
        """The task goes to the end, due *delay* microseconds from now; False where the lease is lost.

        Unless *counted*, this lease is none of its attempts.
        """

        def transaction(connection: sa.Connection, now: int) -> bool:
            change = {"token": "", "due": now + delay, "noticed": False, "waited": True}
            change["position"] = self._next(connection, 1)
            if not counted:
                change["attempts"] = lease.attempts - 1
            return bool(connection.execute(sa.update(tasks).where(self._held(lease, now)).values(change)).rowcount)

        return self._database.write(transaction)

    def bury(self, lease: Lease, cause: str) -> bool:
        """The task is dead; False where the lease is lost."""

        def transaction(connection: sa.Connection, now: int) -> bool:
            change = {"token": "", "dead": True, "cause": cause, "died_at": now}
            return bool(connection.execute(sa.update(tasks).where(self._held(lease, now)).values(change)).rowcount)

        return self._database.write(transaction)

    def revive(self, ids: Sequence[int] | None, per_second: float | None) -> Mapping[int, int]:
        """Dead tasks, those named or all, are free again with no attempts, all at once or at a rate.

        Returns after how many microseconds each of them is.
        """

        def transaction(connection: sa.Connection, now: int) -> Mapping[int, int]:
            query = sa.select(tasks.c.task_id).where(self._mine, tasks.c.dead)
            found = self._still_dead(connection, list(connection.scalars(query)) if ids is None else ids)
            due = dict[int, int]()
            fresh = {"dead": False, "attempts": 0, "cause": None, "died_at": None}
            fresh |= {"noticed": False, "waited": True}
            for at, some in redrive_times(found, per_second, now):
                for start in range(0, len(some), _CHUNK):
                    chosen = tasks.c.task_id.in_(some[start : start + _CHUNK])
                    connection.execute(sa.update(tasks).where(self._mine, chosen).values(**fresh, due=at))
                due |= dict.fromkeys(some, at)
            if found:  # last, as everybody else who puts a task waits until this transaction has ended
                places = list(zip(found, itertools.count(self._next(connection, len(found)))))
                only = {"queue": self._name}
                update_rows(connection, tasks.c.position, tasks.c.task_id, places, change={}, only=only)
            return {task_id: at - now for task_id, at in due.items()}

        return self._database.write(transaction)

    def amend(self, task_id: int, body: bytes, seen: bytes) -> bool:
        """The dead task has another body, where it was *seen*."""
        row = sa.update(tasks).where(self._mine, tasks.c.task_id == task_id, tasks.c.dead, tasks.c.body == seen)
        return self._database.write(lambda c, _now: bool(c.execute(row.values(body=body)).rowcount))

    def discard(self, ids: Sequence[int]) -> int:
        """Those of the tasks *ids* that are dead are gone; how many they were."""

        def transaction(connection: sa.Connection, _now: int) -> int:
            count = 0
            for start in range(0, len(ids), _CHUNK):
                some = tasks.c.task_id.in_(ids[start : start + _CHUNK])
                count += connection.execute(sa.delete(tasks).where(self._mine, tasks.c.dead, some)).rowcount
            return count

        return self._database.write(transaction)

    def noticed(self, ids: Sequence[int]) -> None:
        """The broker has the notices of the tasks *ids*."""
        change = sa.update(tasks).where(self._mine).values(noticed=True)
        self._database.write(lambda c, _now: c.execute(change.where(one_of(c, tasks.c.task_id, ids))))

    def seconds_until_due(self, ids: Sequence[int]) -> Mapping[int, int]:
        """Those of *ids* that are free, with the microseconds until they are due.

        It is at least one: what is due, and could not be claimed, is a row that another transaction has locked.
        """
        query = sa.select(tasks.c.task_id, tasks.c.due).where(
            self._mine, tasks.c.task_id.in_(ids), sa.not_(tasks.c.dead), tasks.c.token == ""
        )
        return self._database.read(lambda c, now: {row.task_id: max(row.due - now, 1) for row in c.execute(query)})

    def depth(self) -> Depth:
        """The exact number of tasks in each state."""
        return self._database.read(lambda connection, now: _depths(connection, now, [self._name])[self._name])

    def unsettled(self, first: int, last: int) -> int:
        """How many tasks with ids from *first* to *last* are neither done nor dead."""
        query = sa.select(sa.func.count()).select_from(tasks)
        query = query.where(self._mine, tasks.c.task_id.between(first, last), sa.not_(tasks.c.dead))
        return self._database.query(lambda c: int(c.scalar(query) or 0))

    def dead(self, limit: int, after: int) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id."""
        query = sa.select(*_DEAD_COLUMNS).where(self._mine, tasks.c.dead, tasks.c.task_id > after)
        query = query.order_by(tasks.c.task_id).limit(limit)
        return self._database.query(lambda c: [DeadTask(**row) for row in c.execute(query).mappings()])

    def find_dead(self, task_id: int) -> DeadTask | None:
        """The dead task of this id, by the primary key; None where it is not dead."""
        query = sa.select(*_DEAD_COLUMNS, tasks.c.dead).where(self._mine, tasks.c.task_id == task_id)
        row = self._database.query(lambda c: c.execute(query).mappings().first())
        return DeadTask(**{name: row[name] for name in DeadTask.__struct_fields__}) if row and row["dead"] else None

    def _still_dead(self, connection: sa.Connection, ids: Sequence[int]) -> list[int]:
        """Those of the tasks *ids* that are dead, in their order; their rows are locked: a redrive at the same time may
        have freed them."""
        found, ordered = list[int](), sorted(ids)
        for start in range(0, len(ordered), _CHUNK):
            some = tasks.c.task_id.in_(ordered[start : start + _CHUNK])
            query = sa.select(tasks.c.task_id).where(self._mine, some, tasks.c.dead).order_by(tasks.c.task_id)
            query = query.with_hint(tasks, "FORCE INDEX (PRIMARY)", "mysql").with_for_update()
            found += connection.scalars(query)
        return found

    def _still_held(
        self, connection: sa.Connection, leases: Sequence[Lease], now: int
    ) -> Iterator[tuple[sa.ColumnElement[bool], set[Lease]]]:
        """Those *leases* that still hold, some at a time, and the condition on their rows, which are locked by key."""
        ordered = sorted(leases, key=lambda lease: lease.task_id)
        for start in range(0, len(ordered), _CHUNK):
            chunk = ordered[start : start + _CHUNK]
            ids = one_of(connection, tasks.c.task_id, [lease.task_id for lease in chunk])
            query = sa.select(tasks.c.task_id, tasks.c.token).where(self._mine, ids, tasks.c.due > now)
            query = query.order_by(tasks.c.task_id).with_hint(tasks, "FORCE INDEX (PRIMARY)", "mysql").with_for_update()
            tokens = {row.task_id: row.token for row in connection.execute(query)}
            held = {lease for lease in chunk if tokens.get(lease.task_id) == lease.token}
            if held:
                mine = one_of(connection, tasks.c.task_id, [lease.task_id for lease in held])
                yield sa.and_(self._mine, mine), held

    def _held(self, lease: Lease, now: int) -> sa.ColumnElement[bool]:
        return sa.and_(self._mine, tasks.c.task_id == lease.task_id, tasks.c.token == lease.token, tasks.c.due > now)

    def _next(self, connection: sa.Connection, count: int) -> int:
        """The first of *count* numbers that were never given before in this queue."""
        if (last := self._add(connection, count)) is None:
            connection.execute(insert_new(connection, counters), {"queue": self._name, "last": 0})
            last = self._add(connection, count)
        assert last is not None
        return last - count + 1

    def _add(self, connection: sa.Connection, count: int) -> int | None:
        """The last of *count* numbers more; None where the queue has no row yet."""
        mine = counters.c.queue == self._name
        change = sa.update(counters).where(mine).values(last=counters.c.last + count)
        last: int | None
        if connection.dialect.update_returning:
            last = connection.scalar(change.returning(counters.c.last))
        else:
            connection.execute(change)
            last = connection.scalar(sa.select(counters.c.last).where(mine))
        return last
