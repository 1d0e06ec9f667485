"""Many rows in one statement, on SQLite and on servers (PostgreSQL, MariaDB, MySQL)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.compiler import compiles

from millstream.core.sql_failures import driver_failure


class _Among(sa.sql.expression.ColumnElement[bool]):
    """Whether a column is one of the values of a JSON array."""

    inherit_cache = True
    type = sa.Boolean()
    _traverse_internals = [  # noqa: RUF012
        ("column", sa.sql.visitors.InternalTraversal.dp_clauseelement),
        ("text", sa.sql.visitors.InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, column: sa.ColumnElement[Any], text: sa.BindParameter[str]) -> None:
        self.column, self.text = column, text

    @property
    def _from_objects(self) -> Any:
        return self.column._from_objects

    def self_group(self, against: Any = None) -> Any:  # noqa: ARG002
        """As it is: " = 1" after it, as after a column of truth values, would keep databases from using an index."""
        return self

    @property
    def are_numbers(self) -> bool:
        return isinstance(self.column.type, sa.Integer)


@compiles(_Among)
def _among_on_sqlite(element: _Among, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(one, **options) for one in (element.column, element.text))
    return f"{column} IN (SELECT value FROM json_each({text}))"  # noqa: S608  (parameters)


@compiles(_Among, "postgresql")
def _among_on_postgresql(element: _Among, compiler: Any, **options: Any) -> str:
    """An array, for which an index is used: of rows PostgreSQL expects so many that it would read the whole table."""
    column, text = (compiler.process(one, **options) for one in (element.column, element.text))
    value = "CAST(listed.value AS BIGINT)" if element.are_numbers else "listed.value"
    values = f"SELECT {value} FROM json_array_elements_text(CAST({text} AS json)) AS listed (value)"  # noqa: S608
    return f"{column} = ANY (ARRAY({values}))"


@compiles(_Among, "mysql", "mariadb")
def _among_on_mysql(element: _Among, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(one, **options) for one in (element.column, element.text))
    kind = "BIGINT" if element.are_numbers else "VARCHAR(1024) CHARACTER SET utf8mb4"
    listed = f"JSON_TABLE({text}, '$[*]' COLUMNS (value {kind} PATH '$')) AS listed"
    return f"{column} IN (SELECT value FROM {listed})"  # noqa: S608


def among(column: sa.ColumnElement[Any], values: Iterable[int | str] | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """Whether *column* is one of *values*, of which there may be many thousands.

    They travel as one JSON array; a variable each would cost more than the search. A parameter in their place is to be
    given a :func:`json_array`.
    """
    if isinstance(values, sa.BindParameter):
        return _Among(column, values)
    return _Among(column, sa.literal(json_array(values), sa.Text))


def one_of(
    connection: sa.Connection, column: sa.ColumnElement[Any], values: Sequence[int | str]
) -> sa.ColumnElement[bool]:
    """As :func:`among`, for statements that change rows: MariaDB and MySQL would compare every row of the table."""
    return among(column, values) if connection.dialect.name == "postgresql" else column.in_(values)


def json_array(values: Iterable[int | str]) -> str:
    """*values* as :func:`among` has them."""
    listed = list(values)
    text = msgspec.json.encode(listed).decode()
    if "\\u0000" in text:  # at which SQLite ends a text; no row has such a value
        text = msgspec.json.encode([one for one in listed if "\0" not in str(one)]).decode()
    return text


def total(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The sum of *column*, 0 of no rows, as an integer: servers give a decimal number."""
    return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)


def driver_sql(connection: sa.Connection, text: str, values: Sequence[Any] = ()) -> sa.CursorResult[*tuple[Any, ...]]:
    """Run *text*, whose parameters are question marks, by the driver: SQLAlchemy would take longer than SQLite does."""
    return connection.exec_driver_sql(text if _is_sqlite(connection) else text.replace("?", "%s"), tuple(values))


