"""The rules of the settings for logs by name: retention, and the tiering of older messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.core.amounts import Duration, Size
from millstream.log.errors import LogInputError
from millstream.log.kinds import is_system
from millstream.log.tiering.spec import Tiering
from millstream.log.upkeep.retention import Retention

if TYPE_CHECKING:
    from millstream.log.log import Log

_KEPT = tuple(name for name in Retention.__struct_fields__ if name != "keep_all")
_MOVED = tuple(name for name in Tiering.__struct_fields__ if name not in {"url", "folder"})


class LogRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for the logs whose names match ``log``; ``*`` matches any text without a dot. No rule applies to system
    logs.

    ``max_age``, ``max_bytes``, ``max_count``, ``keep_consumers`` and ``cap_bytes`` limit how much is kept. Older
    messages are moved to the URL ``tier``; ``segment_bytes``, ``keep_age``, ``keep_bytes`` and ``parquet`` are valid
    only with it. The page on upkeep (docs/upkeep.md#set-the-rules-of-many-logs) explains every setting.
    """

    log: str
    max_age: Duration | None = None
    max_bytes: Size | None = None
    max_count: int | None = None
    keep_consumers: bool = False
    cap_bytes: Size | None = None
    tier: str = ""
    segment_bytes: Size | None = None
    keep_age: Duration | None = None
    keep_bytes: Size | None = None
    parquet: bool = False

    def __post_init__(self) -> None:
        try:
            _ = self.retention, self.tiering
        except LogInputError as error:
            raise ValueError(str(error)) from error  # the reader of the settings adds the location

    def matches(self, name: str) -> bool:
        """Whether it holds for the log *name*."""
        return not is_system(name) and re.fullmatch(re.escape(self.log).replace(r"\*", r"[^.]*"), name) is not None

    @property
    def retention(self) -> Retention | None:
        """How much is kept; None where it does not say."""
        policy = Retention(**{name: getattr(self, name) for name in _KEPT})
        return None if policy == Retention() else policy

    @property
    def tiering(self) -> Tiering | None:
        """The tiering of older messages; None if there is none. Raises :class:`LogInputError`."""
        given = {name: getattr(self, name) for name in _MOVED if getattr(self, name) != _UNSAID[name]}
        if given and not self.tier:
            raise LogInputError(f"{', '.join(given)}: valid only with tier; set tier to the URL of an object store")
        return Tiering(self.tier, **given) if self.tier else None


_UNSAID = {field.name: field.default for field in msgspec.structs.fields(LogRule)}


def rule_for(name: str, rules: Sequence[LogRule]) -> LogRule | None:
    """The first of *rules* that holds for the log *name*; None where none does."""
    return next((rule for rule in rules if rule.matches(name)), None)


def apply_retention(log: Log, rules: Sequence[LogRule]) -> None:
    """Store the retention of the first of *rules* that matches *log*; a log that is kept whole stays so."""
    rule, kept = rule_for(log.name, rules), log.retention
    retention = None if rule is None else rule.retention
    if retention is not None and retention != kept and not (kept is not None and kept.keep_all):
        log.set_retention(retention)


def apply_tiering(log: Log, rules: Sequence[LogRule]) -> None:
    """Store the tiering of the first of *rules* that matches *log*.

    Raises :class:`LogInputError` where its objects lie at another URL already.
    """
    rule = rule_for(log.name, rules)
    if rule is not None and rule.tiering is not None:
        log.set_tiering(rule.tiering)
