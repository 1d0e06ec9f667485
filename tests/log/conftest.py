"""The databases that tests of the log run against."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.log import open_store
from millstream.log.mysql import parse_place


@pytest.fixture(scope="session")
def used_databases(mariadb: str) -> Iterator[list[str]]:
    """Databases that tests are done with; making tables takes much longer than emptying them."""
    names: list[str] = []
    yield names
    for url in names:
        with connected(url, database=False) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {parse_place(url).database}")


@pytest.fixture
def database(mariadb: str, used_databases: list[str]) -> Iterator[str]:
    """The URL of a database without a log."""
    url = used_databases.pop() if used_databases else new_database(mariadb)
    yield url
    empty(url)
    used_databases.append(url)


@pytest.fixture(scope="session")
def used_queues(mariadb: str) -> Iterator[list[str]]:
    """Databases of queues that tests are done with; they are dropped at the end, which takes its time."""
    urls: list[str] = []
    yield urls
    with connected(f"{mariadb}mysql", database=False) as connection:
        for url in urls:
            connection.execute(f"DROP DATABASE {parse_place(url).database}")


@pytest.fixture
def queues(mariadb: str, used_queues: list[str]) -> str:
    """The URL of an empty database, for queues in the document's layout."""
    return _empty_database(mariadb, used_queues)


@pytest.fixture
def other_queues(mariadb: str, used_queues: list[str]) -> str:
    """Another one."""
    return _empty_database(mariadb, used_queues)


def _empty_database(server: str, used: list[str]) -> str:
    used.append(f"{server}test_{secrets.token_hex(6)}")
    with connected(used[-1], database=False) as connection:
        connection.execute(f"CREATE DATABASE {parse_place(used[-1]).database}")
    return used[-1]


@pytest.fixture
def empty_database() -> Callable[[str], None]:
    """A function that takes all logs out of the database at a URL."""
    return empty


def empty(url: str) -> None:
    with connected(url) as connection:
        for (table,) in connection.rows("SELECT blocks FROM millstream_logs"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("DELETE FROM millstream_logs")
        connection.execute("DELETE FROM millstream_states")


def new_database(server: str) -> str:
    """The URL of a database of *server* that nobody has used, with the tables of a log store."""
    url = f"{server}test_{secrets.token_hex(6)}"
    open_store(url).close()
    return url


@contextlib.contextmanager
def connected(url: str, *, database: bool = True) -> Iterator[Any]:
    """A connection to the database at *url*, or to its server alone, that commits by itself."""
    from millstream.log.mysql.text_driver import connect_text

    connection = connect_text(parse_place(url), database=database)
    try:
        connection.execute("SET autocommit = 1")
        yield connection
    finally:
        connection.close()
