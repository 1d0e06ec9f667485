"""Transactions on a database that several parts share: SQLite, or a server of MariaDB or MySQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.errors import BusyError
from millstream.core.retry import RetryPolicy

Result = TypeVar("Result")

_ANSWERS = RetryPolicy(attempts=20, first=0.01, longest=2.0)
_SERVER_TIME = sa.text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")


class SqlBusyError(BusyError):
    """The database did not answer or was locked; the same call may succeed later."""


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the database's write lock from the start, so that it may read first, then write."""
    with engine.begin() as connection:
        # SQLite takes the lock only at the first write otherwise, and what was read before may be stale by then.
        if engine.dialect.name == "sqlite" and not getattr(connection.connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


class SqlDatabase:
    """The tables of *metadata* in the database of *engine*, made where they are absent. Thread-safe.

    On SQLite, which one host uses, time is that of *clock*; on a server it is the server's, so that the clocks of
    several hosts do not matter, unless *server_time* is False.
    """

    busy_error: ClassVar[type[BusyError]] = SqlBusyError
    """What is raised when the database stays away."""

    def __init__(self, engine: sa.Engine, clock: Clock, metadata: sa.MetaData, *, server_time: bool = True) -> None:
        self.engine = engine
        self.clock = clock
        self._server_time = server_time and engine.dialect.name != "sqlite"
        self._tried(lambda: metadata.create_all(engine))

    def write(self, transaction: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *transaction* (connection, present time in microseconds) and commit it, durably.

        It is run again after a deadlock or a lost connection, so it must do all its work through the connection.
        Raises :attr:`busy_error` when the database stays away.
        """

        def once() -> Result:
            with writing(self.engine) as connection:
                return transaction(connection, self.now(connection))

        return self._tried(once)

    def read(self, query: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *query* (connection, present time in microseconds) on what is committed now."""

        def once() -> Result:
            with self.engine.connect() as connection:
                return query(connection, self.now(connection))

        return self._tried(once)

    def now(self, connection: sa.Connection) -> int:
        """The present time in microseconds, of the clock by which leases run out."""
        return int(connection.scalar(_SERVER_TIME) or 0) if self._server_time else self.clock.now()

    def _tried(self, once: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return once()
            except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                raise self.busy_error(f"the database did not answer: {error.orig}") from error

        return _ANSWERS.call(translated, self.clock)


def insert_new(connection: sa.Connection, table: sa.Table) -> sa.Insert:
    """An insert that leaves rows alone whose key exists."""
    prefix = "OR IGNORE" if connection.dialect.name == "sqlite" else "IGNORE"
    return sa.insert(table).prefix_with(prefix)
