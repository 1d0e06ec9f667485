"""How a server is set up: whether a confirmed message survives a power loss, and what differs from what we ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.database.server import ServerConfiguration, ServerSetting, read_settings, server_settings
from millstream.log.backends.postgres.address import PostgresAddress
from millstream.log.backends.postgres.driver import choose_driver
from millstream.log.backends.postgres.error_codes import POSTGRES_ERRORS
from millstream.log.backends.postgres.statements import sql

CONFIGURATION = Path(__file__).with_name("durable-server.conf")
"""Settings for a server that keeps logs: durable first, then fast. Tests and benchmarks run on them."""

SHIPPED = ServerConfiguration(
    CONFIGURATION,
    sizes=frozenset(["shared_buffers", "max_wal_size", "wal_buffers"]),
    speed=frozenset(["wal_compression"]),
    outside={"data_checksums": ("on", "pg_checksums --enable, while the server is stopped")},
)


def read_durability(connection: DatabaseConnection) -> str:
    """``fsync``, ``os`` or ``memory``: what a commit on this connection survives (a power loss, a crash of the server,
    neither). Raises :class:`ServerError`.
    """
    return durability(read_settings(connection, sql.DURABILITY_SETTINGS))


def durability(settings: Mapping[str, str]) -> str:
    """The durability that *settings* of a session give."""
    if settings.get("synchronous_commit") == "off":
        return "memory"
    return "fsync" if settings.get("fsync") == settings.get("full_page_writes") == "on" else "os"


def compare_server(address: PostgresAddress) -> tuple[str, list[ServerSetting]]:
    """The version of the server at *address*, and its settings beside the shipped ones. Raises :class:`LogError`."""
    found = server_settings(choose_driver(address), address, sql.SERVER_SETTINGS, POSTGRES_ERRORS)
    return found.get("server_version", "unknown"), list(SHIPPED.compared(found))
