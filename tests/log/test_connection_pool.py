"""Connections to a database that are lent and given back."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from millstream.core.clock import VirtualClock
from millstream.log.backends.database.pool import IDLE_SECONDS, ConnectionPool, PooledConnection
from millstream.log.relay.sqlite_connection import SqliteAddress, SqliteDialect, connect_sqlite
from support.faulty_connection import FaultyDriver


def test_a_connection_that_was_idle_for_long_is_not_trusted(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "application.db").close()
    driver, clock = FaultyDriver(connect_sqlite), VirtualClock()
    pool = ConnectionPool(SqliteAddress(tmp_path / "application.db"), clock, SqliteDialect(), driver)

    def look(pooled: PooledConnection) -> int:
        return len(pooled.connection.rows("SELECT 1"))

    def two_at_once(pooled: PooledConnection) -> int:
        return look(pooled) + pool.call(look)

    with contextlib.closing(pool):
        assert pool.call(two_at_once) == 2
        assert driver.connections == 2
        clock.advance(IDLE_SECONDS)
        assert pool.call(look) == 1
        assert driver.connections == 2, "not idle for too long"
        clock.advance(IDLE_SECONDS + 1)
        assert pool.call(two_at_once) == 2
        assert driver.connections == 4, "both are new"
