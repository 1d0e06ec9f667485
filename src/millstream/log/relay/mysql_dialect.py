"""MariaDB and MySQL as databases of an outbox."""

from __future__ import annotations

from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.mysql.backend import MysqlDialect


class ReadCommitted(MysqlDialect):
    """Sees what was committed a moment ago, and locks rows alone: gaps belong to the application's inserts."""

    def begin_session(self, connection: DatabaseConnection, *, read_only: bool) -> int:
        """Make a new connection ready."""
        size = super().begin_session(connection, read_only=read_only)
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return size
