"""The databases that tests of the log run against."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.log import Log, LogSpec, open_store
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.testing import databases
from millstream.testing.databases import connected
from millstream.testing.disk import build_shim
from millstream.testing.services import LocalServerMissingError
from millstream.testing.waiting import until
from suite.missing import end_without


class Databases:
    """Databases of one server; those that tests are done with are used again, since making tables takes long."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._used: list[str] = []

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[str]:
        """The URL of a database with the tables of a log store and without a log."""
        url = self._used.pop() if self._used else self._new()
        yield url
        databases.empty_database(url)
        self._used.append(url)

    def drop(self) -> None:
        force = "WITH (FORCE)" if self.server.startswith("postgresql:") else ""
        for url in self._used:
            with connected(url, database=False) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} {force}")

    def _new(self) -> str:
        url = f"{self.server}test_{secrets.token_hex(6)}"
        open_store(url).close()
        return url


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that stands between a process and its disk."""
    try:
        return build_shim(tmp_path_factory.mktemp("shim"))
    except LocalServerMissingError as error:
        end_without(error)


@pytest.fixture(scope="session")
def mariadb_databases(mariadb: str) -> Iterator[Databases]:
    found = Databases(mariadb)
    yield found
    found.drop()


@pytest.fixture(scope="session")
def postgres_databases(postgresql: str) -> Iterator[Databases]:
    found = Databases(postgresql)
    yield found
    found.drop()


@pytest.fixture
def database(mariadb_databases: Databases) -> Iterator[str]:
    """The URL of a database of MariaDB without a log."""
    with mariadb_databases.borrowed() as url:
        yield url


@pytest.fixture
def postgres_database(postgres_databases: Databases) -> Iterator[str]:
    """The URL of a database of PostgreSQL without a log."""
    with postgres_databases.borrowed() as url:
        yield url


@pytest.fixture(params=["mysql", "postgresql"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of a server, of each kind in turn, without a database."""
    url: str = request.getfixturevalue("mariadb" if request.param == "mysql" else "postgresql")
    return url


@pytest.fixture
def store_url(server: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database without a log, on each kind of server in turn."""
    url: str = request.getfixturevalue("database" if server.startswith("mysql:") else "postgres_database")
    return url


@pytest.fixture
def connection(store_url: str) -> Iterator[DatabaseConnection]:
    """A connection to do to the server what a fault, or an administrator, would do."""
    with connected(store_url) as connection:
        yield connection


@pytest.fixture
def log(store_url: str) -> Iterator[Log]:
    """A log of 50 messages in five blocks."""
    with open_store(store_url) as store:
        log = store.log(LogSpec("weather", block_messages=10))
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 51)])
        yield log


@pytest.fixture
def table(log: Log, connection: DatabaseConnection) -> str:
    """The table of the log's blocks."""
    ((name,),) = connection.rows("SELECT blocks FROM millstream_logs WHERE name = ?", log.name)
    return str(name)


@pytest.fixture
def set_global(store_url: str, connection: DatabaseConnection) -> Iterator[Callable[[str, int | str], None]]:
    """A function that changes a setting of the server until the test is over."""
    before: dict[str, int | str] = {}
    is_postgres = store_url.startswith("postgresql:")

    def change(name: str, value: int | str) -> None:
        ((found,),) = connection.rows(f"SHOW {name}" if is_postgres else f"SELECT @@GLOBAL.{name}")
        before.setdefault(name, found)
        if is_postgres:
            alter_system(connection, name, value)
        else:
            connection.execute(f"SET GLOBAL {name} = {value}")

    yield change
    for name, value in before.items():
        change(name, value)


def alter_system(connection: DatabaseConnection, name: str, value: int | str) -> None:
    """Change a setting of PostgreSQL, and wait until it is in force."""
    connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    connection.rows("SELECT pg_reload_conf()")
    until(lambda: connection.rows(f"SHOW {name}")[0][0] == str(value), f"{name} = {value}")


@pytest.fixture(scope="session")
def used_queues(mariadb: str) -> Iterator[list[str]]:
    """Databases of queues that tests are done with; they are dropped at the end, which takes its time."""
    urls: list[str] = []
    yield urls
    with connected(f"{mariadb}mysql", database=False) as connection:
        for url in urls:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]}")


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
        connection.execute(f"CREATE DATABASE {used[-1].rpartition('/')[2]}")
    return used[-1]


@pytest.fixture
def empty_database() -> Callable[[str], None]:
    """A function that takes all logs out of the database at a URL."""
    return databases.empty_database
