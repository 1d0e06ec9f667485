"""What we use of PyMySQL beyond its documented interface, all in one place.

PyMySQL has no prepared statements and closes a connection only by asking the server. A release that lacks these parts
still works: values then go in the text of statements, and closing asks the server.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import pymysql

_log = logging.getLogger(__name__)


class WireProtocol:
    """Sends commands of the MySQL protocol over a *connection* of PyMySQL, and reads the packets of the answer."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, command: int, data: bytes) -> None:
        """Send *command* with *data*."""
        self._connection._execute_command(command, data)

    def receive(self) -> Any:
        """The next packet of the server, as PyMySQL has it. An error packet is raised."""
        return self._connection._read_packet()


def find_wire_protocol(connection: Any) -> WireProtocol | None:
    """The wire protocol of *connection*; None where this release of PyMySQL has not the parts that it takes."""
    if all(callable(getattr(connection, name, None)) for name in ("_execute_command", "_read_packet")):
        return WireProtocol(connection)
    _warn_once()
    return None


def abort(connection: Any) -> None:
    """Drop *connection* without asking the server, which may not answer; where that cannot be, close it."""
    getattr(connection, "_force_close", connection.close)()


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "PyMySQL %s has no prepared statements: large values go in the text of statements, which costs the server ten "
        "times the processor time. Install PyMySQL 1.x for full speed",
        pymysql.VERSION_STRING,
    )
