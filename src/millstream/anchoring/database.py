"""Transactions on the node's database, for the tables whose names begin with ``anchor_``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the database's write lock from the start, so that it may read first, then write."""
    with engine.begin() as connection:
        # SQLite takes the lock only at the first write otherwise, and what was read before may be stale by then.
        if engine.dialect.name == "sqlite" and not getattr(connection.connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def among(column: sa.ColumnElement[Any], values: Iterable[int | str]) -> sa.ColumnElement[bool]:
    """Whether *column* is one of *values*, of which there may be many thousands.

    They travel as one JSON array; a variable each would cost more than the search.
    """
    listed = sa.func.json_each(msgspec.json.encode(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))
