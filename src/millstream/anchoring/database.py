"""Common parts of the tables of the node's database whose names begin with ``anchor_``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from millstream.core import sql_rows

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""


def insert_rows(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert *rows* of *columns*, which stand in the order of *table*, of types that the driver takes.

    A batch is a row or two, and a dictionary for each costs more than inserting it.
    """
    if connection.dialect.name != "sqlite":
        sql_rows.insert_rows(connection, table, columns, rows, conflict=sql_rows.NO_CONFLICT)
    elif rows:
        statement = sa.insert(table).compile(dialect=connection.dialect, column_keys=list(columns))
        connection.exec_driver_sql(str(statement), list(rows))
