"""Databases on servers that parts of a node share: PostgreSQL, MariaDB and MySQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import MillstreamError
from millstream.core.postgresql_refusals import is_invalid_option, is_refused_connection
from millstream.core.retry import RetryPolicy
from millstream.core.secrets import read_password, safe_url
from millstream.core.sql import NoDatabaseError, SqlBusyError, SqlInputError, current_patience
from millstream.core.sql_failures import describe_sql_failure, is_read_only
from millstream.core.sql_rows import without_nul
from millstream.core.url_schemes import scheme_of

_POOL = 20
_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 60
_FRESH_SECONDS = 0.25
"""A connection that was used so recently is lent again without a ping, which takes as long as a small query."""

_NAME = re.compile(r"[A-Za-z0-9_$-]{1,63}")


class _ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between servers. *is_absent* tells the error of a database that is absent, and *create* makes
    it."""

    driver: str
    client: str
    connecting: Mapping[str, Any]
    create: Callable[[sa.URL], None]
    is_refusal: Callable[[Any], bool]
    is_absent: Callable[[Any], bool]
    adapt: Callable[[Any], None] = lambda _connection: None
    """Sets up each new connection of the driver."""


def open_server(
    url: str, clock: Clock | None = None, *, patience: RetryPolicy | None = None, create: bool = True
) -> sa.Engine:
    """The database at *url*, ``postgresql://user:password@host:port/name`` or ``mysql://…``, made where it is absent.
    ``?password_file=/path`` names a file with the password instead. Without *create* an absent one is a
    :class:`NoDatabaseError`.

    A server that does not answer, as one that is being started with the node, is called again with *patience*: by
    default for some twenty seconds of *clock*. Raises :class:`SqlInputError`, which never shows the password, for
    another URL, where the driver is missing, or where the server refuses the account; :class:`SqlBusyError` where it
    still does not answer.
    """
    try:
        place = sa.make_url(url)
    except sa.exc.ArgumentError:
        place = sa.make_url("none://")
    kind = _KINDS.get(place.drivername)
    if kind is None or not place.host or not _NAME.fullmatch(place.database or ""):
        raise SqlInputError(
            f"invalid database URL {safe_url(url)[:200]!r}: use postgresql://user:password@host:port/name or "
            "mysql://user:password@host:port/name"
        )
    try:
        place = with_password(place)
        _find_database(kind, place, clock or SystemClock(), patience or current_patience(), create=create)
        return _engine(kind, place, clock=clock)
    except ImportError as error:
        extra = scheme_of(url).extra
        raise SqlInputError(f"{kind.client}: pip install 'millstream[{extra}]'") from error


def with_password(place: sa.URL) -> sa.URL:
    """*place* with the password in the file that its option ``password_file`` names. Raises :class:`SqlInputError`."""
    file = place.query.get("password_file")
    if file is None:
        return place
    if place.password or not isinstance(file, str):
        raise SqlInputError(
            f"invalid URL of database {place.database!r} on {place.host}: give either the password or one password_file"
        )
    try:
        return place.difference_update_query(["password_file"]).set(password=read_password(file))
    except (OSError, ValueError) as error:
        raise SqlInputError(f"cannot read the password file {file} of the database {place.host}: {error}") from error


