"""Transactions on the node's database, for the tables whose names begin with ``anchor_``."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import sqlalchemy as sa

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""

Item = TypeVar("Item")

_VARIABLES = 500


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the database's write lock from the start, so that it may read first, then write."""
    with engine.begin() as connection:
        # SQLite takes the lock only at the first write otherwise, and what was read before may be stale by then.
        if engine.dialect.name == "sqlite" and not getattr(connection.connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def chunks(items: Iterable[Item], size: int = _VARIABLES) -> Iterator[Sequence[Item]]:
    """*items* in lists of at most *size*: as many as one statement takes as variables."""
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, size)):
        yield chunk
