"""What the tables of the node's database share whose names begin with ``anchor_``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""


def insert_rows(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert *rows* of *columns*, which stand in the order of *table*, as SQLite's driver takes them.

    A batch is a row or two, and a dictionary for each costs more than inserting it.
    """
    if rows:
        statement = sa.insert(table).compile(dialect=connection.dialect, column_keys=list(columns))
        connection.exec_driver_sql(str(statement), list(rows))
