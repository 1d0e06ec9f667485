"""The seam to a database driver: what a connection must do, and which driver is taken."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from millstream.log.errors import StorageError
from millstream.log.mysql.place import Place

Value: TypeAlias = int | str | bytes
"""What a ``?`` in a statement may stand for."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""How long a server may take to answer one statement before the connection counts as lost."""


class ServerError(Exception):
    """The server, or the way to it, failed with the error *number* (0 where there is none)."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} (error {number})" if number else text)
        self.number = number


class Connection(Protocol):
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


class Driver(Protocol):
    """Connects. ``database`` False connects to the server alone."""

    def __call__(self, place: Place, *, database: bool = True) -> Connection: ...


def choose_driver(place: Place) -> Driver:
    """The driver that *place* asks for, ``text`` if it asks for none. Raises :class:`StorageError`.

    The binary one takes a tenth less CPU for large batches (measured); it is no default while it is no release.
    """
    module, wanted = ("mariadb", "mysql-binary") if place.driver == "binary" else ("pymysql", "mysql")
    if importlib.util.find_spec(module) is None:
        raise StorageError(f"no driver for {place.url} is installed: pip install 'millstream[{wanted}]'")
    if place.driver == "binary":
        from millstream.log.mysql.binary_driver import connect_binary

        return connect_binary
    from millstream.log.mysql.text_driver import connect_text

    return connect_text
