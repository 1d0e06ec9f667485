"""Other ways to keep messages: rows in databases, streams of Redis and NATS, a queue for Python, a minimal program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.bench.log.contenders import LogContender
from millstream.testing.services import ServerDefinition
from millstream_peers.log.servers import Nats, Redis, clear_redis

_REDIS = {4: 2e5, 100: 1e5, 1000: 4e4}
_COPY = {4: 4e5, 1000: 1e5}
_ROWS: Mapping[int, float] = {4: 4e5, 100: 3e5, 1000: 1e5}


_HERE = __name__

CONTENDERS: Mapping[str, LogContender] = {
    "mariadb-rows": LogContender(
        "one row per message, MariaDB", "mariadb-whole", _ROWS, f"{_HERE}.mysql_rows", "MysqlRow"
    ),
    "sqlite-rows": LogContender("one row per message, SQLite", "", _ROWS, f"{_HERE}.sqlite_rows", "SqliteRow", ".db"),
    "redis": LogContender("Redis Stream, AOF always", "redis", _REDIS, f"{_HERE}.redis_stream", "Redis"),
    "nats": LogContender("NATS JetStream, file", "nats", {4: 3e4, 1000: 2e4}, f"{_HERE}.nats_stream", "Nats"),
    "postgres-copy": LogContender(
        "one row per message, PostgreSQL COPY", "postgresql-whole", _COPY, f"{_HERE}.postgres_copy", "Postgres"
    ),
    "litequeue": LogContender("litequeue, SQLite", "", {4: 5e3, 1000: 4e3}, f"{_HERE}.litequeue", "Litequeue", ".db"),
    "frame-file": LogContender(
        "minimal program, one file", "", {4: 3e6, 1000: 2e5}, f"{_HERE}.frame_file", "FrameFile", ".frames"
    ),
}
"""The first is the one that all others are measured against: a row a message, as in the seed document."""

SERVERS: Mapping[str, ServerDefinition] = {"redis": Redis(), "nats": Nats()}

CLEARING: Mapping[str, Callable[[str], None]] = {"redis": clear_redis}
