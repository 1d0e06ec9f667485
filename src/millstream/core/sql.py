"""Transactions on a database that several parts share: SQLite, or a server (PostgreSQL, MariaDB, MySQL)."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import BusyError, InputError
from millstream.core.retry import RetryPolicy
from millstream.core.sql_failures import SqlFailure, describe_sql_failure, driver_failure

Argument = TypeVar("Argument")
Result = TypeVar("Result")

ANSWERS = RetryPolicy(attempts=20, first=0.01, longest=2.0)
"""How long work in the background waits for a database that does not answer: some twenty seconds."""

_patience: ContextVar[RetryPolicy | None] = ContextVar("patience", default=None)
_DDL = RetryPolicy(attempts=16, first=0.01, longest=2.0)
"""For changes of a table by other processes, which take milliseconds."""

_BEING_CHANGED = 1684
"""The error of MariaDB and MySQL for a table that another connection makes or changes at the moment."""

_TIMES = {
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
}
_TIMES["mariadb"] = _TIMES["mysql"]
_STATEMENT_TIMES = {  # the same throughout a statement, so that an index may be used
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)",
}
_STATEMENT_TIMES["mariadb"] = _STATEMENT_TIMES["mysql"]
_SERVER_TIME = {name: sa.text(f"SELECT {time}") for name, time in _TIMES.items()}


def patience_within(seconds: float) -> RetryPolicy:
    """The patience with a database that does not answer of somebody who waits for a result: *seconds* at most, and what
    the call takes that has begun by then."""
    return msgspec.structs.replace(ANSWERS, within=seconds)


def current_patience() -> RetryPolicy:
    """How long the present thread or task waits for a database that does not answer."""
    return _patience.get() or ANSWERS


@contextlib.contextmanager
def waiting_with(patience: RetryPolicy) -> Iterator[None]:
    """In the block, the present thread or task, and the threads to which it hands work, wait with *patience*."""
    token = _patience.set(patience)
    try:
        yield
    finally:
        _patience.reset(token)


class SqlBusyError(BusyError):
    """The database did not answer or was locked; the same call may succeed later."""


class SqlInputError(InputError):
    """The URL of a database cannot be used."""


class NoDatabaseError(SqlInputError):
    """The server has no database of this name, or it is not one of a node."""


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the database's write lock from the start, so that it may read first, then write.

    Within one of the same thread it is a part of that one. On SQLite the threads of a process queue here: a thread that
    waits for the lock in the database itself only polls for it. On a server there is a lock where writers of the
    database :func:`take_turns`; elsewhere it is a transaction of its own.
    """
    is_sqlite, turns = engine.dialect.name == "sqlite", _turns.get(engine)
    if not is_sqlite and turns is None:
        with engine.begin() as connection:
            yield connection
        return
    with _writers_lock:
        writer = _writers.setdefault(engine, _EngineWriter())
    with writer.turn:
        if writer.connection is not None:
            yield writer.connection
            return
        with engine.begin() as connection:
            if turns is not None:
                lock, check = turns
                row = connection.execute(lock).one()
                check(row)
                writer.began_at = int(row.now)
            # SQLite takes the lock only at the first write otherwise, and what was read before may be stale by then.
            elif not getattr(connection.connection, "in_transaction", False):
                _begin_immediate(connection)
            writer.connection = connection
            try:
                if (fence := getattr(_fences, "current", None)) is not None and fence[0] is engine:
                    fence[1](connection)
                yield connection
            finally:
                writer.connection = writer.began_at = None


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection to read with, each of whose statements sees what is committed when it begins.

    On PostgreSQL the server is not told of a transaction: its begin and its end would take as long as a small query.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


def take_turns(engine: sa.Engine, lock: sa.Select[Any], check: Callable[[sa.Row[Any]], object]) -> None:
    """Let writers of the database of *engine*, on a server, follow one another: each :func:`writing` first executes
    *lock*, which locks a row until the transaction ends, and lets *check* see it, which raises where it must not
    write."""
    now = sa.literal_column(_TIMES[engine.dialect.name], sa.BigInteger).label("now")
    if engine.dialect.name == "postgresql":  # would tell the time before it waits for the lock
        locked = lock.subquery("locked")
        _turns[engine] = sa.select(locked, now), check
    else:
        _turns[engine] = lock.add_columns(now), check


