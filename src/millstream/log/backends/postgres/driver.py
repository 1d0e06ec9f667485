"""PostgreSQL through psycopg 3: values go to the server and come back as they are, in the binary protocol."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.postgresql_refusals import is_refused_connection
from millstream.log.backends.database.driver import ANSWER_SECONDS, CONNECT_SECONDS, DatabaseDriver, ServerError, Value
from millstream.log.backends.postgres.address import PostgresAddress
from millstream.log.backends.postgres.error_codes import CONNECTION_LOST, UNKNOWN_DATABASE
from millstream.log.errors import StorageError

if TYPE_CHECKING:
    import psycopg

SILENT_SECONDS = ANSWER_SECONDS + 10.0
"""After how long a server that says nothing counts as lost: it ends a statement itself a little earlier."""

_MAINTENANCE = "postgres"  # the database that every server has


class PostgresConnection:
    """A connection of psycopg that commits by itself. Statements with values are prepared once they are used often."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Value) -> int:
        with postgres_errors():
            return max(self._done(statement, values).rowcount, 0)

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        with postgres_errors():
            return self._done(statement, values).fetchall()

    def close(self) -> None:
        with postgres_errors():
            self._connection.close()

    def _done(self, statement: str, values: Sequence[Value]) -> psycopg.Cursor[tuple[Any, ...]]:
        if values:
            return self._connection.execute(_placed(statement), values, binary=True)
        return self._connection.execute(statement.encode(), prepare=False)  # there may be several in it


def choose_driver(address: PostgresAddress) -> DatabaseDriver[PostgresAddress]:
    """The driver for *address*. Raises :class:`StorageError` where it is not installed."""
    if importlib.util.find_spec("psycopg") is None:
        raise StorageError(
            f"{address.url} needs psycopg, which is not installed: run pip install 'millstream[postgresql]'"
        )
    return connect


def connect(address: PostgresAddress, *, database: bool = True) -> PostgresConnection:
    """Connect to *address*. Raises :class:`ServerError`."""
    from psycopg.errors import ConnectionTimeout

    try:
        return _connected(address, address.database if database else _MAINTENANCE)
    except ServerError as error:
        is_silent = isinstance(error.__cause__, ConnectionTimeout)
        if not database or error.code != CONNECTION_LOST or is_silent or (exists := _exists(address)) is None:
            raise
        if not exists:
            raise ServerError(UNKNOWN_DATABASE, str(error)) from error
    return _connected(address, address.database)  # another process has made it in between


def _exists(address: PostgresAddress) -> bool | None:
    """Whether the server has the database; None where the server does not answer.

    Of a connection that failed this is known in words alone, which are in the language of the server.
    """
    try:
        with contextlib.closing(_connected(address, _MAINTENANCE)) as connection:
            return bool(connection.rows("SELECT 1 FROM pg_database WHERE datname = ?", address.database))
    except ServerError:
        return None


def _connected(address: PostgresAddress, database: str) -> PostgresConnection:
    from psycopg.types.numeric import Int8BinaryDumper

    with postgres_errors():
        connection = _patient().connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password or None,
            dbname=database,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            client_encoding="utf8",
            application_name="millstream",
            keepalives_idle=CONNECT_SECONDS,
            keepalives_interval=CONNECT_SECONDS,
            keepalives_count=3,
            tcp_user_timeout=1000 * ANSWER_SECONDS,
            **_tls(address),
        )
        connection.adapters.register_dumper(int, Int8BinaryDumper)  # one type, so one prepared statement
    return PostgresConnection(connection)


@contextlib.contextmanager
def postgres_errors() -> Iterator[None]:
    """Failures of psycopg as :class:`ServerError`."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        raise ServerError(_code(error, lost), " ".join(str(error).split())) from error
    except OSError as error:
        raise ServerError(CONNECTION_LOST, str(error)) from error


def _code(error: psycopg.Error, lost: bool) -> str:
    """The error's code. While connecting psycopg has none: then 28000 if the connection is refused."""
    if error.sqlstate:
        return error.sqlstate
    if is_refused_connection(str(error)) or (error.pgconn is not None and error.pgconn.needs_password):
        return "28000"
    return CONNECTION_LOST if lost else ""


def _tls(address: PostgresAddress) -> dict[str, Any]:
    wanted = {"sslrootcert": address.tls_ca, "sslcert": address.tls_cert, "sslkey": address.tls_key}
    given = {name: file for name, file in wanted.items() if file}
    return {"sslmode": "verify-full" if address.tls_ca else "require", **given} if given else {}


@functools.lru_cache(maxsize=512)
def _placed(statement: str) -> bytes:
    """*statement* with psycopg's sign for a binary value in place of each ``?``."""
    return statement.replace("%", "%%").replace("?", "%b").encode()


@functools.cache
def _patient() -> type[psycopg.Connection[tuple[Any, ...]]]:
    """A connection that counts as lost when the server does not answer in time."""
    import psycopg

    class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = SILENT_SECONDS) -> Any:
            return super().wait(gen, interval, timeout)

        def __del__(self, *_: object) -> None:
            self.close()  # a store that was dropped is no leak that anybody need hear of

    return PatientConnection
