"""Outboxes in each kind of database."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import Log, LogSpec, LogStore
from millstream.log.backends.database.driver import DatabaseConnection, ServerError
from millstream.log.backends.memory import MemoryBackend
from millstream.log.relay import OutboxDatabase, open_outbox_database
from millstream.testing.databases import connected
from support.outboxes import connect_application, make_outbox

KINDS = ["sqlite", "mysql", "postgresql"]


@contextlib.contextmanager
def database_of(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an application's database of *kind*, without an outbox."""
    if kind == "sqlite":
        path: Path = request.getfixturevalue("tmp_path") / "application.db"
        with contextlib.closing(sqlite3.connect(path)) as made:
            made.execute("PRAGMA journal_mode = WAL")
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("mariadb" if kind == "mysql" else "postgresql")
    yield request.getfixturevalue("outbox_databases")(server)


@pytest.fixture(scope="session")
def outbox_databases() -> Iterator[Callable[[str], str]]:
    """A function that makes a database on a server, or empties the one that it has made, and gives its URL."""
    made: dict[str, str] = {}

    def prepare(server: str) -> str:
        if server not in made:
            made[server] = f"test_{secrets.token_hex(6)}"
            with connected(f"{server}{made[server]}", database=False) as connection:
                connection.execute(f"CREATE DATABASE {made[server]}")
        with connected(f"{server}{made[server]}") as connection:
            for name in ("outbox", "outbox_relay", "outbox_dead", "events"):
                connection.execute(f"DROP TABLE IF EXISTS {name}")
        return f"{server}{made[server]}"

    yield prepare
    for server, name in made.items():
        with contextlib.suppress(ServerError), connected(f"{server}{name}", database=False) as connection:
            connection.execute(f"DROP DATABASE {name}")  # unless the server was a private one, and is gone


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an application's database, of each kind in turn, without an outbox."""
    with database_of(request.param, request) as url:
        yield url


@pytest.fixture(params=["mysql", "postgresql"])
def server_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, of the kinds that have several transactions at once."""
    with database_of(request.param, request) as url:
        yield url


@pytest.fixture
def connect() -> Iterator[Callable[[str], DatabaseConnection]]:
    """A function that opens a session of the application with the database at a URL."""
    opened: list[DatabaseConnection] = []

    def open_one(url: str) -> DatabaseConnection:
        opened.append(connect_application(url))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def application(database_url: str, connect: Callable[[str], DatabaseConnection]) -> DatabaseConnection:
    """A session of the application, in whose database the outbox is."""
    make_outbox(database_url)
    return connect(database_url)


@pytest.fixture
def source(database_url: str, application: DatabaseConnection) -> Iterator[OutboxDatabase]:
    """The outbox's database, on a clock whose pauses take no time."""
    with contextlib.closing(open_outbox_database(database_url, VirtualClock())) as source:
        yield source


@pytest.fixture
def server_source(server_database_url: str) -> Iterator[OutboxDatabase]:
    """The same, with an outbox, on the kinds of databases that have several transactions at once."""
    make_outbox(server_database_url)
    with contextlib.closing(open_outbox_database(server_database_url, VirtualClock())) as source:
        yield source


@pytest.fixture
def log() -> Iterator[Log]:
    clock = SystemClock()
    with LogStore(MemoryBackend(clock), clock) as store:
        yield store.log(LogSpec("orders"))
