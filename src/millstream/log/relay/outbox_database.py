"""The database of an outbox, opened by URL: SQLite, MariaDB or MySQL, PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millstream.core.clock import Clock
from millstream.core.secrets import safe_url
from millstream.log.backends.database.dialect import Dialect
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver
from millstream.log.backends.database.pool import RETRY_SECONDS, ConnectionPool, DatabaseLocation, PooledConnection
from millstream.log.errors import LogInputError
from millstream.log.relay.outbox_dialect import MYSQL, POSTGRES, SQLITE, OutboxDialect

Result = TypeVar("Result")


class OutboxDatabase:
    """The database at *url*, in the words of its *outbox_dialect*. Close it when done."""

    def __init__(self, url: str, outbox_dialect: OutboxDialect, pool: ConnectionPool[Any]) -> None:
        self.url = url
        self.outbox_dialect = outbox_dialect
        self._pool = pool

    def call(self, work: Callable[[DatabaseConnection], Result]) -> Result:
        """The result of *work*. While the server is unreachable, or another transaction blocks it, it is retried, with
        pauses, for two minutes; after a lost reply it is unknown whether the work was done. Raises
        :class:`StorageError`.
        """
        return self._pool.call(lambda pooled: work(pooled.connection))

    def transaction(self, work: Callable[[DatabaseConnection], Result]) -> Result:
        """Like :meth:`call`, all of *work* or nothing; what *work* raises undoes it."""

        def attempt(pooled: PooledConnection) -> Result:
            pooled.connection.execute(self.outbox_dialect.begin)
            result = work(pooled.connection)
            pooled.connection.execute("COMMIT")
            return result

        return self._pool.call(attempt)

    def close(self) -> None:
        """Close the connections; closing again does nothing."""
        self._pool.close()


class _Parts(NamedTuple):
    address: DatabaseLocation
    outbox_dialect: OutboxDialect
    dialect: Dialect
    driver: DatabaseDriver[Any]


def open_outbox_database(
    url: str,
    clock: Clock,
    *,
    patience: float = RETRY_SECONDS,
    wrap_driver: Callable[[DatabaseDriver[Any]], DatabaseDriver[Any]] = lambda driver: driver,
) -> OutboxDatabase:
    """Open the database at *url*: ``sqlite:///path``, ``mysql://…`` or ``postgresql://…``, as for a log store.

    It waits up to *patience* seconds for an unreachable server, but not while it is opened. *wrap_driver* puts a layer
    around the database's driver, faults for one. Raises :class:`LogInputError`, :class:`LogNotFoundError`,
    :class:`StorageError`.
    """
    scheme, separator, _ = url.partition("://")
    if scheme not in _PARTS or not separator:
        raise LogInputError(
            f"invalid URL of an outbox database {safe_url(url)[:200]!r}: use "
            "sqlite:///path/to/application.db, mysql:// or "
            "postgresql://user:password@host:port/database"
        )
    address, outbox_dialect, dialect, driver = _PARTS[scheme](url)
    pool = ConnectionPool(address, clock, dialect, wrap_driver(driver), patience=patience)
    try:
        pool.once(lambda pooled: pooled.connection.rows("SELECT 1"))
    except BaseException:
        pool.close()
        raise
    return OutboxDatabase(address.url, outbox_dialect, pool)


def _sqlite(url: str) -> _Parts:
    from millstream.log.relay.sqlite_connection import SqliteAddress, SqliteDialect, connect_sqlite

    address = SqliteAddress(Path(url.removeprefix("sqlite:///")).absolute())
    return _Parts(address, SQLITE, SqliteDialect(), connect_sqlite)


def _mysql(url: str) -> _Parts:
    from millstream.log.backends.mysql import parse_address
    from millstream.log.backends.mysql.driver import choose_driver
    from millstream.log.relay.mysql_dialect import ReadCommitted

    address = parse_address(url)
    return _Parts(address, MYSQL, ReadCommitted(), choose_driver(address))


def _postgresql(url: str) -> _Parts:
    from millstream.log.backends.postgres import parse_address
    from millstream.log.backends.postgres.backend import PostgresDialect
    from millstream.log.backends.postgres.driver import choose_driver

    address = parse_address(url)
    return _Parts(address, POSTGRES, PostgresDialect(), choose_driver(address))


_PARTS: dict[str, Callable[[str], _Parts]] = {"sqlite": _sqlite, "mysql": _mysql, "postgresql": _postgresql}
