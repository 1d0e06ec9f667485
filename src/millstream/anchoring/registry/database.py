"""Transactions of the registry, on SQLite or MariaDB, and the time that all instances agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from millstream.anchoring.database import writing
from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.errors import DatabaseBusyError
from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy

Result = TypeVar("Result")

_ANSWERS = RetryPolicy(attempts=8, first=0.05, longest=2.0)
_SERVER_TIME = sa.text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")


class RegistryDatabase:
    """The registry's tables in the database of *engine*, made where they are absent. Thread-safe.

    On SQLite, which one host uses, time is that of *clock*; on a server it is the server's, so that the clocks of
    several hosts do not matter.
    """

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._on_server = engine.dialect.name != "sqlite"
        self._tried(lambda: t.metadata.create_all(engine, t.ALL))

    def write(self, transaction: Callable[[sa.Connection, int], Result]) -> Result:
        """Run *transaction* (connection, present time in microseconds) and commit it, durably.

        It is run again after a deadlock or a lost connection, so it must do all its work through the connection.
        Raises :class:`DatabaseBusyError` when the database stays away.
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
        return int(connection.scalar(_SERVER_TIME) or 0) if self._on_server else self.clock.now()

    def _tried(self, once: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return once()
            except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                raise DatabaseBusyError(f"the registry's database did not answer: {error.orig}") from error

        return _ANSWERS.call(translated, self.clock)


def insert_new(connection: sa.Connection, table: sa.Table) -> sa.Insert:
    """An insert that leaves rows alone whose key exists."""
    prefix = "OR IGNORE" if connection.dialect.name == "sqlite" else "IGNORE"
    return sa.insert(table).prefix_with(prefix)
