"""The differences between kinds of servers."""

from __future__ import annotations

from typing import Protocol

from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.database.error_codes import ErrorCodes


class Dialect(Protocol):
    """How a kind of server is talked to, beside the statements. All calls raise :class:`ServerError`."""

    @property
    def error_codes(self) -> ErrorCodes: ...

    def begin_session(self, connection: DatabaseConnection, *, read_only: bool) -> int:
        """Make a new connection ready; the most bytes that one statement on it should have."""
        ...

    def make_database(self, connection: DatabaseConnection, database: str) -> None:
        """Make *database* where the server that *connection* leads to has none of that name."""
        ...
