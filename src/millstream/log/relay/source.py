"""The database of an outbox, opened by URL: SQLite, MariaDB or MySQL, PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millstream.core.clock import Clock
from millstream.log.database.dialect import Dialect
from millstream.log.database.driver import Connection, Driver
from millstream.log.database.place import masked
from millstream.log.database.pool import PATIENCE, Lent, Located, Pool
from millstream.log.errors import LogInputError
from millstream.log.relay.flavour import MYSQL, POSTGRES, SQLITE, Flavour

Result = TypeVar("Result")


class Source:
    """The database at *url*, in the words of its *flavour*. Close it when done."""

    def __init__(self, url: str, flavour: Flavour, pool: Pool[Any]) -> None:
        self.url = url
        self.flavour = flavour
        self._pool = pool

    def call(self, work: Callable[[Connection], Result]) -> Result:
        """What *work* returns. While the server is away, or somebody's transaction in the way, it is tried again, with
        pauses, for two minutes; of a lost reply nobody knows whether the work was done. Raises :class:`StorageError`.
        """
        return self._pool.call(lambda lent: work(lent.connection))

    def transaction(self, work: Callable[[Connection], Result]) -> Result:
        """Like :meth:`call`, all of *work* or nothing; what *work* raises undoes it."""

        def attempt(lent: Lent) -> Result:
            lent.connection.execute(self.flavour.begin)
            result = work(lent.connection)
            lent.connection.execute("COMMIT")
            return result

        return self._pool.call(attempt)

    def close(self) -> None:
        """Let go of the database; closing again does nothing."""
        self._pool.close()


class _Parts(NamedTuple):
    place: Located
    flavour: Flavour
    dialect: Dialect
    driver: Driver[Any]


def open_source(
    url: str,
    clock: Clock,
    *,
    patience: float = PATIENCE,
    around: Callable[[Driver[Any]], Driver[Any]] = lambda driver: driver,
) -> Source:
    """Open the database at *url*: ``sqlite:///path``, ``mysql://…`` or ``postgresql://…``, as for a log store.

    It waits up to *patience* seconds for a server that is away, but not while it is opened. *around* puts something
    around the database's driver, faults for one. Raises :class:`LogInputError`, :class:`LogNotFoundError`,
    :class:`StorageError`.
    """
    scheme, separator, _ = url.partition("://")
    if scheme not in _PARTS or not separator:
        raise LogInputError(
            f"{masked(url)[:200]!r} is no database with an outbox; use sqlite:///path/to/application.db, "
            "mysql:// or postgresql://user:password@host:port/database"
        )
    place, flavour, dialect, driver = _PARTS[scheme](url)
    pool = Pool(place, clock, dialect, around(driver), patience=patience)
    try:
        pool.once(lambda lent: lent.connection.rows("SELECT 1"))
    except BaseException:
        pool.close()
        raise
    return Source(place.url, flavour, pool)


def _sqlite(url: str) -> _Parts:
    from millstream.log.relay.sqlite_connection import SqliteDialect, SqlitePlace, connect_sqlite

    place = SqlitePlace(Path(url.removeprefix("sqlite:///")).absolute())
    return _Parts(place, SQLITE, SqliteDialect(), connect_sqlite)


def _mysql(url: str) -> _Parts:
    from millstream.log.mysql import parse_place
    from millstream.log.mysql.driver import choose_driver
    from millstream.log.relay.mysql_dialect import ReadCommitted

    place = parse_place(url)
    return _Parts(place, MYSQL, ReadCommitted(), choose_driver(place))


def _postgresql(url: str) -> _Parts:
    from millstream.log.postgres import parse_place
    from millstream.log.postgres.backend import PostgresDialect
    from millstream.log.postgres.driver import choose_driver

    place = parse_place(url)
    return _Parts(place, POSTGRES, PostgresDialect(), choose_driver(place))


_PARTS: dict[str, Callable[[str], _Parts]] = {"sqlite": _sqlite, "mysql": _mysql, "postgresql": _postgresql}
