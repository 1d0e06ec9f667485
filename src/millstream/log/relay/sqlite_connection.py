"""SQLite as a database of an outbox: its file is that of an application, and is used as it is."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millstream.log.backends.database.driver import DatabaseConnection, ServerError, Value
from millstream.log.backends.database.error_codes import ErrorCodes
from millstream.log.errors import (
    DamagedLogError,
    LogNotFoundError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)

_WAIT = 5.0  # seconds for which a statement waits for an application's transaction before it is retried
_STATEMENT_BYTES = 1 << 30

FAILURES = ErrorCodes(
    lost=frozenset(),
    contended=frozenset([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED]),
    duplicate=sqlite3.SQLITE_CONSTRAINT,
    unknown_database=sqlite3.SQLITE_CANTOPEN,
    advice={
        sqlite3.SQLITE_CANTOPEN: (LogNotFoundError, "check the path: the application's database must exist"),
        sqlite3.SQLITE_FULL: (StorageFullError, "free some space on its disk"),
        sqlite3.SQLITE_READONLY: (StorageReadOnlyError, "check the rights of the file and its folder"),
        sqlite3.SQLITE_CORRUPT: (DamagedLogError, "restore the file from a backup"),
        sqlite3.SQLITE_NOTADB: (DamagedLogError, "check the path, which is not that of an SQLite database"),
        sqlite3.SQLITE_IOERR: (StorageError, "check the disk for errors"),
    },
)


class SqliteAddress(msgspec.Struct, frozen=True):
    """The file *path*."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def database(self) -> str:
        return str(self.path)


class SqliteDialect:
    """The dialect of SQLite."""

    @property
    def error_codes(self) -> ErrorCodes:
        return FAILURES

    def begin_session(self, connection: DatabaseConnection, *, read_only: bool) -> int:
        """Let every commit of ours be on the disk when it returns, whatever the application does with its own."""
        connection.execute(f"PRAGMA query_only = {int(read_only)}")
        connection.execute("PRAGMA synchronous = FULL")
        return _STATEMENT_BYTES

    def make_database(self, connection: DatabaseConnection, database: str) -> None:
        """A file is made by its application."""


class SqliteConnection:
    """A connection that commits by itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Value) -> int:
        with sqlite_errors():
            return max(self._connection.execute(statement, values).rowcount, 0)

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        with sqlite_errors():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        self._connection.close()


def connect_sqlite(address: SqliteAddress, *, database: bool = True) -> SqliteConnection:  # noqa: ARG001 - a driver's call
    """Open the file at *address*. Raises :class:`ServerError`."""
    with sqlite_errors():
        connection = sqlite3.connect(
            f"{address.path.as_uri()}?mode=rw", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
        )
    connection.text_factory = _text_or_bytes
    return SqliteConnection(connection)


def _text_or_bytes(text: bytes) -> str | bytes:
    """SQLite takes any bytes for text: those that are not UTF-8 make one row no message, not all rows unreadable."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


@contextlib.contextmanager
def sqlite_errors() -> Iterator[None]:
    """Failures of SQLite as :class:`ServerError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise ServerError(getattr(error, "sqlite_errorcode", 0) & 0xFF, str(error)) from error
