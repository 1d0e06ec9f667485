"""Transactions on a database that several parts share: SQLite, or a server (PostgreSQL, MariaDB, MySQL)."""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from millstream.core.clock import Clock
from millstream.core.errors import BusyError, InputError
from millstream.core.retry import RetryPolicy

Result = TypeVar("Result")

ANSWERS = RetryPolicy(attempts=20, first=0.01, longest=2.0)
_SERVER_TIME = {
    "mysql": sa.text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"),
    "postgresql": sa.text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"),
}
_SERVER_TIME["mariadb"] = _SERVER_TIME["mysql"]


class SqlBusyError(BusyError):
    """The database did not answer or was locked; the same call may succeed later."""


class SqlInputError(InputError):
    """The URL of a database cannot be used."""


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the database's write lock from the start, so that it may read first, then write.

    Within one of the same thread it is a part of that one. On SQLite threads of a process wait in line: whoever waits
    for the lock in the database itself looks again only now and then.
    """
    if engine.dialect.name != "sqlite":
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
            # SQLite takes the lock only at the first write otherwise, and what was read before may be stale by then.
            if not getattr(connection.connection, "in_transaction", False):
                _begin_immediate(connection)
            writer.connection = connection
            try:
                yield connection
            finally:
                writer.connection = None


def _begin_immediate(connection: sa.Connection) -> None:
    """Begin by SQLite's driver: SQLAlchemy takes a third of the time of a small transaction for this statement."""
    statement, driver = "BEGIN IMMEDIATE", connection.dialect.loaded_dbapi
    try:
        connection.connection.cursor().execute(statement)
    except driver.Error as error:
        raise sa.exc.DBAPIError.instance(statement, None, error, driver.Error, dialect=connection.dialect) from error


class _EngineWriter:
    """Whose turn it is to write with an engine, and the transaction of that thread."""

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.connection: sa.Connection | None = None


_writers: weakref.WeakKeyDictionary[sa.Engine, _EngineWriter] = weakref.WeakKeyDictionary()
_writers_lock = threading.Lock()


def make_tables(engine: sa.Engine, metadata: sa.MetaData, tables: Sequence[sa.Table] | None = None) -> None:
    """Make the *tables* of *metadata* (all of them by default) that are absent; several processes may do so at once.

    A table that an earlier version made gets the columns that it lacks, which have to be ones that may be NULL.
    """
    wanted = list(metadata.tables.values() if tables is None else tables)
    with engine.connect() as connection:  # what is there already needs no lock, and may be read-only
        if all(_is_whole(connection, table) for table in wanted):
            return
    for left in reversed(range(len(wanted) + 1)):
        try:
            with writing(engine) as connection:
                metadata.create_all(connection, wanted)
                for table in wanted:
                    _add_columns(connection, table)
            return
        except (sa.exc.OperationalError, sa.exc.ProgrammingError, sa.exc.IntegrityError):
            if not left:  # a server makes tables outside transactions: another process may come between any two
                raise


def _is_whole(connection: sa.Connection, table: sa.Table) -> bool:
    return connection.dialect.has_table(connection, table.name) and not _lacking(connection, table)


def _add_columns(connection: sa.Connection, table: sa.Table) -> None:
    for column in _lacking(connection, table):
        definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")


