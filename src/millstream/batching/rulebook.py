"""Rules for some sources or keys that differ from those for all others."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.errors import ConfigError
from millstream.core.decoding import prepared
from millstream.core.plain_reasons import kind_at, plain_reason


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
            raise ConfigError("an override has neither a source nor a key: add a source, a key or both")
        for override in self.overrides:
            if override.config.mode != self.default.mode:
                raise ConfigError(
                    f"the override for {_place(override.source, override.key)} cannot change the mode, "
                    f"{self.default.mode}: remove mode from the override"
                )
        twice = {place for place in places if places.count(place) > 1}
        for source, key in sorted(twice, key=repr):
            raise ConfigError(f"two overrides are for {_place(source, key)}: keep one of them")

    @property
    def configs(self) -> list[BatchConfig]:
        """All rules, none twice, the default first."""
        return list(dict.fromkeys([self.default, *(override.config for override in self.overrides)]))

    @property
    def rules_text(self) -> str:
        """The rules as text, for messages."""
        others = (f"{o.source!r}/{o.key!r}: {o.config.rules_text}" for o in self.overrides)
        return "; ".join([self.default.rules_text, *others])

    @property
    def patience(self) -> int:
        """The longest time from an event to a clock at which something may still come of it, were it received last."""
        return max(config.patient.max_delay + config.window + 1 for config in self.configs)

    @property
    def needs_sizes(self) -> bool:
        """Whether a cap on bytes needs the size of every record."""
        return any(isinstance(config.max_bytes, int) for config in self.configs)

    @property
    def amends(self) -> bool:
        """Whether some batches come out before they are final."""
        return any(config.policy == "amend" for config in self.configs)

    @property
    def plain(self) -> dict[str, Any]:
        """The rules as JSON data: those of ``default``, and ``overrides`` where there are any."""
        told: dict[str, Any] = msgspec.to_builtins(self.default)
        return told | ({"overrides": msgspec.to_builtins(self.overrides)} if self.overrides else {})

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


RULE_NAMES = tuple(name for name in BatchConfig.__struct_fields__ if name != "mode")
"""The allowed members of an override besides ``source`` and ``key``: the members of :class:`BatchConfig` but for the
mode."""


def read_overrides(text: str, given: Mapping[str, Any], file: str = "the overrides") -> tuple[Override, ...]:
    """The overrides in a TOML document of ``[[override]]`` tables, which *file* names; see :func:`overrides_of`.

    Raises :class:`ConfigError`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"invalid TOML in {file}: {error}") from error
    if unknown := ", ".join(sorted(set(tables) - {"override"})):
        raise ConfigError(f"unknown keys in {file}: {unknown[:100]}; use only [[override]] tables")
    listed = tables.get("override", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise ConfigError(f"'override' in {file} is not a list of tables: write the header of each as [[override]]")
    try:
        return overrides_of(listed, given)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def overrides_of(tables: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[Override, ...]:
    """The overrides in *tables*; what one does not say is taken from *given*, members of :class:`BatchConfig`.

    A table has ``source`` or ``key`` or both, and members of :data:`RULE_NAMES`. The leap follows the delay as it does
    in :class:`BatchConfig`: where neither says it, it is the delay of the override; ``late = "reject"`` needs no grace.
    Raises :class:`ConfigError` that names the table by its number and by whom it is for.
    """
    return tuple(_override(number, table, given) for number, table in enumerate(tables, start=1))


def _override(number: int, table: Mapping[str, Any], given: Mapping[str, Any]) -> Override:
    place = {name: table.get(name) for name in ("source", "key")}
    whom = ", ".join(f"{name} {value!r}" for name, value in place.items() if value is not None)
    where = f"override {number}" + (f" ({whom})" if whom else "")
    rules = {name: value for name, value in table.items() if name not in place}
    for name in sorted(set(rules) - set(RULE_NAMES)):
        raise ConfigError(f"{where} has the unknown member {name!r}; allowed: source, key, {', '.join(RULE_NAMES)}")
    if rules.get("late") == "reject":
        rules.setdefault("grace", None)
    try:
        return msgspec.convert(place | {"config": {**given, **rules}}, prepared(Override))
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{where} is not valid: {_plain(error)}") from error


def _place(source: str | None, key: str | None) -> str:
    """The records that an override is for, as an error names them."""
    return " and ".join(f"{name} {value!r}" for name, value in (("source", source), ("key", key)) if value is not None)


def _plain(error: Exception) -> str:
    """*error* in plain words; of the path that msgspec adds, only the member that it is about."""
    text, _, path = str(error).partition(" - at `$")
    member = path.rstrip("`").rpartition(".")[2]
    text = plain_reason(text, kind_at(path, Override), "a table")
    return f"{member}: {text}" if member and member not in text else text
