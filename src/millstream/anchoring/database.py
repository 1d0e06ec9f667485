"""What the tables of the node's database share whose names begin with ``anchor_``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""


def among(column: sa.ColumnElement[Any], values: Iterable[int | str]) -> sa.ColumnElement[bool]:
    """Whether *column* is one of *values*, of which there may be many thousands.

    They travel as one JSON array; a variable each would cost more than the search.
    """
    listed = sa.func.json_each(msgspec.json.encode(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def insert_rows(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert *rows* of *columns*, which stand in the order of *table*, as SQLite's driver takes them.

    A batch is a row or two, and a dictionary for each costs more than inserting it.
    """
    if rows:
        statement = sa.insert(table).compile(dialect=connection.dialect, column_keys=list(columns))
        connection.exec_driver_sql(str(statement), list(rows))
