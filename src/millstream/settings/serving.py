"""The sections of what one process does: its roles, its servers over HTTP, and its log lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section
from millstream.ingest.settings import IngestRole
from millstream.log.relay.settings import RelayRole

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class LoggingSettings(Section, frozen=True):
    """Log lines of long-running commands, on standard error. ``format`` is ``console`` (text), ``json`` (one object per
    line) or ``auto``: ``console`` on a terminal, ``json`` elsewhere. ``level`` is the lowest level that is written:
    ``debug``, ``info``, ``warning`` or ``error``.
    """

    format: LogFormat = "auto"
    level: LogLevel = "info"


class HttpSettings(Section, frozen=True):
    """Limits of the HTTP servers of the console and the registry.

    A connection is closed if its request line and headers are not complete after ``header_timeout``, if no byte of a
    body arrives for ``body_timeout``, if a body arrives at less than 500 bytes per second, or if a response is not read
    for ``body_timeout``. Each server accepts ``max_connections`` connections, or fewer if the system limits open files.
    If a database does not answer, requests retry for ``database_timeout`` before they get 503 with ``Retry-After``; a
    server that accepts no packets holds the last attempt for up to 10 seconds, one that stops answering for up to 60.
    """

    header_timeout: Duration = Duration(20 * MICROSECONDS)
    body_timeout: Duration = Duration(30 * MICROSECONDS)
    max_connections: int = 1_000
    database_timeout: Duration = Duration(3 * MICROSECONDS)

    def __post_init__(self) -> None:
        for name in ("header_timeout", "body_timeout", "max_connections", "database_timeout"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")


class ServeSettings(Section, frozen=True):
    """Further roles of `millstream serve`, besides its broker and its console.

    ``ingest`` has a table for each log that receives the messages of an MQTT broker (``[serve.ingest.weather]`` with
    ``url``, ``topics`` and the other options of `millstream ingest mqtt`), ``relay`` one for each log that receives an
    application's outbox (``url`` and the other options of `millstream log relay`). ``batching`` maps a log to the log
    of its batches (``weather = "weather.batches"``); batches are anchored at the interval ``anchor_every``. ``workers``
    lists pools of workers (``["all"]``, or those of ``mill.pools``); with ``producers`` the looping producers run too.
    With ``registry`` operations on identifiers are anchored; ``registry_http`` (``HOST:PORT``) also accepts them over
    HTTP, without authentication: use a loopback address behind a proxy that authorizes writers.
    """

    ingest: Mapping[str, IngestRole] = msgspec.field(default_factory=dict)
    relay: Mapping[str, RelayRole] = msgspec.field(default_factory=dict)
    batching: Mapping[str, str] = msgspec.field(default_factory=dict)
    anchor_every: Duration = Duration(60 * MICROSECONDS)
    workers: tuple[str, ...] = ()
    producers: bool = False
    registry: bool = False
    registry_http: str = ""

    def __post_init__(self) -> None:
        for name in self.ingest.keys() & self.relay.keys():
            raise ValueError(f"ingest and relay both write the log {name!r}: give one of them another log")
