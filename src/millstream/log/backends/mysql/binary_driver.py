"""MariaDB and MySQL through the connector ``mariadb``: prepared statements, values sent as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mariadb
from mariadb.constants import CLIENT

from millstream.log.backends.database.driver import ANSWER_SECONDS, CONNECT_SECONDS, ServerError, Value
from millstream.log.backends.mysql.address import MysqlAddress


class BinaryConnection:
    """A connection of ``mariadb``. Statements without values go as text, the others are prepared once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Value) -> int:
        with numbered(), self._connection.cursor(binary=bool(values)) as cursor:
            cursor.execute(statement, values or None)
            return max(int(cursor.rowcount), 0)

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        with numbered(), self._connection.cursor(binary=bool(values)) as cursor:
            cursor.execute(statement, values or None)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

    def close(self) -> None:
        with contextlib.suppress(mariadb.Error, OSError):
            self._connection.close()


def connect_binary(address: MysqlAddress, *, database: bool = True) -> BinaryConnection:
    """Connect to *address*. Raises :class:`ServerError`."""
    with numbered():
        connection = mariadb.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database if database else None,
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            write_timeout=ANSWER_SECONDS,
            autocommit=True,
            **({"ssl": True, "ssl_ca": address.tls_ca, "ssl_verify_cert": True} if address.tls_ca else {}),
        )
    return BinaryConnection(connection)


@contextlib.contextmanager
def numbered() -> Iterator[None]:
    """Failures of ``mariadb`` as :class:`ServerError`."""
    try:
        yield
    except mariadb.Error as error:
        raise ServerError(int(getattr(error, "errno", 0) or 0), str(error)) from error
    except OSError as error:
        raise ServerError(2013, str(error)) from error