def end_idle_transactions(engine: sa.Engine, seconds: float) -> None:
    """Let the server roll a transaction of *engine* back that gets no statement for *seconds* (whole ones, rounded up).

    Otherwise a process that is stopped within one (SIGSTOP, a frozen virtual machine) keeps its locks until it ends.
    To be called before the first connection.
    """
    limit = math.ceil(seconds)

    def limited(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        if engine.dialect.name == "postgresql":
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{limit}s'")
            connection.commit()
        else:
            cursor.execute("SELECT version() LIKE '%MariaDB%'")
            variable = "idle_transaction_timeout" if cursor.fetchone()[0] else "wait_timeout"
            cursor.execute(f"SET SESSION {variable} = {limit}")
        cursor.close()

    sa.event.listen(engine, "connect", limited)


def largest_statement(engine: sa.Engine) -> int | None:
    """The bytes of the largest statement that a MariaDB or MySQL server takes; None for others, which take a gigabyte.

    Raises :class:`SqlBusyError` where the server does not answer.
    """
    if engine.dialect.name not in ("mysql", "mariadb"):
        return None
    try:
        with engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT @@max_allowed_packet")).scalar_one())
    except sa.exc.DBAPIError as error:
        raise SqlBusyError(f"the database {describe_sql_failure(error)}") from error


def _find_database(kind: _ServerKind, place: sa.URL, clock: Clock, patience: RetryPolicy, *, create: bool) -> None:
    def once() -> None:
        try:
            if not _is_there(kind, place):
                if not create:
                    raise _no_database(place)
                kind.create(place)
        except sa.exc.DBAPIError as error:
            raise _translated(kind, place, error) from error
        except UnicodeError:  # its text has the character; PyMySQL sends passwords as Latin-1
            raise SqlInputError(
                f"invalid URL of database {place.database!r} on {place.host}: its driver cannot send a character of "
                "the host, the user name or the password: use ASCII characters only"
            ) from None
        except (TypeError, ValueError) as error:  # what PyMySQL raises for an option that it does not have
            raise _invalid_option(place, str(error).removeprefix("Connection.__init__() got an ")) from error

    patience.call(once, clock)


def _translated(kind: _ServerKind, place: sa.URL, error: sa.exc.DBAPIError) -> MillstreamError:
    reason = " ".join(str(error.orig).split())
    if is_invalid_option(reason):
        return _invalid_option(place, reason)
    if kind.is_refusal(error.orig):
        return SqlInputError(
            f"the server {place.host} refused the user or the database ({reason}): correct the URL in the settings, "
            "or grant the rights"
        )
    port = place.port or scheme_of(place.drivername + "://").port
    return SqlBusyError(f"the database server {place.host}:{port} {describe_sql_failure(error)}")


def _no_database(place: sa.URL) -> NoDatabaseError:
    return NoDatabaseError(
        f"there is no database {place.database!r} on {place.host}: correct the URL in the settings; the database "
        "of a new node is made when `millstream serve` starts for the first time"
    )


def _invalid_option(place: sa.URL, reason: str) -> SqlInputError:
    return SqlInputError(
        f"invalid URL of database {place.database!r} on {place.host}: its driver refuses an option ({reason}): correct "
        "what follows '?' in the URL in the settings"
    )


def _engine(
    kind: _ServerKind, place: sa.URL, isolation_level: Any = "READ COMMITTED", clock: Clock | None = None
) -> sa.Engine:
    # Rows that others hold must not be locked beyond what is read, or instances would wait for one another.
    engine = sa.create_engine(
        place.set(drivername=kind.driver),
        isolation_level=isolation_level,
        pool_size=_POOL,
        connect_args=dict(kind.connecting),
        hide_parameters=True,  # log lines have the errors: rows may be messages and keys
    )
    sa.event.listen(engine, "connect", lambda connection, _record: kind.adapt(connection))
    sa.event.listen(engine, "handle_error", _lost_connection)
    _ping_idle_connections(engine, clock or SystemClock())
    return engine


def _ping_idle_connections(engine: sa.Engine, clock: Clock) -> None:
    """Let connections of *engine* that were idle be pinged before they are lent, and be replaced if they are lost."""

    def used(_connection: Any, record: Any) -> None:
        record.info["used_at"] = clock.monotonic()

    def lent(connection: Any, record: Any, _fairy: object) -> None:
        if clock.monotonic() - record.info["used_at"] <= _FRESH_SECONDS:
            return
        dialect = engine.dialect
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            if not dialect.is_disconnect(error, connection, None):
                raise
            raise sa.exc.InvalidatePoolError("the server has closed the connection") from error

    sa.event.listen(engine, "connect", used)
    sa.event.listen(engine, "checkin", used)
    sa.event.listen(engine, "checkout", lent)


def _lost_connection(context: sa.engine.ExceptionContext) -> sa.exc.OperationalError | None:
    """Each error by which a connection is lost as one class; all connections of the pool are replaced after it.

    psycopg calls those of a transaction that the server ended because it was idle for too long internal errors. A
    connection whose server takes no more writes counts as lost: after a failover, a new one reaches the other server.
    """
    error = context.sqlalchemy_exception
    if error is not None and is_read_only(context.original_exception):
        context.is_disconnect = True
    elif not context.is_disconnect or error is None or isinstance(error, sa.exc.OperationalError):
        return None
    assert isinstance(error, sa.exc.StatementError) and isinstance(error.orig, Exception)
    return sa.exc.OperationalError(error.statement, error.params, error.orig, connection_invalidated=True)


def _is_there(kind: _ServerKind, place: sa.URL) -> bool:
    """Whether the database at *place* is there, which an account without the right to create one can tell, too."""
    engine = _engine(kind, place)
    try:
        engine.connect().close()
    except sa.exc.DBAPIError as error:
        if kind.is_absent(error.orig):
            return False
        raise
    finally:
        engine.dispose()
    return True


def _create_in_mysql(place: sa.URL) -> None:
    server = _engine(_MYSQL, place.set(database=""))
    try:
        with server.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE IF NOT EXISTS `{place.database}`")
    finally:
        server.dispose()


def _refused_by_mysql(error: Any) -> bool:
    """Whether the error's number means: access denied (to a database or to the account), or unknown database."""
    return bool(error is not None and error.args and error.args[0] in (1044, 1045, 1049, 1698))


def _absent_in_postgresql(error: Any) -> bool:
    return re.search(r'database ".*" does not exist', str(error)) is not None


def _create_in_postgresql(place: sa.URL) -> None:
    server = _engine(_POSTGRESQL, place.set(database="postgres"), isolation_level="AUTOCOMMIT")
    try:
        with server.connect() as connection:
            options = "ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
            connection.exec_driver_sql(f'CREATE DATABASE "{place.database}" {options}')
    except (sa.exc.ProgrammingError, sa.exc.IntegrityError) as error:
        if getattr(error.orig, "sqlstate", "") not in ("42P04", "23505"):  # another process has just made it
            raise
    finally:
        server.dispose()


def _adapt_postgresql(connection: Any) -> None:
    from psycopg.types.string import StrDumper

    class TextDumper(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(without_nul(obj))

    connection.adapters.register_dumper(str, TextDumper)


def _refused_by_postgresql(error: Any) -> bool:
    """Whether it is by its SQLSTATE or, while connecting, by its text."""
    state = getattr(error, "sqlstate", None) or ""
    if state:
        return state == "42501" or state.startswith("28")
    return is_refused_connection(str(error))


_MYSQL = _ServerKind(
    driver="mysql+pymysql",
    client="MariaDB and MySQL need PyMySQL",
    connecting={
        # the present time is computed from local time, which jumps by an hour when summer time ends
        "init_command": "SET SESSION time_zone = '+00:00'",
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _ANSWER_SECONDS,
        "write_timeout": _ANSWER_SECONDS,
    },
    create=_create_in_mysql,
    is_refusal=_refused_by_mysql,
    is_absent=lambda error: bool(error is not None and error.args and error.args[0] == 1049),
)
_POSTGRESQL = _ServerKind(
    driver="postgresql+psycopg",
    client="PostgreSQL needs psycopg",
    connecting={
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": 1000 * _ANSWER_SECONDS,
        "application_name": "millstream",
        "options": f"-c statement_timeout={_ANSWER_SECONDS}s",
    },
    create=_create_in_postgresql,
    is_refusal=_refused_by_postgresql,
    is_absent=_absent_in_postgresql,
    adapt=_adapt_postgresql,
)
_KINDS = {"mysql": _MYSQL, "mariadb": _MYSQL, "postgresql": _POSTGRESQL}
