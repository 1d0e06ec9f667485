"""Rules for some sources or keys that differ from those for all others."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from millstream.batching.config import BatchConfig
from millstream.batching.errors import ConfigError


class Override(msgspec.Struct, frozen=True):
    """Other rules for a source, for a key of every source, or for one key of one source."""

    config: BatchConfig
    source: str | None = None
    key: str | None = None


class Rulebook(msgspec.Struct, frozen=True):
    """The rules of a batcher: ``default``, and ``overrides`` for some sources and keys.

    An override for a source and a key goes before one for the source, that before one for the key. Records of a source
    under different rules are batched apart, as if they were of two sources. Raises :class:`ConfigError` where an
    override names neither, two name the same, or one changes the mode.
    """

    default: BatchConfig
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        places = [(override.source, override.key) for override in self.overrides]
        if (None, None) in places:
            raise ConfigError("an override names neither a source nor a key: whom is it for?")
        if any(override.config.mode != self.default.mode for override in self.overrides):
            raise ConfigError(f"an override cannot change the mode: all of a batcher is {self.default.mode}")
        twice = {place for place in places if places.count(place) > 1}
        for source, key in sorted(twice, key=repr):
            raise ConfigError(f"there are two overrides for source {source!r} and key {key!r}: keep one")

    @property
    def configs(self) -> list[BatchConfig]:
        """All rules, none twice, the default first."""
        return list(dict.fromkeys([self.default, *(override.config for override in self.overrides)]))

    @property
    def version(self) -> str:
        """The rules as text, for messages."""
        others = (f"{o.source!r}/{o.key!r}: {o.config.version}" for o in self.overrides)
        return "; ".join([self.default.version, *others])

    def chooser(self) -> Callable[[str, str], BatchConfig]:
        """The function that gives the rules for a source and a key."""
        table = {(override.source, override.key): override.config for override in self.overrides}
        default = self.default

        def choose(source: str, key: str) -> BatchConfig:
            for place in ((source, key), (source, None), (None, key)):
                if place in table:
                    return table[place]
            return default

        return choose


def read_overrides(text: str, given: Mapping[str, Any]) -> tuple[Override, ...]:
    """The overrides in a TOML document of ``[[override]]`` tables; what one does not say is taken from *given*.

    A table has ``source`` or ``key`` or both, and members of :class:`BatchConfig`. Raises :class:`ConfigError`.
    """
    try:
        tables = tomllib.loads(text)
        return tuple(_override(table, given) for table in _listed(tables))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the overrides cannot be read: {error}") from error


def _listed(tables: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = tables.get("override", [])
    if set(tables) - {"override"} or not isinstance(listed, list):
        raise ConfigError("the overrides are tables of the name [[override]], and nothing else")
    return listed


def _override(table: Mapping[str, Any], given: Mapping[str, Any]) -> Override:
    rules = {name: value for name, value in table.items() if name not in ("source", "key")}
    known = {field.name for field in msgspec.structs.fields(BatchConfig)}
    for name in sorted(set(rules) - known):
        raise ConfigError(f"an override has the member {name!r}: choose from source, key, {', '.join(sorted(known))}")
    place = {name: table.get(name) for name in ("source", "key")}
    return msgspec.convert(place | {"config": {**given, **rules}}, Override)
