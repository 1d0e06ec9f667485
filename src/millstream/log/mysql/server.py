"""How a server is set up: whether a confirmed message survives a power loss, and what differs from what we ship."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from millstream.log.mysql import statements as sql
from millstream.log.mysql.driver import Connection, ServerError, choose_driver
from millstream.log.mysql.failures import explained
from millstream.log.mysql.place import Place

CONFIGURATION = Path(__file__).with_name("durable-server.cnf")
"""Settings for a server that keeps logs: durable first, then fast. Tests and benchmarks run on them."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG]?)", re.IGNORECASE)
_SIZES = frozenset(["max_allowed_packet", "innodb_log_file_size", "innodb_buffer_pool_size"])
"""Settings of which a server may have more than we ship, and that make it fast, not durable."""


class Setting(msgspec.Struct, frozen=True):
    """One setting of a server: what it has, and what is shipped. ``ok`` where it is that, or for sizes more."""

    name: str
    found: str
    shipped: str
    ok: bool

    @property
    def guards_durability(self) -> bool:
        """Whether confirmed messages depend on it."""
        return self.name not in _SIZES and self.name != "innodb_flush_method"


def read_durability(connection: Connection) -> str:
    """``fsync``, ``os`` or ``memory``: what a commit on this server survives (a power loss, a crash of the server,
    neither). Raises :class:`ServerError`.
    """
    return durability(_settings(connection))


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


def compare_server(place: Place) -> tuple[str, list[Setting]]:
    """The version of the server at *place*, and its settings beside the shipped ones. Raises :class:`LogError`."""
    try:
        connection = choose_driver(place)(place, database=False)
        try:
            found = _settings(connection)
        finally:
            connection.close()
    except ServerError as error:
        raise explained(place.url, error) from error
    return found.get("version", "unknown"), list(_compared(found))


def shipped_settings() -> dict[str, str]:
    """The settings of :data:`CONFIGURATION`."""
    lines = (line.partition("#")[0].strip() for line in CONFIGURATION.read_text("utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip().replace("-", "_"): value.strip() for name, _, value in pairs}


def _compared(found: Mapping[str, str]) -> Iterator[Setting]:
    for name, shipped in shipped_settings().items():
        if name in found:  # MariaDB and MySQL do not have all of them
            have = found[name]
            ok = _bytes(have) >= _bytes(shipped) if name in _SIZES else _plain(have) == _plain(shipped)
            yield Setting(name, have, shipped, ok)


def _settings(connection: Connection) -> dict[str, str]:
    return {str(name): str(value) for name, value in connection.rows(sql.SERVER_SETTINGS)}


def _bytes(value: str) -> int:
    match = _SIZE.fullmatch(value)
    return int(match[1]) * _UNITS[match[2].upper()] if match else 0


def _plain(value: str) -> str:
    word = value.lower()
    return {"on": "1", "off": "0"}.get(word, word)
