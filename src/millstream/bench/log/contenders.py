"""Who takes part: what each is called, which server it needs, and about how fast it is (which sizes its load)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from millstream.bench.log.peers.ours import OurReceiver, OurSender
from millstream.bench.log.peers.protocol import QueueLocation, QueueReceiver, QueueSender
from millstream.core.errors import InputError


class LogContender(msgspec.Struct, frozen=True):
    """One that takes part. ``rates`` are messages a second by payload; ``module`` holds its classes, with *classes*."""

    title: str
    server: str
    rates: Mapping[int, float]
    module: str
    classes: str
    suffix: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is our log."""
        return self.module == "ours"

    def rate(self, payload: int) -> float:
        """Messages a second with *payload* bytes each, about."""
        return self.rates[max((size for size in self.rates if size <= payload), default=min(self.rates))]


_OURS: dict[int, float] = {4: 3e6, 100: 1e6, 1000: 2e5}
_ROWS: dict[int, float] = {4: 4e5, 100: 3e5, 1000: 1e5}

CONTENDERS: dict[str, LogContender] = {
    "mariadb-rows": LogContender("row a message, MariaDB", "mariadb-whole", _ROWS, "mysql_rows", "MysqlRow"),
    "sqlite-rows": LogContender("row a message, SQLite", "", _ROWS, "sqlite_rows", "SqliteRow", ".db"),
    "redis": LogContender("Redis Stream, AOF always", "redis", {4: 2e5, 100: 1e5, 1000: 4e4}, "redis_stream", "Redis"),
    "nats": LogContender("NATS JetStream, file", "nats", {4: 3e4, 1000: 2e4}, "nats_stream", "Nats"),
    "postgres-copy": LogContender(
        "row a message, PostgreSQL COPY", "postgresql-whole", {4: 4e5, 1000: 1e5}, "postgres_copy", "Postgres"
    ),
    "litequeue": LogContender("litequeue, SQLite", "", {4: 5e3, 1000: 4e3}, "litequeue", "Litequeue", ".db"),
    "mariadb": LogContender("millstream, MariaDB", "mariadb-whole", _OURS, "ours", "Our"),
    "postgres": LogContender("millstream, PostgreSQL", "postgresql-whole", _OURS, "ours", "Our"),
    "sqlite": LogContender("millstream, SQLite", "", _OURS, "ours", "Our", ".db"),
    "segments": LogContender("millstream, segment files", "", _OURS, "ours", "Our"),
}


def open_sender(place: QueueLocation) -> QueueSender:
    """The sender of a contender at *place*."""
    return cast(QueueSender, _made(place, "Sender"))


def open_receiver(place: QueueLocation) -> QueueReceiver:
    """The receiver of a contender at *place*."""
    return cast(QueueReceiver, _made(place, "Receiver"))


def open_ours(place: QueueLocation) -> tuple[OurSender, OurReceiver]:
    """Both sides of our log at *place*, which can do more."""
    return OurSender(place), OurReceiver(place)


def _made(place: QueueLocation, kind: str) -> Any:
    contender = CONTENDERS[place.contender]
    try:
        module = importlib.import_module(f"millstream.bench.log.peers.{contender.module}")
        return getattr(module, contender.classes + kind)(place)
    except ModuleNotFoundError as error:
        raise InputError(f"{contender.title} takes part with the package {error.name}: pip install it") from error