def _lacking(connection: sa.Connection, table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of *table* that the table in the database has not got and may be given."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return [column for column in table.columns if column.nullable and column.name not in there]


class SqlDatabase:
    """The tables of *metadata* in the database of *engine*, made where they are absent. Thread-safe.

    On SQLite, which one host uses, time is that of *clock*; on a server it is the server's, so that the clocks of
    several hosts do not matter, unless *server_time* is False.
    """

    busy_error: ClassVar[type[BusyError]] = SqlBusyError
    """What is raised when the database stays away."""

    def __init__(self, engine: sa.Engine, clock: Clock, metadata: sa.MetaData, *, server_time: bool = True) -> None:
        self.engine = engine
        self.clock = clock
        self._server_time = server_time and engine.dialect.name != "sqlite"
        self._tried(lambda: make_tables(engine, metadata))

    def write(self, transaction: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *transaction* (connection, present time in microseconds) and commit it, durably.

        It is run again after a deadlock or a lost connection, so it must do all its work through the connection.
        Raises :attr:`busy_error` when the database stays away.
        """

        def once() -> Result:
            with writing(self.engine) as connection:
                return transaction(connection, self.now(connection))

        return self._tried(once)

    def read(self, query: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *query* (connection, present time in microseconds) on what is committed now."""

        def once() -> Result:
            with self.engine.connect() as connection:
                return query(connection, self.now(connection))

        return self._tried(once)

    def rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """All rows of *query*, on what is committed now."""
        return self.read(lambda connection, _now: connection.execute(query).all())

    def now(self, connection: sa.Connection) -> int:
        """The present time in microseconds, of the clock by which leases run out."""
        if not self._server_time:
            return self.clock.now()
        return int(connection.scalar(_SERVER_TIME[connection.dialect.name]) or 0)

    def _tried(self, once: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return once()
            except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                raise self.busy_error(f"the database did not answer: {error.orig}; check that it runs") from error

        return ANSWERS.call(translated, self.clock)


def among(column: sa.ColumnElement[Any], values: Iterable[int | str]) -> sa.ColumnElement[bool]:
    """Whether *column*, of a table in SQLite, is one of *values*, of which there may be many thousands.

    They travel as one JSON array; a variable each would cost more than the search.
    """
    listed = sa.func.json_each(json_array(values)).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def json_array(values: Iterable[int | str]) -> str:
    """*values* as :func:`among` has them, for ``IN (SELECT value FROM json_each(?))``."""
    listed = list(values)
    text = msgspec.json.encode(listed).decode()
    if "\\u0000" in text:  # at which SQLite ends a text; no row has such a value
        text = msgspec.json.encode([one for one in listed if "\0" not in str(one)]).decode()
    return text


def put_row(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    """Write the row *values* in place of the one with the same primary key, if there is one, within :func:`writing`."""
    key = [column == values[column.name] for column in table.primary_key]
    if not connection.execute(sa.update(table).where(*key).values(values)).rowcount:
        connection.execute(sa.insert(table).values(values))


def insert_new(connection: sa.Connection, table: sa.Table) -> sa.Insert:
    """An insert that leaves rows alone whose key exists; any other fault of a row is an error."""
    if _is_sqlite(connection):
        return sqlite.insert(table).on_conflict_do_nothing()
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    key = next(iter(table.primary_key))
    return mysql.insert(table).on_duplicate_key_update({key.name: key})  # IGNORE would let other faults pass, too


_ROWS = 400  # SQLite takes 32,766 values a statement
_BYTES = 4 << 20  # MariaDB takes 16 MiB a statement unless it is told otherwise
_CASES = 100  # each row is compared with half of them
_KNOWN_KEY = 1062  # the error of MariaDB and MySQL for a key that is there


def insert_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    conflict: str | None = None,
) -> int:
    """Insert those *rows* (values of *columns*, of types that the driver takes) whose key is new; returns how many.

    What becomes of the others may be said by a clause *conflict* (``ON CONFLICT …``), of which an empty one makes them
    an error; any other fault of a row is one always. Several hundred rows are one statement: a statement a row would
    cost a trip to the server, and with SQLite a fight for the interpreter against every other thread.
    """
    if _is_sqlite(connection):
        columns, rows = _with_values(columns, rows)
    row = f"({', '.join([_mark(connection)] * len(columns))})"
    leave = conflict is None
    has_clause = connection.dialect.name in ("sqlite", "postgresql")
    clause = "ON CONFLICT DO NOTHING" if leave and has_clause else conflict or ""

    def insert(chunk: Sequence[Sequence[Any]]) -> int:
        marks = ", ".join([row] * len(chunk))
        text = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES {marks} {clause}"  # noqa: S608
        try:
            return connection.exec_driver_sql(text, tuple(itertools.chain.from_iterable(chunk))).rowcount
        except sa.exc.IntegrityError as error:
            # MySQL has no clause that leaves known keys alone, counts the others and lets no other fault pass.
            if not leave or has_clause or error.orig is None or error.orig.args[0] != _KNOWN_KEY:
                raise
        middle = len(chunk) // 2
        return insert(chunk[:middle]) + insert(chunk[middle:]) if middle else 0

    chunks = _parts(rows, _ROWS) if _is_sqlite(connection) else _chunks(rows)
    return sum(insert(chunk) for chunk in chunks)


def _with_values(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """*columns* and *rows* without those columns that are NULL in all rows.

    SQLite's driver takes a microsecond for each value that is no text, integer or float, so give it no ``bool`` either.
    """
    kept = [place for place, name in enumerate(columns) if any(row[place] is not None for row in rows)]
    if len(kept) == len(columns) or len(kept) < 2:
        return columns, rows
    return [columns[place] for place in kept], list(map(operator.itemgetter(*kept), rows))


def _parts(rows: Sequence[Sequence[Any]], count: int) -> Iterator[Sequence[Sequence[Any]]]:
    """*rows* in parts of *count*: SQLite takes as many bytes a statement as there are."""
    return (rows[start : start + count] for start in range(0, len(rows), count))


def _chunks(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    """*rows* in parts that fit into a statement, by their number and by their bytes."""
    start = size = 0
    for place, row in enumerate(rows):
        length = sum(len(value) for value in row if isinstance(value, bytes | str))
        if place - start == _ROWS or (place > start and size + length > _BYTES):
            yield rows[start:place]
            start, size = place, 0
        size += length
    if start < len(rows):
        yield rows[start:]


def update_rows(
    connection: sa.Connection,
    column: sa.Column[Any],
    key: sa.Column[Any],
    pairs: Sequence[tuple[Any, Any]],
    *,
    change: Mapping[str, Any],
    only: Mapping[str, Any] = {},
    never: Mapping[str, Any] = {},
) -> int:
    """For each of *pairs* set *column* to the second where *key* is the first, and the same *change* in all those rows.

    Rows are left alone that have not the values *only*, or have the values *never*. Returns how many rows were found.
    Values are of types that the driver takes.
    """
    mark = _mark(connection)
    same = "".join(f", {name} = {mark}" for name in change)
    where = "".join([f" AND {name} = {mark}" for name in only] + [f" AND {name} <> {mark}" for name in never])
    found = 0
    for start in range(0, len(pairs), _CASES):
        chunk = pairs[start : start + _CASES]
        cases = f" WHEN {mark} THEN {mark}" * len(chunk)
        names = ", ".join([mark] * len(chunk))
        assignments = f"{column.name} = CASE {key.name}{cases} END{same}"
        text = f"UPDATE {key.table.name} SET {assignments} WHERE {key.name} IN ({names}){where}"  # noqa: S608
        values = (*itertools.chain.from_iterable(chunk), *change.values(), *(name for name, _ in chunk))
        found += connection.exec_driver_sql(text, (*values, *only.values(), *never.values())).rowcount
    return found


def _is_sqlite(connection: sa.Connection) -> bool:
    return connection.dialect.name == "sqlite"


def _mark(connection: sa.Connection) -> str:
    return "?" if connection.dialect.paramstyle == "qmark" else "%s"
