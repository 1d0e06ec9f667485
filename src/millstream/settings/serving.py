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
    """Log lines of commands that run on and on, on standard error. ``format`` is ``console``, for people, ``json``, an
    object a line, or ``auto``: ``console`` on a terminal, ``json`` elsewhere. ``level`` and what is worse is written:
    ``debug``, ``info``, ``warning`` or ``error``.
    """

    format: LogFormat = "auto"
    level: LogLevel = "info"


class HttpSettings(Section, frozen=True):
    """How long clients of the console, its interface for programs and the registry may take over HTTP.

    A client whose request line and headers are not complete after ``header_timeout`` is let go, and so is one that
    sends nothing of a body for ``body_timeout``, sends it at less than 500 bytes a second, or leaves an answer unread
    for so long. Each server holds ``max_connections``, as far as the system allows that many open files.
    """

    header_timeout: Duration = Duration(20 * MICROSECONDS)
    body_timeout: Duration = Duration(30 * MICROSECONDS)
    max_connections: int = 1_000

    def __post_init__(self) -> None:
        for name in ("header_timeout", "body_timeout", "max_connections"):
            if getattr(self, name) <= 0:
                raise ValueError(f"http.{name} must be more than 0")


class ServeSettings(Section, frozen=True):
    """What `millstream serve` does beside its broker and its console, so that one process is a whole node.

    ``ingest`` has a table for each log that gets the messages of an MQTT broker (``[serve.ingest.weather]`` with
    ``url``, ``topics`` and the other options of `millstream ingest mqtt`), ``relay`` one for each log that gets an
    application's outbox (``url`` and the other options of `millstream log relay`). ``batching`` names logs, and for
    each the log that gets its batches (``weather = "weather.batches"``); they are anchored every ``anchor_every``.
    ``workers`` are pools (``["all"]``, those of ``mill.pools``) that work on tasks; with ``producers`` the looping
    producers put them on the queues. With ``registry`` operations on identifiers are cut and anchored;
    ``registry_http`` (``HOST:PORT``) takes them over HTTP as well. That has no users: keep it on this machine, behind
    a proxy that knows who may write.
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
            raise ValueError(f"ingest and relay both write the log {name!r}; a log has one writer, so name another log")
