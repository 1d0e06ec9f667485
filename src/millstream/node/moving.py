"""Moving the tables of a node from one database to another: by ranges of keys, resumable, verified."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.core.column_types import EXACT_LONG_TEXT
from millstream.core.documents import Documents, copy_documents
from millstream.core.errors import BusyError, MillstreamError
from millstream.core.sql import has_table, make_tables, writing
from millstream.core.sql_rows import NO_CONFLICT, insert_rows, put_row, without_nul
from millstream.stores.audit import group_table

_ROWS, _LARGE_ROWS = 2_000, 20
_metadata = sa.MetaData()

_moves = sa.Table(
    "node_move",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("node", EXACT_LONG_TEXT, nullable=False),
    sa.Column("is_finished", sa.Boolean, nullable=False),
)
"""In a database into which a node was moved, the row 1: the folder of the node, and whether the move came to its end.
In one out of which a node was moved, the row 2: the database to which, in ``node``."""

_INTO, _AWAY, _SEEN = 1, 2, 3


class MoveError(MillstreamError):
    """The tables cannot be moved."""


class UnfinishedMoveError(BusyError):
    """The database holds a part of a node."""


class MovedAwayError(MillstreamError):
    """The node uses another database now."""


class MovedTable(msgspec.Struct, frozen=True):
    """A table that was moved: its rows, and a checksum (hex) over them, the same in both databases."""

    name: str
    rows: int
    checksum: str


def require_finished(engine: sa.Engine) -> None:
    """Raise :class:`UnfinishedMoveError` where a move into the database of *engine* has not come to its end, and
    :class:`MovedAwayError` where the tables were moved out of it."""
    with engine.connect() as connection:
        _require_here(connection)
    if (move := _read_move(engine)) is not None and not move.is_finished:
        raise UnfinishedMoveError(
            "the move of the node's tables into the database of node.database has not finished: set node.database to "
            "the database that they are moved from (empty: the file node.db), and repeat the `millstream node move` "
            "command, which resumes the move"
        )


def _require_here(connection: sa.Connection) -> None:
    if (moved := _move_row(connection, _AWAY)) is not None:
        raise MovedAwayError(
            f"the tables of this node were moved to {moved.node}: set node.database to its URL, or remove the setting "
            "if it is the file node.db. To use the tables here again, without what was recorded there since, delete "
            f"the row of the table {_moves.name} whose id is {_AWAY}"
        )


def was_moved(engine: sa.Engine) -> bool:
    """Whether the tables of a node were moved into the database of *engine*."""
    move = _read_move(engine)
    return move is not None and bool(move.is_finished)


def move_tables(
    source: sa.Engine,
    target: sa.Engine,
    tables: Sequence[sa.Table],
    node: str,
    *,
    told: Callable[[str, int], object] = lambda _table, _rows: None,
    compared: Callable[[str, int], object] = lambda _table, _rows: None,
    at_end: Callable[[], object] = lambda: None,
    target_name: str = "another database",
) -> list[MovedTable]:
    """Copy *tables*, those that the database of *source* has, to that of *target*, and compare them.

    No other process writes to *source* meanwhile; it keeps its rows, and processes of the node refuse it from then on
    (:func:`require_finished`), with *target_name*. Rows that an interrupted move of the same *node*
    copied are not copied again. *told* is called with the number of copied rows of a table, *compared* with the number
    of compared ones; *at_end* is called when the copies are equal, before *source* is refused. *target* is accepted
    only after that: a move that is killed in between leaves neither usable, and is completed by the next one. Raises
    :class:`MoveError` if *target* contains other data, or if the copies differ, and :class:`MovedAwayError` if the
    tables were moved out of *source* before.
    """
    make_tables(source, _metadata)
    _refuse_itself(source, target)
    with writing(source) as reading:
        if not _is_nearly_moved(reading, target, node, target_name):
            _require_here(reading)
        _begin(target, node)
        present = [table for table in tables if has_table(reading, table.name)]
        _make(target, present)
        for table in present:
            for count in _copy(reading, target, table):
                told(str(table.name), count)
        for table in present:
            _keep_numbers(reading, target, table)
        with target.connect() as connection:
            moved = [_compare(reading, connection, table, compared) for table in present]
        at_end()
        put_row(reading, _moves, {"id": _AWAY, "node": target_name, "is_finished": True})
    with target.begin() as connection:
        put_row(connection, _moves, {"id": _INTO, "node": node, "is_finished": True})
    return moved


def _is_nearly_moved(reading: sa.Connection, target: sa.Engine, node: str, target_name: str) -> bool:
    """Whether a move of *node* to *target* was killed after the source was refused, before *target* was accepted."""
    away, move = _move_row(reading, _AWAY), _read_move(target)
    if away is None or move is None or move.is_finished:
        return False
    return (away.node, move.node) == (target_name, node)


def _refuse_itself(source: sa.Engine, target: sa.Engine) -> None:
    """Raise :class:`MoveError` where *target* is the database of *source*, reached by another URL."""
    mark = secrets.token_hex(16)
    with writing(source) as connection:
        put_row(connection, _moves, {"id": _SEEN, "node": mark, "is_finished": True})
    try:
        seen = _read_move(target, _SEEN)
    finally:
        with writing(source) as connection:
            connection.execute(sa.delete(_moves).where(_moves.c.id == _SEEN))
    if seen is not None and seen.node == mark:
        raise MoveError(
            "the target is the database that the node is in, under another URL: set node.database to that URL"
        )


def move_documents(source: Documents, target: Documents) -> int:
    """Copy the states of batching, producers and MQTT sessions from *source* to *target*; returns how many they are.

    They are small and replaced as a whole: an interrupted move copies them again. A newer state of a batch service
    stays: a Spark stream whose database did not answer has left it.
    """
    from millstream.batching.local_state import is_newer

    def stays(name: str, there: bytes, copied: bytes) -> bool:
        return name.endswith(".state") and is_newer(there, copied)

    folders = (BATCHING_FOLDER, "producers", "ingest")
    return sum(copy_documents(source, target, folder, stays=stays) for folder in folders)


def copy_tables(source: sa.Engine, target: sa.Engine, tables: Sequence[sa.Table]) -> None:
    """Copy *tables*, those that the database of *source*, on a server, has, as of one moment, to an empty *target*."""
    with source.connect().execution_options(isolation_level="REPEATABLE READ") as reading:
        present = [table for table in tables if has_table(reading, table.name)]
        _make(target, present)
        for table in present:
            for _ in _copy(reading, target, table):
                pass
            _keep_numbers(reading, target, table)


def _make(engine: sa.Engine, tables: Sequence[sa.Table]) -> None:
    for table in tables:
        make_tables(engine, table.metadata, [table])
    if any(table.name == "audit_outbox" for table in tables):
        make_tables(engine, group_table.metadata, [group_table.numbers])


def _read_move(engine: sa.Engine, number: int = _INTO) -> Any:
    with engine.connect() as connection:
        return _move_row(connection, number)


def _move_row(connection: sa.Connection, number: int) -> Any:
    if not has_table(connection, _moves.name):
        return None
    return connection.execute(sa.select(_moves).where(_moves.c.id == number)).first()


def _begin(target: sa.Engine, node: str) -> None:
    """Mark *target* as the one into which *node* is moved. Raises :class:`MoveError` where it has something else, or
    all of the node."""
    move = _read_move(target)
    if move is None:
        with target.connect() as connection:
            found = set(sa.inspect(connection).get_table_names())
        found.discard(_moves.name)  # a move that was killed before it wrote its row may have made the table
        if found:
            raise MoveError(f"the target is not empty (it has the table {min(found)!r}): name an empty database")
        make_tables(target, _metadata)
        with target.begin() as connection:
            put_row(connection, _moves, {"id": _INTO, "node": node, "is_finished": False})
    elif move.node != node:
        raise MoveError(f"the target holds the tables of the node in {move.node}: name an empty database")
    elif move.is_finished:
        raise MoveError("the target holds the tables of this node already: name an empty database")


def _key(table: sa.Table) -> list[sa.Column[Any]]:
    return list(table.primary_key)


def _pages(
    connection: sa.Connection, table: sa.Table, after: Sequence[Any] | None, *, without_nuls: bool = False
) -> Iterator[list[Sequence[Any]]]:
    """The rows of *table* with keys above *after*, in the order of the keys, as values that each driver takes; texts
    as PostgreSQL has them where this is *without_nuls*."""
    large = any(isinstance(column.type, sa.LargeBinary) for column in table.columns)
    size, key = _LARGE_ROWS if large else _ROWS, _key(table)
    places = [list(table.columns).index(column) for column in key]
    kinds = sa.Boolean | sa.JSON | sa.String if without_nuls else sa.Boolean | sa.JSON
    changing = [place for place, column in enumerate(table.columns) if isinstance(column.type, kinds)]
    while True:
        rows = _rows_above(connection, table, after, size)
        if rows:
            yield [_plain_row(row, changing) for row in rows]
            after = [rows[-1][place] for place in places]
        if len(rows) < size:
            return


def _rows_above(
    connection: sa.Connection, table: sa.Table, after: Sequence[Any] | None, size: int
) -> Sequence[sa.Row[Any]]:
    """At most *size* rows of *table* with keys above *after*, in the order of the keys.

    A query for each number of columns in which a key may be the same as *after*: each is one range of the index on
    every server. For one comparison of whole keys some of them would read all that comes before *after*.
    """
    key, query = _key(table), sa.select(table)
    if after is None:
        return connection.execute(query.order_by(*key).limit(size)).all()
    rows = list[sa.Row[Any]]()
    for place in reversed(range(len(key))):
        same = [column == value for column, value in zip(key[:place], after, strict=False)]
        above = query.where(*same, key[place] > after[place]).order_by(*key[place:])
        rows += connection.execute(above.limit(size - len(rows))).all()
        if len(rows) == size:
            break
    return rows


def _plain_row(row: Sequence[Any], changing: Sequence[int]) -> Sequence[Any]:
    """*row* as the driver of any database takes it, and as the same bytes from each: they differ in what they give for
    truth values and JSON, and PostgreSQL takes no NUL in texts: these are at the places *changing*."""
    if not changing:
        return tuple(row)
    values = list(row)
    for place in changing:
        values[place] = _plain(values[place])
    return tuple(values)


def _plain(value: Any) -> Any:
    """*value* as the driver of any database takes it, and as the same bytes from each of them."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return without_nul(value)
    if isinstance(value, dict | list):
        return msgspec.json.encode(value, order="sorted").decode()
    return value


