"""What is known of a failed call of a database: whether it was away, locked, full or refused the account."""

from __future__ import annotations

import sqlite3
from typing import Any

import sqlalchemy as sa

from millstream.core.postgresql_refusals import is_refused_connection

_AWAY = "did not answer ({}): start its server, or correct its URL in the settings"
_REFUSED = "refused the account or the database ({}): correct its URL in the settings, or grant the rights"
_READ_ONLY = "takes no writes ({}): correct its URL in the settings, or end its read-only mode"
_FAILED = "failed ({})"

_PHRASES: tuple[tuple[str, frozenset[int | str]], ...] = (
    (
        "was locked by other transactions ({}): try again",
        frozenset([1020, 1205, 1213, 1412, 1637, 1684, "40001", "40P01", "55006", "55P03", "sqlite 5", "sqlite 6"]),
    ),
    ("has no free space ({}): free some space", frozenset([1021, 1114, 3675, 3676, "53100", "sqlite 13"])),
    (
        "has no free connection ({}): end other programs that use it, or raise its limit of connections",
        frozenset([1040, 1203, 1226, "53300"]),
    ),
    (_REFUSED, frozenset([1044, 1045, 1049, 1698, "28000", "28P01", "3D000", "42501"])),
    ("took too long ({}): try again, and look at the load of its server", frozenset([1969, 3024, "57014"])),
    (_AWAY, frozenset([1053, 1927, 2002, 2003, 2005, 2006, 2013, 2055])),
)
"""What codes mean: numbers of MariaDB and MySQL, SQLSTATE of PostgreSQL, and primary result codes of SQLite."""


SqlFailure = sa.exc.DBAPIError | sa.exc.TimeoutError
"""A call that failed at the database, or that got no connection of its pool in time."""

SQL_PASSES = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""The errors after which the same call may succeed later."""


def describe_sql_failure(error: SqlFailure) -> str:
    """What the database did, the driver's words and what to do, to follow the name of the database in a sentence."""
    if isinstance(error, sa.exc.TimeoutError):
        return "has no free connection for this process: all are in use"
    cause: Any = error.orig
    number = _number(cause)
    words = cause.args[1] if number is not None and len(cause.args) > 1 else cause
    reason = " ".join(str(words).split())
    return _phrase(error, _code(cause), reason).format(reason)


def driver_failure(connection: sa.Connection, statement: str, error: Exception) -> sa.exc.DBAPIError:
    """What SQLAlchemy raises for the driver's *error* in *statement*, which was executed by the driver itself."""
    base = connection.dialect.loaded_dbapi.Error
    raised = sa.exc.DBAPIError.instance(statement, None, error, base, dialect=connection.dialect)
    assert isinstance(raised, sa.exc.DBAPIError)
    return raised


def is_read_only(cause: Any) -> bool:
    """Whether the driver's error *cause* means that the server takes no writes, as after a failover."""
    code = _code(cause)
    return code in (1792, 1836, "25006") or (code == 1290 and "read-only" in str(cause))  # 1290: any option of MariaDB


def _phrase(error: sa.exc.DBAPIError, code: int | str | None, reason: str) -> str:
    if is_read_only(error.orig):
        return _READ_ONLY
    for phrase, codes in _PHRASES:
        if code in codes:
            return phrase
    if code is None and is_refused_connection(reason):
        return _REFUSED
    if error.connection_invalidated or code is None or str(code).startswith(("08", "57P")):
        return _AWAY
    return _FAILED


def _code(cause: Any) -> int | str | None:
    """The code of the driver's error *cause*; None if it has none, as that of PostgreSQL while it connects."""
    if isinstance(cause, sqlite3.Error):
        return f"sqlite {getattr(cause, 'sqlite_errorcode', 0) & 0xFF}"
    number = _number(cause)
    return getattr(cause, "sqlstate", None) if number is None else number


def _number(cause: Any) -> int | None:
    """The number of an error of MariaDB or MySQL."""
    args = getattr(cause, "args", ())
    return args[0] if args and isinstance(args[0], int) else None
