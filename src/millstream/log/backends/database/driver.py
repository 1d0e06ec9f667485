"""The seam to a database driver: what a connection must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

Value: TypeAlias = int | str | bytes
"""The types of parameters of a statement."""

Code: TypeAlias = int | str
"""How a server names a failure: MariaDB and MySQL by a number, PostgreSQL by five letters and digits (SQLSTATE)."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""How long a server may take to answer one statement before the connection counts as lost."""

_AddressT_contra = TypeVar("_AddressT_contra", contravariant=True)


class ServerError(Exception):
    """The server, or the way to it, failed with the error *code* (0 where there is none)."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{text} (error {code})" if code else text)
        self.code = code


class DatabaseConnection(Protocol):
    """One connection, used by one thread at a time. All calls raise :class:`ServerError`."""

    def execute(self, statement: str, *values: Value) -> int:
        """Do *statement*; the number of rows that it found or made."""
        ...

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        """The rows of *statement*; columns of bytes as bytes."""
        ...

    def close(self) -> None:
        """Drop the connection, whatever state it is in. What was not committed is undone by the server."""
        ...


class DatabaseDriver(Protocol[_AddressT_contra]):
    """Connects. ``database`` False connects to the server alone."""

    def __call__(self, address: _AddressT_contra, *, database: bool = True) -> DatabaseConnection: ...