class DriverQuery:
    """A query whose rows SQLite's driver gives as it has them: at many rows what is wrapped around each is half of the
    time. *statement* has a named parameter for each value; *on_sqlite* may take its place there."""

    def __init__(self, statement: sa.Select[Any], *, on_sqlite: sa.Select[Any] | None = None) -> None:
        self._statement = statement
        compiled = (statement if on_sqlite is None else on_sqlite).compile(dialect=sqlite.dialect(paramstyle="qmark"))
        self._text, self._names = str(compiled), list(compiled.positiontup or ())
        self._fixed = dict(compiled.params)

    def rows(self, connection: sa.Connection, **values: Any) -> Sequence[Sequence[Any]]:
        """The rows for those *values*. Raises :class:`sqlalchemy.exc.DBAPIError`."""
        if not _is_sqlite(connection):
            return connection.execute(self._statement, values).fetchall()
        given = self._fixed | values
        cursor = connection.connection.cursor()
        try:
            cursor.execute(self._text, [given[name] for name in self._names])
            return cursor.fetchall()
        except connection.dialect.loaded_dbapi.Error as error:
            raise driver_failure(connection, self._text, error) from error
        finally:
            cursor.close()


def put_row(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    """Write the row *values* in place of the one with the same primary key, if there is one, within
    :func:`millstream.core.sql.writing`."""
    key = [column == values[column.name] for column in table.primary_key]
    # A row that was the same before counts as well: SQLAlchemy asks MySQL for that (CLIENT.FOUND_ROWS).
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


_POSTGRESQL: sa.Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
_ROWS = 400  # SQLite takes 32,766 values a statement
_BYTES = 4 << 20  # MariaDB takes 16 MiB a statement unless it is told otherwise
_CASES = 100  # each row is compared with half of them
_JSON_ROWS = 2_000  # an answer within a fraction of a second, and a few megabytes
_KNOWN_KEY = 1062  # the error of MariaDB and MySQL for a key that is there


class Conflict(NamedTuple):
    """The conflict clause for a row whose key exists: of SQLite and PostgreSQL, and of MariaDB and MySQL."""

    clause: str
    on_mysql: str


def replacing(table: sa.Table, columns: Iterable[str]) -> Conflict:
    """Those *columns* of the row in *table* get the new values."""
    names, key = list(columns), ", ".join(column.name for column in table.primary_key)
    clause = ", ".join(f"{name} = excluded.{name}" for name in names)
    on_mysql = ", ".join(f"{name} = VALUES({name})" for name in names)
    return Conflict(f"ON CONFLICT ({key}) DO UPDATE SET {clause}", f"ON DUPLICATE KEY UPDATE {on_mysql}")


NO_CONFLICT = Conflict("", "")
"""A row whose key is there is an error."""


def insert_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    conflict: Conflict | None = None,
) -> int:
    """Insert those *rows* (values of *columns*, of types that the driver takes) whose key is new; returns how many.

    *conflict* is the clause for the others; any other fault of a row is an error. Several hundred rows are one
    statement: a statement a row would cost a trip to the server, and with SQLite a fight for the interpreter against
    every other thread.
    """
    if _is_sqlite(connection):
        columns, rows = _with_values(columns, rows)
    names = ", ".join(map(connection.dialect.identifier_preparer.quote, columns))
    into = f"INSERT INTO {table.name} ({names})"
    if connection.dialect.name == "postgresql":
        given = _JsonRows(table, columns)
        text = f"{into} SELECT {', '.join(given.columns)} FROM {given.rows} {_clause(conflict)}"  # noqa: S608
        chunks = _statements(table, columns, rows, conflict, _JSON_ROWS)
        return sum(connection.exec_driver_sql(text, (given.encode(chunk),)).rowcount for chunk in chunks)
    row = f"({', '.join([_mark(connection)] * len(columns))})"
    if _is_sqlite(connection):
        return sum(_insert(connection, into, row, chunk, _clause(conflict)) for chunk in _parts(rows, _ROWS))
    return sum(
        _insert_in_mysql(connection, into, row, chunk, conflict)
        for chunk in _statements(table, columns, rows, conflict, _ROWS)
    )


def _insert(connection: sa.Connection, into: str, row: str, rows: Sequence[Sequence[Any]], clause: str) -> int:
    text = f"{into} VALUES {', '.join([row] * len(rows))} {clause}"
    return connection.exec_driver_sql(text, tuple(itertools.chain.from_iterable(rows))).rowcount


def _insert_in_mysql(
    connection: sa.Connection, into: str, row: str, rows: Sequence[Sequence[Any]], conflict: Conflict | None
) -> int:
    """MySQL has no clause that leaves known keys alone, counts the others and lets no other fault pass."""
    try:
        return _insert(connection, into, row, rows, "" if conflict is None else conflict.on_mysql)
    except sa.exc.IntegrityError as error:
        if conflict is not None or error.orig is None or error.orig.args[0] != _KNOWN_KEY:
            raise
    middle = len(rows) // 2
    halves = (rows[:middle], rows[middle:]) if middle else ()
    return sum(_insert_in_mysql(connection, into, row, half, conflict) for half in halves)


