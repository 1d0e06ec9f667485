"""Rules for some sources or keys that differ from those for all others."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.errors import ConfigError, GraceTooShortError
from millstream.core.decoding import prepared
from millstream.core.plain_reasons import kind_at, plain_reason
from millstream.core.timestamps import time_text


class Override(msgspec.Struct, frozen=True):
    """Other rules for a source, for a key of every source, or for one key of one source."""

    config: BatchConfig
    source: str | None = None
    key: str | None = None


class RuleChange(msgspec.Struct, frozen=True):
    """Other *rules* for the records from the event time ``since`` on that were received after ``decided``.

    The rules before accept no record from ``since`` on that was received up to ``decided``: it is too far ahead. So all
    such records are rejected by the rules that were in force when they came, and none is in a batch already.
    """

    since: int
    decided: int
    rules: Rulebook


class Rulebook(msgspec.Struct, frozen=True):
    """The rules of a batcher: ``default``, and ``overrides`` for some sources and keys.

    An override for a source and a key goes before one for the source, that before one for the key. Records of a source
    under different rules are batched apart, as if they were of two sources. ``changes`` are the later rules, by time;
    ``UNSET`` where the rules were never changed. Raises :class:`ConfigError` where an override names neither, two name
    the same, one changes the mode, or a change would be of records that may have been batched already.
    """

    default: BatchConfig
    overrides: tuple[Override, ...] = ()
    changes: tuple[RuleChange, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.changes is not msgspec.UNSET:
            _check_changes(self)
        places = [(override.source, override.key) for override in self.overrides]
        if (None, None) in places:
            raise ConfigError("an override has neither a source nor a key: add a source, a key or both")
        for override in self.overrides:
            if override.config.mode != self.default.mode:
                raise ConfigError(
                    f"the override for {_records(override.source, override.key)} has mode {override.config.mode}, but "
                    f"the default rules have mode {self.default.mode}: give the override the same mode"
                )
        twice = {place for place in places if places.count(place) > 1}
        for source, key in sorted(twice, key=repr):
            raise ConfigError(f"two overrides are for {_records(source, key)}: keep one of them")

    @property
    def later(self) -> tuple[RuleChange, ...]:
        """The changes of these rules; empty where they were never changed."""
        return self.changes if isinstance(self.changes, tuple) else ()

    @property
    def periods(self) -> tuple[Rulebook, ...]:
        """The first rules, then those of each change."""
        if not self.later:
            return (self,)
        return (Rulebook(self.default, self.overrides), *(change.rules for change in self.later))

    @property
    def current(self) -> Rulebook:
        """The latest rules."""
        return self.periods[-1]

    def changed(self, since: int, decided: int, rules: Rulebook) -> Rulebook:
        """These rules, then *rules*: see :class:`RuleChange`. Raises :class:`ConfigError`."""
        return Rulebook(self.default, self.overrides, (*self.later, RuleChange(since, decided, rules)))

    def period_at(self, event_time: int, received_at: int) -> int:
        """Which of :attr:`periods` is for a record with these times."""
        for number in range(len(self.later), 0, -1):
            change = self.later[number - 1]
            if event_time >= change.since and received_at > change.decided:
                return number
        return 0

    @property
    def lead(self) -> int:
        """How far a record may be ahead of its receipt under any of these rules."""
        return max(config.lead for config in self.configs)

    @property
    def configs(self) -> list[BatchConfig]:
        """All rules, none twice, the default first."""
        found = [self.default, *(override.config for override in self.overrides)]
        for change in self.later:
            found += change.rules.configs
        return list(dict.fromkeys(found))

    @property
    def rules_text(self) -> str:
        """The rules as text, for messages."""
        others = (f"{o.source!r}/{o.key!r}: {o.config.rules_text}" for o in self.overrides)
        later = (f"from {time_text(change.since)} on: {change.rules.rules_text}" for change in self.later)
        return "; ".join([self.default.rules_text, *others, *later])

    @property
    def patience(self) -> int:
        """The longest time from an event to a clock at which something may still come of it, were it received last."""
        return max(config.patient.max_delay + config.window + 1 for config in self.configs)

    def patience_at(self, clock: int | None) -> int:
        """:attr:`patience`, of the rules only by which batches can be open at *clock*."""
        open_until = ((period.patience, change.since) for period, change in zip(self.periods, self.later, strict=False))
        lasting = [patience for patience, since in open_until if clock is None or clock <= since + patience]
        return max([self.current.patience, *lasting])

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
        """The rules as JSON data: those of ``default``, and ``overrides`` and ``changes`` where there are any."""
        told: dict[str, Any] = msgspec.to_builtins(self.default)
        told |= {"overrides": msgspec.to_builtins(self.overrides)} if self.overrides else {}
        changes = [{"since": c.since, "decided": c.decided, "rules": c.rules.plain} for c in self.later]
        return told | ({"changes": changes} if changes else {})

    def chooser(self) -> Callable[[str, str], BatchConfig]:
        """The function that gives the first rules for a source and a key."""
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
    records = _records(place["source"], place["key"])
    where = f"override {number}" + (f" for {records}" if records else "")
    rules = {name: value for name, value in table.items() if name not in place}
    for name in sorted(set(rules) - set(RULE_NAMES)):
        raise ConfigError(f"{where} has the unknown member {name!r}; allowed: source, key, {', '.join(RULE_NAMES)}")
    if rules.get("late") == "reject":
        rules.setdefault("grace", None)
    try:
        return msgspec.convert(place | {"config": {**given, **rules}}, prepared(Override))
    except GraceTooShortError as error:
        raise GraceTooShortError(error.grace, error.window, f"{where} is not valid: ") from error
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{where} is not valid: {_plain(error)}") from error


def _check_changes(book: Rulebook) -> None:
    """Raise :class:`ConfigError` for changes that are not in order, or of records that may have been batched."""
    if not book.later:
        raise ConfigError("the list of changes is empty: omit it")
    if any(rules.default.mode == "faithful" for rules in book.periods):
        raise ConfigError("the rules of mode faithful cannot change: its batches depend on the order of arrival")
    for before, change in zip(book.periods, book.later, strict=False):
        if change.rules.later:
            raise ConfigError("the rules of a change cannot have changes of their own: list all changes by time")
        if change.since <= change.decided + before.lead:
            raise ConfigError(
                f"the rules cannot change at {time_text(change.since)}: records up to "
                f"{time_text(change.decided + before.lead)} may be in a batch already; choose a later time"
            )
    for one, other in pairwise(book.later):
        if other.since <= one.since or other.decided < one.decided:
            raise ConfigError(
                f"the rules cannot change at {time_text(other.since)}: they already change at {time_text(one.since)}; "
                "choose a later time"
            )


def _records(source: Any, key: Any) -> str:
    """The records that an override is for, as an error names them."""
    return " and ".join(f"{name} {value!r}" for name, value in (("source", source), ("key", key)) if value is not None)


def _plain(error: Exception) -> str:
    """*error* in plain words; of the path that msgspec adds, only the member that it is about."""
    text, _, path = str(error).partition(" - at `$")
    member = path.rstrip("`").rpartition(".")[2]
    text = plain_reason(text, kind_at(path, Override), "a table")
    return f"{member}: {text}" if member and member not in text else text