def _copy(reading: sa.Connection, target: sa.Engine, table: sa.Table) -> Iterator[int]:
    key = _key(table)
    with target.connect() as connection:
        last = connection.execute(sa.select(*key).order_by(*(column.desc() for column in key)).limit(1)).first()
    names = [column.name for column in table.columns]
    for rows in _pages(reading, table, last):
        with target.begin() as connection:
            insert_rows(connection, table, names, rows, conflict=NO_CONFLICT)
        yield len(rows)


def _compare(
    reading: sa.Connection, target: sa.Connection, table: sa.Table, compared: Callable[[str, int], object]
) -> MovedTable:
    """The rows of *table* in both databases. Raises :class:`MoveError` where they differ."""
    expected, found = _TableSum(), _TableSum()
    nuls = "postgresql" not in (reading.dialect.name, target.dialect.name)  # else they were copied as other characters
    both = (_pages(connection, table, None, without_nuls=not nuls) for connection in (reading, target))
    pages = itertools.zip_longest(*both, fillvalue=())
    for page, copy in pages:
        expected.add(page)
        found.add(copy)
        compared(str(table.name), len(page))
    if found.checksum != expected.checksum:
        rows = f"{found.rows:,} rows, {expected.rows:,} expected"
        if found.rows == expected.rows:
            rows = f"the same number of rows, {found.rows:,}, but other content"
        raise MoveError(
            f"the copy of the table {table.name} differs ({rows}): the source is unchanged; move again into an empty "
            "database"
        )
    return MovedTable(str(table.name), expected.rows, expected.checksum)