@contextlib.contextmanager
def fenced(engine: sa.Engine, check: Callable[[sa.Connection], object]) -> Iterator[None]:
    """In the block, each :func:`writing` of this thread with *engine*, where its writers follow one another,
    first calls *check* in its transaction, which raises where the thread has lost the right to write."""
    before = getattr(_fences, "current", None)
    _fences.current = engine, check
    try:
        yield
    finally:
        _fences.current = before


def in_same_fence(function: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """*function* for other threads, in which it is in the :func:`fenced` block of this one."""
    current = getattr(_fences, "current", None)

    def call(argument: Argument) -> Result:
        with contextlib.nullcontext() if current is None else fenced(*current):
            return function(argument)

    return call


_fences = threading.local()


def _begin_immediate(connection: sa.Connection) -> None:
    """Begin by SQLite's driver: SQLAlchemy takes a third of the time of a small transaction for this statement."""
    statement = "BEGIN IMMEDIATE"
    try:
        connection.connection.cursor().execute(statement)
    except connection.dialect.loaded_dbapi.Error as error:
        raise driver_failure(connection, statement, error) from error


class _EngineWriter:
    """Whose turn it is to write with an engine, and the transaction of that thread.

    ``began_at`` is the server's time when that began, until it is used: a later part has the time asked anew.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.connection: sa.Connection | None = None
        self.began_at: int | None = None


_writers: weakref.WeakKeyDictionary[sa.Engine, _EngineWriter] = weakref.WeakKeyDictionary()
_writers_lock = threading.Lock()
_turns: weakref.WeakKeyDictionary[sa.Engine, tuple[sa.Select[Any], Callable[[sa.Row[Any]], object]]] = (
    weakref.WeakKeyDictionary()
)


def _began_at(engine: sa.Engine) -> int | None:
    """The server's time when the transaction of this thread with *engine* began, for the first part of it only."""
    if (writer := _writers.get(engine)) is None:
        return None
    began_at, writer.began_at = writer.began_at, None
    return began_at


def server_time(connection: sa.Connection) -> int:
    """The present time of the server of *connection*, in microseconds."""
    return int(connection.scalar(_SERVER_TIME[connection.dialect.name]) or 0)


def make_tables(engine: sa.Engine, metadata: sa.MetaData, tables: Sequence[sa.Table] | None = None) -> None:
    """Make the *tables* of *metadata* (all of them by default) that are absent; several processes may do so at once.

    A table that an earlier version made gets the columns that it lacks, which have to be ones that may be NULL.
    """
    wanted = list(metadata.tables.values() if tables is None else tables)
    if _call_beside_ddl(lambda: _are_whole(engine, wanted)):
        return
    for left in reversed(range(len(wanted) + 1)):
        try:
            _call_beside_ddl(lambda: _make_absent(engine, metadata, wanted))
            return
        except (sa.exc.OperationalError, sa.exc.ProgrammingError, sa.exc.IntegrityError):
            if not left:  # a server makes tables outside transactions: another process may come between any two
                raise


def make_tables_once(engine: sa.Engine, metadata: sa.MetaData) -> None:
    """:func:`make_tables`, unless that was done with *engine* before: the database is not asked again."""
    if metadata not in _made.setdefault(engine, weakref.WeakSet()):
        make_tables(engine, metadata)
        _made[engine].add(metadata)


_made: weakref.WeakKeyDictionary[sa.Engine, weakref.WeakSet[sa.MetaData]] = weakref.WeakKeyDictionary()


def has_table(connection: sa.Connection, name: str) -> bool:
    """Whether the database of *connection* has the table *name*; also while another process makes or changes it."""
    return _call_beside_ddl(lambda: connection.dialect.has_table(connection, name))


def _call_beside_ddl(function: Callable[[], Result]) -> Result:
    """Call *function* again while MariaDB or MySQL refuses it because another process changes the same table."""
    for pause in _DDL.pauses():
        try:
            return function()
        except sa.exc.OperationalError as error:
            if error.orig is None or error.orig.args[:1] != (_BEING_CHANGED,):
                raise
        SystemClock().sleep(pause)
    return function()


def _are_whole(engine: sa.Engine, tables: Sequence[sa.Table]) -> bool:
    with engine.connect() as connection:  # what is there already needs no lock, and may be read-only
        has = connection.dialect.has_table
        return all(has(connection, table.name) and not _lacking(connection, table) for table in tables)


def _make_absent(engine: sa.Engine, metadata: sa.MetaData, tables: Sequence[sa.Table]) -> None:
    with writing(engine) as connection:
        metadata.create_all(connection, tables)
        for table in tables:
            _add_columns(connection, table)


def _add_columns(connection: sa.Connection, table: sa.Table) -> None:
    for column in _lacking(connection, table):
        definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")


def _lacking(connection: sa.Connection, table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of *table* that are missing in the database and can be added."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return [column for column in table.columns if column.nullable and column.name not in there]


class SqlDatabase:
    """The tables of *metadata* in the database of *engine*, made where they are absent. Thread-safe.

    On SQLite, which one host uses, time is that of *clock*; on a server it is the server's, so that the clocks of
    several hosts do not matter, unless *server_time* is False.
    """

    busy_error: ClassVar[type[BusyError]] = SqlBusyError
    """The error that is raised if the database stays unavailable."""

    def __init__(self, engine: sa.Engine, clock: Clock, metadata: sa.MetaData, *, server_time: bool = True) -> None:
        self.engine = engine
        self.clock = clock
        self._server_time = server_time and engine.dialect.name != "sqlite"
        self._tried(lambda: make_tables(engine, metadata))

    def write(self, transaction: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *transaction* (connection, present time in microseconds) and commit it, durably.

        It is run again after a deadlock or a lost connection, so it must do all its work through the connection. It may
        then have been committed before, if only the reply to the commit was lost.
        Raises :attr:`busy_error` when the database stays away.
        """

        def once() -> Result:
            with writing(self.engine) as connection:
                began_at = _began_at(self.engine) if self._server_time else None
                return transaction(connection, self.now(connection) if began_at is None else began_at)

        return self._tried(once)

    def read(self, query: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *query* (connection, present time in microseconds) on what is committed now."""
        return self.query(lambda connection: query(connection, self.now(connection)))

    def query(self, query: Callable[[sa.Connection], Result]) -> Result:
        """As :meth:`read`, without the time, for which a server would have to be asked."""

        def once() -> Result:
            with reading(self.engine) as connection:
                return query(connection)

        return self._tried(once)

    def rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """All rows of *query*, on what is committed now."""
        return self.query(lambda connection: connection.execute(query).all())

    def now(self, connection: sa.Connection) -> int:
        """The present time in microseconds, of the clock by which leases run out."""
        return server_time(connection) if self._server_time else self.clock.now()

    def statement_time(self, connection: sa.Connection) -> sa.ColumnElement[int]:
        """The present time, like :meth:`now`, as a part of a statement: a server need not be asked before."""
        if not self._server_time:
            return sa.literal(self.clock.now(), sa.BigInteger)
        return sa.literal_column(_STATEMENT_TIMES[connection.dialect.name], sa.BigInteger)

    def _tried(self, once: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return once()
            except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                raise self._busy(error) from error

        try:
            return current_patience().call(translated, self.clock)
        except sa.exc.TimeoutError as error:  # it has waited for long
            raise self._busy(error) from error

    def _busy(self, error: SqlFailure) -> BusyError:
        return self.busy_error(f"the database {_named(self.engine.url)} {describe_sql_failure(error)}")


def _named(url: sa.URL) -> str:
    """The name of the database at *url*, and its host if it is on a server."""
    return f"{url.database} on {url.host}" if url.host else str(url.database or "in memory")
