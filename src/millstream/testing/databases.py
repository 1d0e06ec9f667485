"""Plain connections to databases of servers, to do there what a fault, an administrator or an application would do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millstream.log.backends.database.driver import DatabaseConnection


@contextlib.contextmanager
def connected(url: str, *, database: bool = True) -> Iterator[DatabaseConnection]:
    """A connection to the database at *url*, or to its server alone, that commits by itself. Raises ServerError."""
    connection = connect(url, database=database)
    try:
        yield connection
    finally:
        connection.close()


def connect(url: str, *, database: bool = True) -> DatabaseConnection:
    """An open connection. Raises :class:`~millstream.log.backends.database.driver.ServerError`."""
    if url.startswith("postgresql:"):
        from millstream.log.backends import postgres
        from millstream.log.backends.postgres.driver import connect as connect_postgres

        return connect_postgres(postgres.parse_address(url), database=database)
    from millstream.log.backends import mysql
    from millstream.log.backends.mysql.driver import choose_driver

    place = mysql.parse_address(url)
    connection = choose_driver(place)(place, database=database)
    connection.execute("SET autocommit = 1")
    return connection


def empty_database(url: str) -> None:
    """Take all logs out of the log store at *url*; its tables stay, which is much faster than making them anew."""
    with connected(url) as connection:
        for (table,) in connection.rows("SELECT blocks FROM millstream_logs"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the name is our own
        connection.execute("DELETE FROM millstream_logs")
        connection.execute("DELETE FROM millstream_states")
