"""Connections to a database that are lent and given back."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.clock import VirtualClock
from millstream.log.backends.database.pool import AGE_SECONDS, IDLE_SECONDS, ConnectionPool, PooledConnection
from millstream.log.errors import StorageReadOnlyError
from millstream.log.relay.sqlite_connection import SqliteAddress, SqliteDialect, connect_sqlite
from support.faulty_connection import ConnectionFault, FaultyDriver


def look(pooled: PooledConnection) -> int:
    """A statement."""
    return len(pooled.connection.rows("SELECT 1"))


@pytest.fixture
def driver() -> FaultyDriver[SqliteAddress]:
    """Counts connections."""
    return FaultyDriver(connect_sqlite)


@pytest.fixture
def pool(
    tmp_path: Path, clock: VirtualClock, driver: FaultyDriver[SqliteAddress]
) -> Iterator[ConnectionPool[SqliteAddress]]:
    """Connections to a database that is there."""
    sqlite3.connect(tmp_path / "application.db").close()
    address = SqliteAddress(tmp_path / "application.db")
    with contextlib.closing(ConnectionPool(address, clock, SqliteDialect(), driver)) as pool:
        yield pool


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the pool."""
    return VirtualClock()


def test_a_connection_that_was_idle_for_long_is_not_trusted(
    pool: ConnectionPool[SqliteAddress], driver: FaultyDriver[SqliteAddress], clock: VirtualClock
) -> None:
    def two_at_once(pooled: PooledConnection) -> int:
        return look(pooled) + pool.call(look)

    assert pool.call(two_at_once) == 2
    assert driver.connections == 2
    clock.advance(IDLE_SECONDS)
    assert pool.call(look) == 1
    assert driver.connections == 2, "not idle for too long"
    clock.advance(IDLE_SECONDS + 1)
    assert pool.call(two_at_once) == 2
    assert driver.connections == 4, "both are new"


def test_a_connection_in_steady_use_is_replaced_after_some_minutes(
    pool: ConnectionPool[SqliteAddress], driver: FaultyDriver[SqliteAddress], clock: VirtualClock
) -> None:
    for _ in range(int(AGE_SECONDS // IDLE_SECONDS) + 2):
        pool.call(look)
        clock.advance(IDLE_SECONDS)
    assert driver.connections == 2


def test_a_server_that_turned_read_only_is_not_asked_by_other_connections_again(
    pool: ConnectionPool[SqliteAddress], driver: FaultyDriver[SqliteAddress]
) -> None:
    def refused(pooled: PooledConnection) -> int:
        pool.call(look)
        driver.faults.append(ConnectionFault("SELECT", code=sqlite3.SQLITE_READONLY))
        return look(pooled)

    with pytest.raises(StorageReadOnlyError):
        pool.call(refused)
    assert driver.connections == 2
    assert pool.call(look) == 1
    assert driver.connections == 3
