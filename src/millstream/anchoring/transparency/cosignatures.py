"""When witnesses cosigned a checkpoint, in the form that programs and pages show."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.clock import MICROSECONDS

_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999. A witness may sign any."""


class Cosignature(msgspec.Struct, frozen=True):
    """The cosignature of a ``witness`` (its name in the policy), at a ``time`` by its own clock (microseconds; None for
    one that no calendar has).
    """

    witness: str
    time: int | None


def cosignatures(times: Mapping[str, int]) -> tuple[Cosignature, ...]:
    """*times* (seconds by name) in the order of the times."""
    rows = sorted(times.items(), key=lambda item: item[::-1])
    return tuple(Cosignature(name, at * MICROSECONDS if at <= _LAST_SECOND else None) for name, at in rows)
