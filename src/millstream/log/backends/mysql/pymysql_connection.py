"""MariaDB and MySQL through PyMySQL: values go in the text of a statement, large ones with a prepared statement."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import CLIENT, CR

from millstream.log.backends.database.driver import ANSWER_SECONDS, CONNECT_SECONDS, ServerError, Value
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.prepared import PreparedStatements
from millstream.log.backends.mysql.pymysql_wire import abort, find_wire_protocol

_LARGE = 1024  # bytes; a statement with such a value is worth preparing


class PymysqlConnection:
    """A connection of PyMySQL. Statements go to it as bytes, since its own way through text is slow for blocks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        wire = find_wire_protocol(connection)
        self._prepared = None if wire is None else PreparedStatements(wire)

    def execute(self, statement: str, *values: Value) -> int:
        is_large = any(isinstance(value, bytes) and len(value) >= _LARGE for value in values)
        if self._prepared is None or not is_large:
            return self.execute_bytes(fill_placeholders(statement, values))
        with mysql_errors():
            return self._prepared.execute(statement, values)

    def execute_bytes(self, statement: bytes) -> int:
        """Like :meth:`execute`, for a statement whose values are in its text already."""
        with mysql_errors():
            return int(self._connection.query(statement))

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        with mysql_errors(), self._connection.cursor() as cursor:
            cursor.execute(fill_placeholders(statement, values))
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

    def close(self) -> None:
        abort(self._connection)


def connect_pymysql(address: MysqlAddress, *, database: bool = True) -> PymysqlConnection:
    """Connect to *address*. Raises :class:`ServerError`."""
    with mysql_errors():
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database if database else None,
            charset="utf8mb4",
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            write_timeout=ANSWER_SECONDS,
            ssl_ca=address.tls_ca or None,
            ssl_verify_cert=bool(address.tls_ca),  # PyMySQL checks no certificate unless it is told to
            ssl_verify_identity=bool(address.tls_ca),
        )
    return PymysqlConnection(connection)


def fill_placeholders(statement: str, values: Sequence[Value]) -> bytes:
    """*statement* with *values* in place of its ``?``, of which there are as many."""
    parts = statement.encode().split(b"?")
    if len(parts) != len(values) + 1:
        raise ValueError(f"{len(values)} values for {len(parts) - 1} placeholders in {statement!r}")
    pairs = zip(parts, map(literal, values), strict=False)
    return b"".join([*itertools.chain.from_iterable(pairs), parts[-1]])


def literal(value: Value) -> bytes:
    """*value* as a literal of a statement."""
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, str):
        return b"'" + _escaped(value.encode()) + b"'"
    return b"_binary'" + _escaped(value) + b"'"


def _escaped(data: bytes) -> bytes:
    """*data* for between quotes: the session's sql_mode leaves the backslash its meaning, and nothing else has one."""
    return data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


@contextlib.contextmanager
def mysql_errors() -> Iterator[None]:
    """Failures of PyMySQL as :class:`ServerError`."""
    try:
        yield
    except pymysql.MySQLError as error:
        number, text = (*error.args, "", "")[:2]
        if not isinstance(number, int):
            number, text = CR.CR_MALFORMED_PACKET, number or "the server sent a malformed packet"
        raise ServerError(number, str(text) or "the connection is closed") from error
    except OSError as error:
        raise ServerError(CR.CR_SERVER_LOST, str(error)) from error
    except RuntimeError as error:
        raise ServerError(0, str(error)) from error  # a way to log in needs a package that is not installed
