"""The lock of those who write to the database of a node on a server.

In a file of SQLite one transaction writes at a time, and what it has read stays so until it is committed: the tables of
a node count on that. On a server each transaction that reads before it writes takes this lock first, over all processes
and hosts; reading takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from millstream.core.errors import MillstreamError
from millstream.core.sql import has_table, make_tables, take_turns
from millstream.core.sql_rows import insert_new

metadata = sa.MetaData()

_locks = sa.Table(
    "node_writers",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer),  # None: 1
)

SCHEMA_VERSION = 1
"""The version of the tables of a node. Columns that may be NULL are added where they are absent, and need no new one:
an older version of the program leaves them alone. What it would write or read wrongly needs a new one, whose changes
:func:`lock_writers` makes, in the transaction that raises the version."""


class NewerSchemaError(MillstreamError):
    """A newer version of the program has changed the tables."""


def is_made(engine: sa.Engine) -> bool:
    """Whether the table of the lock is there."""
    with engine.connect() as connection:
        return has_table(connection, _locks.name)


def require_known_schema(engine: sa.Engine) -> None:
    """Raise :class:`NewerSchemaError` where the tables of the node in the database of *engine* have a later version
    than :data:`SCHEMA_VERSION`."""
    if is_made(engine):
        make_tables(engine, metadata)  # an early release made it without the version
        with engine.connect() as connection:
            _require_known(connection.execute(_ROW).first())


def lock_writers(engine: sa.Engine, may_upgrade: Callable[[sa.Connection], object] = lambda _: None) -> None:
    """From now on each :func:`~millstream.core.sql.writing` with *engine*, on a server, waits for all others.

    The table of the lock is made where it is absent. Tables of an earlier version than :data:`SCHEMA_VERSION` are
    raised to it, once *may_upgrade* was called in the transaction, under the lock; it raises where it may not be.
    Where the tables have a later version, now or when something is written, :class:`NewerSchemaError` is raised.
    """
    make_tables(engine, metadata)
    with engine.begin() as connection:
        connection.execute(insert_new(connection, _locks), {"id": 1, "version": SCHEMA_VERSION})
        found = _require_known(connection.execute(_ROW.with_for_update()).one())
        if found < SCHEMA_VERSION:
            may_upgrade(connection)
            connection.execute(sa.update(_locks).where(_locks.c.id == 1).values(version=SCHEMA_VERSION))
    take_turns(engine, _ROW.with_for_update(), _require_known)


_ROW = sa.select(_locks.c.version).where(_locks.c.id == 1)


def _require_known(row: sa.Row[Any] | None) -> int:
    found = 1 if row is None or row.version is None else int(row.version)
    if found > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"the node's tables have version {found}, and this program knows version {SCHEMA_VERSION}: stop this "
            "process, and install the version of millstream that the other processes of the node have"
        )
    return found
