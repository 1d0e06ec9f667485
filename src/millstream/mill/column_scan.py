"""Rows of a table with a (store, space, id) key as columns, page by page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from millstream.mill.column_join import ItemColumns


def scan_pages(
    engine: sa.Engine, query: str, space: tuple[str, str], *, after: str, rows_at_once: int
) -> Iterator[ItemColumns]:
    """The items of *space* (store, space) above the id *after*, in order, at most *rows_at_once* at a time.

    *query* selects the id and the other columns by (store, space, id, limit), in the parameters of SQLite's driver.
    """
    while True:
        with engine.connect() as connection, contextlib.closing(connection.connection.cursor()) as cursor:
            # the driver's own rows: at a million of them what is wrapped around each is half of the time
            cursor.execute(query, (*space, after, rows_at_once))
            rows = cursor.fetchall()
        if rows:
            keys, *columns = map(list, zip(*rows, strict=True))
            yield ItemColumns(keys, tuple(columns))
        if len(rows) < rows_at_once:
            return
        after = rows[-1][0]