class _JsonRows:
    """Rows of some *columns* of *table* as one parameter, a JSON array, for PostgreSQL.

    A parameter for each value would make a statement of many kilobytes that the driver and the server parse each time.
    """

    def __init__(self, table: sa.Table, columns: Sequence[str]) -> None:
        self._names = [f"c{place}" for place in range(len(columns))]
        kinds = [table.c[name].type.compile(dialect=_POSTGRESQL).partition(" COLLATE ")[0] for name in columns]
        self._changes = [(place, _TO_JSON[kind]) for place, kind in enumerate(kinds) if kind in _TO_JSON]
        typed = ", ".join(
            f"{name} {'TEXT' if kind == 'JSON' else kind}" for name, kind in zip(self._names, kinds, strict=True)
        )
        self.rows = f"json_to_recordset(%s::json) AS given ({typed})"
        """An element of a ``FROM`` clause."""
        self.columns = [
            f"{name}::json" if kind == "JSON" else name for name, kind in zip(self._names, kinds, strict=True)
        ]
        """The columns of ``given``, with the types of those of the table."""

    def encode(self, rows: Sequence[Sequence[Any]]) -> str:
        """The parameter for *rows*, with texts as :func:`without_nul` gives them."""
        if self._changes:
            rows = list(map(list, rows))
            for row in cast(list[list[Any]], rows):
                for place, change in self._changes:
                    if row[place] is not None:
                        row[place] = change(row[place])
        text = self._encoded(rows)
        if b"\\u0000" in text:
            text = self._encoded(
                [[without_nul(value) if isinstance(value, str) else value for value in row] for row in rows]
            )
        return text.decode()

    def _encoded(self, rows: Sequence[Sequence[Any]]) -> bytes:
        return msgspec.json.encode([dict(zip(self._names, row, strict=True)) for row in rows])


def without_nul(text: str) -> str:
    """*text* as PostgreSQL takes it: with U+FFFD for NUL, which no name has, but a description may."""
    return text.replace("\0", "\ufffd")


def _hex(value: bytes) -> str:
    return f"\\x{value.hex()}"


_TO_JSON: Mapping[str, Callable[[Any], Any]] = {"BOOLEAN": bool, "BYTEA": _hex}


def _clause(conflict: Conflict | None) -> str:
    return "ON CONFLICT DO NOTHING" if conflict is None else conflict.clause


def _statements(
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    conflict: Conflict | None,
    count: int,
) -> Iterator[Sequence[Sequence[Any]]]:
    """*rows* in parts of at most *count* for a statement each."""
    groups = [rows] if conflict is None or not conflict.clause else _without_repeats(table, columns, rows)
    return (chunk for group in groups for chunk in _chunks(group, count))


def _without_repeats(
    table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> list[list[Sequence[Any]]]:
    """*rows* in groups, in none of which a key is twice: PostgreSQL changes no row twice in a statement."""
    key = operator.itemgetter(*(columns.index(column.name) for column in table.primary_key))
    groups, seen = [list[Sequence[Any]]()], set[Any]()
    for row in rows:
        if (found := key(row)) in seen:
            groups.append([])
            seen.clear()
        seen.add(found)
        groups[-1].append(row)
    return groups


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


def _chunks(rows: Sequence[Sequence[Any]], count: int = _ROWS) -> Iterator[Sequence[Sequence[Any]]]:
    """*rows* in parts that fit into a statement, by their number and by their bytes."""
    start = size = 0
    for place, row in enumerate(rows):
        length = sum(len(value) for value in row if isinstance(value, bytes | str))
        if place - start == count or (place > start and size + length > _BYTES):
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
    if connection.dialect.name == "postgresql":
        given = _JsonRows(key.table, [key.name, column.name])
        name, value = given.columns
        change_text = f"UPDATE {key.table.name} SET {column.name} = {value}{same}"  # noqa: S608
        text = f"{change_text} FROM {given.rows} WHERE {key.name} = {name}{where}"
        values = (*change.values(), given.encode(list(dict(pairs).items())), *only.values(), *never.values())
        return connection.exec_driver_sql(text, values).rowcount
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
