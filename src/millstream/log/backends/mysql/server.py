"""How a server is set up: whether a confirmed message survives a power loss, and what differs from what we ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.database.server import ServerConfiguration, ServerSetting, read_settings, server_settings
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.mysql.error_codes import MYSQL_ERRORS
from millstream.log.backends.mysql.statements import sql

CONFIGURATION = Path(__file__).with_name("durable-server.cnf")
"""Settings for a server that keeps logs: durable first, then fast. Tests and benchmarks run on them."""

SHIPPED = ServerConfiguration(
    CONFIGURATION,
    sizes=frozenset(["max_allowed_packet", "innodb_log_file_size", "innodb_buffer_pool_size"]),
    speed=frozenset(["innodb_flush_method"]),
)


def read_durability(connection: DatabaseConnection) -> str:
    """``fsync``, ``os`` or ``memory``: what a commit on this server survives (a power loss, a crash of the server,
    neither). Raises :class:`ServerError`.
    """
    return durability(read_settings(connection, sql.DURABILITY_SETTINGS))


def durability(settings: Mapping[str, str]) -> str:
    """The durability that *settings* of a server give.

    With a binary log the server recovers what that log has, so that it must be as durable as the tables.
    """
    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush not in {"1", "2", "3"}:
        return "memory"
    binary_log_lags = settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1"
    torn_pages = settings.get("innodb_doublewrite") == "OFF"
    unsynced = settings.get("innodb_flush_method", "").lower() in {"nosync", "littlesync"}
    return "os" if flush == "2" or binary_log_lags or torn_pages or unsynced else "fsync"


def compare_server(address: MysqlAddress) -> tuple[str, list[ServerSetting]]:
    """The version of the server at *address*, and its settings beside the shipped ones. Raises :class:`LogError`."""
    found = server_settings(choose_driver(address), address, sql.SERVER_SETTINGS, MYSQL_ERRORS)
    return found.get("version", "unknown"), list(SHIPPED.compared(found))
