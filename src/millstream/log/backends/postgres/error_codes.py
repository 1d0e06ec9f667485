"""The meaning of PostgreSQL's error codes (SQLSTATE)."""

from __future__ import annotations

from millstream.log.backends.database.error_codes import ABSENT_ADVICE, DAMAGED_ADVICE, DENIED_ADVICE, ErrorCodes
from millstream.log.errors import (
    DamagedLogError,
    LogInputError,
    LogNotFoundError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)

CONNECTION_LOST = "08006"
UNIQUE_VIOLATION = "23505"
DUPLICATE_DATABASE = "42P04"
UNKNOWN_DATABASE = "3D000"

_NOT_NOW = ("53300", "57P01", "57P02", "57P03", "57P04")  # full, ending, crashed, starting
_ENDED = ("25P03", "57P05")  # the server has ended a transaction or a session in which nothing happened
_CONTENDED = ("40001", "40P01", "55006", "55P03", "57014")  # a deadlock, a lock or an answer not in time

_DENIED = (StorageError, DENIED_ADVICE)
_DAMAGED = (DamagedLogError, DAMAGED_ADVICE)
_ABSENT = (LogNotFoundError, ABSENT_ADVICE)

POSTGRES_ERRORS = ErrorCodes(
    lost=frozenset(["08", *_NOT_NOW, *_ENDED]),
    contended=frozenset(_CONTENDED),
    duplicate=UNIQUE_VIOLATION,
    unknown_database=UNKNOWN_DATABASE,
    advice={
        "53100": (StorageFullError, "free some space on the server, then open the writer again"),
        "25006": (StorageReadOnlyError, "this server is read-only: use the primary server"),
        "28": _DENIED,
        "42501": _DENIED,
        "XX001": _DAMAGED,
        "XX002": _DAMAGED,
        "58": _DAMAGED,
        UNKNOWN_DATABASE: _ABSENT,
        "42P01": _ABSENT,
        "22001": (LogInputError, "use a shorter name"),
        "23514": (LogInputError, "use a shorter name"),
    },
)
