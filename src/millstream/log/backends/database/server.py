"""How a server is set up, beside the configuration that we ship for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import msgspec

from millstream.log.backends.database.address import AddressT
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, ServerError
from millstream.log.backends.database.error_codes import ErrorCodes

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


class ServerSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a server: what it has, and what is shipped. ``ok`` where it is that, or for sizes more.

    ``guards_durability`` where confirmed messages depend on it; the others make a server fast. ``fix`` is what to do.
    """

    name: str
    found: str
    shipped: str
    ok: bool
    guards_durability: bool
    fix: str


class ServerConfiguration(msgspec.Struct, frozen=True):
    """A shipped configuration at *path*: ``sizes`` may be larger on a server, ``speed`` does not guard durability.

    ``outside`` names what is not set in a file of settings: what it should be, and how to get it.
    """

    path: Path
    sizes: Set[str]
    speed: Set[str] = frozenset()
    outside: Mapping[str, tuple[str, str]] = msgspec.field(default_factory=dict)

    def settings(self) -> dict[str, str]:
        """The settings in it, by name."""
        lines = (line.partition("#")[0].strip() for line in self.path.read_text("utf-8").splitlines())
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip().replace("-", "_"): value.strip().strip("'") for name, _, value in pairs}

    def compared(self, found: Mapping[str, str]) -> Iterator[ServerSetting]:
        """The settings that a server has *found*, beside those in here; servers do not have all of them."""
        for name, shipped in self.settings().items():
            if name in found:
                have = found[name]
                ok = _bytes(have) >= _bytes(shipped) if name in self.sizes else _plain(have) == _plain(shipped)
                guards_durability = name not in self.sizes and name not in self.speed
                fix = f"{name} = {shipped} in the server's configuration, as in {self.path}"
                yield ServerSetting(
                    name=name, found=have, shipped=shipped, ok=ok, guards_durability=guards_durability, fix=fix
                )
        for name, (wanted, fix) in self.outside.items():
            if name in found:
                yield ServerSetting(
                    name=name,
                    found=found[name],
                    shipped=wanted,
                    ok=found[name] == wanted,
                    guards_durability=True,
                    fix=fix,
                )


def _bytes(value: str) -> int:
    match = _SIZE.fullmatch(value)
    return int(match[1]) * _UNITS[match[2].upper()] if match else 0


def _plain(value: str) -> str:
    word = value.lower()
    return {"on": "1", "off": "0"}.get(word, word)


def read_settings(connection: DatabaseConnection, query: str) -> dict[str, str]:
    """The settings that *query* lists, by name. Raises :class:`ServerError`."""
    return {str(name): str(value) for name, value in connection.rows(query)}


def server_settings(
    driver: DatabaseDriver[AddressT], address: AddressT, query: str, error_codes: ErrorCodes
) -> dict[str, str]:
    """The settings of the server at *address*, as *query* lists them there. Raises :class:`LogError`."""
    try:
        connection = driver(address, database=False)
        try:
            return read_settings(connection, query)
        finally:
            connection.close()
    except ServerError as error:
        raise error_codes.explained(address.url, error) from error
