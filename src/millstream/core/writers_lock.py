"""The lock of those who write to the database of a node on a server.

In a file of SQLite one transaction writes at a time, and what it has read stays so until it is committed: the tables of
a node count on that. On a server each transaction that reads before it writes takes this lock first, over all processes
and hosts; reading takes no lock.
"""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.sql import make_tables, take_turns
from millstream.core.sql_rows import insert_new

metadata = sa.MetaData()

_locks = sa.Table("node_writers", metadata, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False))


def is_made(engine: sa.Engine) -> bool:
    """Whether the table of the lock is there."""
    with engine.connect() as connection:
        return connection.dialect.has_table(connection, _locks.name)


def lock_writers(engine: sa.Engine) -> None:
    """From now on each :func:`~millstream.core.sql.writing` with *engine*, on a server, waits for all others.

    The table of the lock is made where it is absent.
    """
    make_tables(engine, metadata)
    with engine.begin() as connection:
        connection.execute(insert_new(connection, _locks), {"id": 1})
    take_turns(engine, sa.select(_locks.c.id).where(_locks.c.id == 1).with_for_update())
