"""Rows of a table with a (store, space, id) key as columns, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from millstream.core.sql_rows import DriverQuery
from millstream.mill.column_join import ItemColumns


def page_of(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """*columns* of a page of a space in *table*: by store, space, the id before it, and the most rows it may have."""
    of_space = (table.c.store == sa.bindparam("in_store"), table.c.space == sa.bindparam("in_space"))
    query = sa.select(*columns).where(*of_space, table.c.content_id > sa.bindparam("above"))
    return query.order_by(table.c.content_id).limit(sa.bindparam("most", type_=sa.Integer))


def scan_pages(
    engine: sa.Engine, query: DriverQuery, space: tuple[str, str], *, after: str, rows_at_once: int
) -> Iterator[ItemColumns]:
    """The items of *space* (store, space) above the id *after*, in order, at most *rows_at_once* at a time.

    *query* is one of :func:`page_of`, whose first column is the id.
    """
    while True:
        with engine.connect() as connection:
            rows = query.rows(connection, in_store=space[0], in_space=space[1], above=after, most=rows_at_once)
        if rows:
            keys, *columns = map(list, zip(*rows, strict=True))
            yield ItemColumns(keys, tuple(columns))
        if len(rows) < rows_at_once:
            return
        after = rows[-1][0]
