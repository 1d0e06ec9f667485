"""The meaning of the error numbers of MariaDB and MySQL."""

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

DUPLICATE = 1062
UNKNOWN_DATABASE = 1049
UNKNOWN_TABLE = 1146
PACKET_TOO_LARGE = 1153

_NO_WAY = (2002, 2003, 2006, 2013, 2014, 2027, 2055)  # to the server, or the connection broke; the client's numbers
_NOT_NOW = (1040, 1041, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226)  # full, starting, ending
_ENDED = (1317, 1927, 3169, 4031)  # the server or an operator ended this connection
_CONTENDED = (1020, 1205, 1213, 1412, 1637)  # a deadlock, a lock not free in time, a table that was changed meanwhile

_FULL = [1021, 1114, 3675, 3676]
_READ_ONLY = [1036, 1290, 1792, 1836, 3098]
_DENIED = [1044, 1045, 1130, 1142, 1143, 1227, 1370, 1396, 1698, 1862, 2059, 2061, 4151]
_DAMAGED = [1030, 1033, 1034, 1035, 1194, 1195, 1712, 1877, 4047]

MYSQL_ERRORS = ErrorCodes(
    # A new connection asks anew how large a packet may be, should that have changed.
    lost=frozenset([*_NO_WAY, *_NOT_NOW, *_ENDED, PACKET_TOO_LARGE]),
    contended=frozenset(_CONTENDED),
    duplicate=DUPLICATE,
    unknown_database=UNKNOWN_DATABASE,
    advice={
        **dict.fromkeys(_FULL, (StorageFullError, "free some space on the server, then open the writer again")),
        **dict.fromkeys(_READ_ONLY, (StorageReadOnlyError, "this server is read-only: use the primary server")),
        **dict.fromkeys(_DENIED, (StorageError, DENIED_ADVICE)),
        **dict.fromkeys(_DAMAGED, (DamagedLogError, DAMAGED_ADVICE)),
        UNKNOWN_DATABASE: (LogNotFoundError, ABSENT_ADVICE),
        UNKNOWN_TABLE: (LogNotFoundError, ABSENT_ADVICE),
        1406: (LogInputError, "use a shorter name"),
    },
)