class _TableSum:
    """The number of rows, and a checksum over all of them in the order of their keys."""

    def __init__(self) -> None:
        self.rows = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        self.rows += len(rows)
        for row in rows:
            self._digest.update(msgspec.msgpack.encode(row))

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()


def _keep_numbers(reading: sa.Connection, target: sa.Engine, table: sa.Table) -> None:
    """Let no number that was given in *table* be given again, also where its row is gone."""
    number = table.autoincrement_column
    with target.begin() as connection:
        if table.name == "audit_outbox":
            if last := group_table.last_number(reading):
                group_table.give_numbers(connection, last)
        elif number is not None and number.autoincrement is not False:
            last = max(_given(reading, table, number), connection.scalar(sa.select(sa.func.max(number))) or 0)
            if last:
                _give(connection, table, number, last)


def _given(connection: sa.Connection, table: sa.Table, number: sa.Column[Any]) -> int:
    """The greatest number that the database has assigned in *table*; 0 if it does not record it."""
    kind = connection.dialect.name
    if kind == "sqlite":
        if not table.dialect_options["sqlite"]["autoincrement"]:
            return 0
        text = "SELECT seq FROM sqlite_sequence WHERE name = :table"
    elif kind == "postgresql":
        name = connection.scalar(sa.text(f"SELECT pg_get_serial_sequence('{table.name}', '{number.name}')"))
        text = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {name}"  # noqa: S608
    else:
        if not connection.dialect.is_mariadb:  # type: ignore[attr-defined]
            connection.exec_driver_sql("SET SESSION information_schema_stats_expiry = 0")  # MySQL caches it for a day
        text = (
            "SELECT AUTO_INCREMENT - 1 FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name = :table"
        )
    return int(connection.scalar(sa.text(text), {"table": table.name} if ":table" in text else {}) or 0)


def _give(connection: sa.Connection, table: sa.Table, number: sa.Column[Any], last: int) -> None:
    kind = connection.dialect.name
    if kind == "postgresql":
        sequence = f"pg_get_serial_sequence('{table.name}', '{number.name}')"
        connection.execute(sa.text(f"SELECT setval({sequence}, {last})"))
    elif kind == "mysql":
        connection.exec_driver_sql(f"ALTER TABLE {table.name} AUTO_INCREMENT = {last + 1}")
    elif table.dialect_options["sqlite"]["autoincrement"]:
        change = sa.text("UPDATE sqlite_sequence SET seq = :last WHERE name = :table")
        if not connection.execute(change, {"last": last, "table": table.name}).rowcount:
            insert = sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :last)")
            connection.execute(insert, {"last": last, "table": table.name})
