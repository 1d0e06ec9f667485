"""The rules by which records are batched."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from millstream.batching.errors import ConfigError

ConflictCut = Literal["at_event", "midpoint"]
"""Where a repeated key cuts: just before the repeating record (seed document, UC3) or halfway between the two."""

Mode = Literal["order-free", "faithful"]
"""``order-free`` depends on the records alone; ``faithful`` replays thin-edge's algorithm, arrival order and all."""

RULES_VERSION = 1
"""Raised whenever the same records under the same numbers would give other batches."""


class BatchConfig(msgspec.Struct, frozen=True):
    """The rules of one batcher; every time is in the stream's ticks.

    ``window`` is the largest distance between the first and the last event time of a batch; ``max_delay`` the longest
    way a record may take from event to receipt; ``leap`` how far an event time may lie ahead of its receipt
    (``max_delay`` if None). Raises :class:`ConfigError` where a number is negative or a name unknown.
    """

    window: int
    max_delay: int
    leap: int | None = None
    conflict_cut: ConflictCut = "at_event"
    mode: Mode = "order-free"

    def __post_init__(self) -> None:
        if self.leap is None:
            msgspec.structs.force_setattr(self, "leap", self.max_delay)
        for name in ("window", "max_delay", "leap"):
            _check_ticks(name, getattr(self, name))
        _check_choice("conflict_cut", self.conflict_cut, get_args(ConflictCut))
        _check_choice("mode", self.mode, get_args(Mode))

    @property
    def lead(self) -> int:
        """The leap limit in ticks, resolved."""
        assert self.leap is not None
        return self.leap

    @property
    def version(self) -> str:
        """The rules as text, in one spelling only: part of every batch's identity."""
        numbers = f"window={self.window} max_delay={self.max_delay} leap={self.lead}"
        return f"{RULES_VERSION} {numbers} conflict_cut={self.conflict_cut} mode={self.mode}"


def _check_ticks(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ConfigError(f"{name} is {value!r}: give a whole number of ticks, zero or more and below 2^62")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}")
