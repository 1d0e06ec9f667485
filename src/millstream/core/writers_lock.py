"""The lock of those who write to the database of a node on a server.

In a file of SQLite one transaction writes at a time, and what it has read stays so until it is committed: the tables of
a node count on that. On a server each transaction that reads before it writes takes this lock first, over all processes
and hosts; reading takes no lock.
"""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.errors import MillstreamError
from millstream.core.sql import make_tables, take_turns
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
an older version of the program leaves them alone. What it would write or read wrongly needs a new one."""


class NewerSchemaError(MillstreamError):
    """A newer version of the program has changed the tables."""


def is_made(engine: sa.Engine) -> bool:
    """Whether the table of the lock is there."""
    with engine.connect() as connection:
        return connection.dialect.has_table(connection, _locks.name)


def lock_writers(engine: sa.Engine) -> None:
    """From now on each :func:`~millstream.core.sql.writing` with *engine*, on a server, waits for all others.

    The table of the lock is made where it is absent. Raises :class:`NewerSchemaError` where the tables of the node have
    a later version than :data:`SCHEMA_VERSION`.
    """
    make_tables(engine, metadata)
    row = _locks.c.id == 1
    with engine.begin() as connection:
        connection.execute(insert_new(connection, _locks), {"id": 1})
        found = connection.scalar(sa.select(_locks.c.version).where(row).with_for_update()) or 1
        if found > SCHEMA_VERSION:
            raise NewerSchemaError(
                f"the node's tables have version {found}, and this program knows version {SCHEMA_VERSION}: install the "
                "version of millstream that the other processes of the node have"
            )
        if found < SCHEMA_VERSION:
            connection.execute(sa.update(_locks).where(row).values(version=SCHEMA_VERSION))
    take_turns(engine, sa.select(_locks.c.id).where(row).with_for_update())
