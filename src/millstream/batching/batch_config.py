"""The rules by which records are batched."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, get_args

import msgspec

from millstream.batching.errors import ConfigError, GraceTooShortError

ConflictCut = Literal["at_event", "midpoint"]
"""Where a repeated key cuts: just before the repeating record (seed document, UC3) or halfway between the two."""

BatchingMode = Literal["order-free", "faithful"]
"""``order-free`` depends on the records alone; ``faithful`` replays thin-edge's algorithm, arrival order and all."""

LatePolicy = Literal["reject", "side", "amend"]
"""The policy for a record that took longer than ``max_delay``, but no longer than ``max_delay + grace``: it is
rejected, batched separately with other late records, or amends the batches that were published without it."""

RULES_VERSION = 1
"""Raised whenever the same records under the same numbers would give other batches."""


_LIMIT = 2**62
"""Above every number that a rule may have."""


class SizeLimits(msgspec.Struct, frozen=True):
    """How much a batch may hold: ``count`` records and ``size`` bytes; beyond all reach where one is not set."""

    count: int
    size: int


class BatchConfig(msgspec.Struct, frozen=True, dict=True):
    """The rules of one batcher; every time is in the stream's ticks.

    ``window`` is the largest distance between the first and the last event time of a batch; ``max_delay`` the longest
    way a record may take from event to receipt; ``leap`` how far an event time may lie ahead of its receipt
    (``max_delay`` if None). A batch holds at most ``max_count`` records and ``max_bytes`` bytes (the sum of their
    sizes; a single record may be larger); 0 or None is no cap. ``late`` is ``reject`` if not given, and the
    other policies need ``grace``. What is not set is kept as ``UNSET``, so that it is absent in every encoding too.
    Raises :class:`ConfigError` where a number is negative or a name unknown.
    """

    window: int
    max_delay: int
    leap: int | None = None
    conflict_cut: ConflictCut = "at_event"
    mode: BatchingMode = "order-free"
    max_count: int | msgspec.UnsetType | None = None
    max_bytes: int | msgspec.UnsetType | None = None
    late: LatePolicy | msgspec.UnsetType | None = None
    grace: int | msgspec.UnsetType | None = None

    def __post_init__(self) -> None:
        if self.leap is None:
            msgspec.structs.force_setattr(self, "leap", self.max_delay)
        for name in ("window", "max_delay", "leap"):
            _check_ticks(name, getattr(self, name))
        _check_choice("conflict_cut", self.conflict_cut, get_args(ConflictCut))
        _check_choice("mode", self.mode, get_args(BatchingMode))
        for name in ("max_count", "max_bytes"):
            _check_cap(self, name)
        _check_late(self)

    @property
    def lead(self) -> int:
        """The leap limit in ticks, resolved."""
        assert self.leap is not None
        return self.leap

    @property
    def caps(self) -> SizeLimits | None:
        """The caps on a batch; None where there are none."""
        count, size = self.max_count, self.max_bytes
        if not isinstance(count, int) and not isinstance(size, int):
            return None
        return SizeLimits(count if isinstance(count, int) else _LIMIT, size if isinstance(size, int) else _LIMIT)

    @property
    def policy(self) -> LatePolicy:
        """The policy for late records."""
        return "reject" if self.late is None or isinstance(self.late, msgspec.UnsetType) else self.late

    @property
    def punctual(self) -> BatchConfig:
        """These rules for the records that are not late."""
        return msgspec.structs.replace(self, late=None, grace=None)

    @property
    def patient(self) -> BatchConfig:
        """These rules for all the records that are taken, late ones too."""
        grace = self.grace if isinstance(self.grace, int) else 0
        return msgspec.structs.replace(self, max_delay=self.max_delay + grace, late=None, grace=None)

    @cached_property
    def rules_text(self) -> str:
        """The rules as text, in one spelling only: part of every batch's identity (kept once it was asked for)."""
        numbers = f"window={self.window} max_delay={self.max_delay} leap={self.lead}"
        text = f"{RULES_VERSION} {numbers} conflict_cut={self.conflict_cut} mode={self.mode}"
        if isinstance(self.max_count, int):
            text += f" max_count={self.max_count}"
        if isinstance(self.max_bytes, int):
            text += f" max_bytes={self.max_bytes}"
        if self.policy != "reject":
            text += f" late={self.policy} grace={self.grace}"
        return text


def _check_ticks(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ConfigError(
            f"invalid {name} {value!r}: give a whole number from 0 to 2^62 - 1, in the time unit of the records"
        )


def _check_cap(config: BatchConfig, name: str) -> None:
    value = getattr(config, name)
    if value is None or value is msgspec.UNSET or (type(value) is int and value == 0):
        msgspec.structs.force_setattr(config, name, msgspec.UNSET)
        return
    if type(value) is not int or not 1 <= value < _LIMIT:
        raise ConfigError(f"invalid {name} {value!r}: give a whole number from 0 (no limit) to 2^62 - 1")
    if config.mode == "faithful":
        raise ConfigError(f"{name} is {value:,}, but mode faithful does not support limits: omit {name}")


def _check_late(config: BatchConfig) -> None:
    policy, grace = config.policy, config.grace
    if policy == "reject":
        if grace is not None and grace is not msgspec.UNSET:
            raise ConfigError("grace is set, but late is reject: set late to side or amend, or omit grace")
        msgspec.structs.force_setattr(config, "late", msgspec.UNSET)
        msgspec.structs.force_setattr(config, "grace", msgspec.UNSET)
        return
    _check_choice("late", policy, get_args(LatePolicy))
    if grace is None or grace is msgspec.UNSET:
        raise ConfigError(f"late is {policy}, but grace is not set: set grace, or set late to reject")
    _check_ticks("grace", grace)
    if config.mode == "faithful":
        raise ConfigError(f"late is {policy}, but mode faithful always rejects late records: omit late")
    if policy == "amend" and isinstance(grace, int) and grace < config.window:
        raise GraceTooShortError(grace, config.window)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"invalid {name} {value!r}: choose one of {', '.join(choices)}")
