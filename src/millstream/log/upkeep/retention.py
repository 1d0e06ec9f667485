"""How much of a log is kept: by age, bytes, count and what its consumers have acknowledged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.amounts import format_duration
from millstream.core.clock import MICROSECONDS
from millstream.log.errors import LogInputError

RETENTION = "retention"
"""The state in which a log keeps its policy."""

RETENTION_CLOCK = "retention/clock"
"""The state in which a log keeps the time of the last look at ages (microseconds, decimal)."""


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """The retention of a log; without a limit all messages are kept.

    Messages received more than ``max_age`` microseconds ago are trimmed, and the oldest ones while the log has more
    than ``max_count`` messages or ``max_bytes`` stored bytes. With ``keep_consumers`` messages that a consumer has not
    acknowledged are kept, unless the log then has more than ``cap_bytes``. With ``keep_all`` nothing is trimmed.
    """

    max_age: int | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    keep_consumers: bool = False
    cap_bytes: int | None = None
    keep_all: bool = False

    def __post_init__(self) -> None:
        for name in ("max_age", "max_bytes", "max_count", "cap_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise LogInputError(f"{name} must be 0 or more, not {value}")
        if self.cap_bytes is not None and not self.keep_consumers:
            raise LogInputError("cap_bytes requires keep_consumers: add keep_consumers")


class RetentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a policy on a log in its present state.

    The log will begin at ``first_id`` (None: it stays as it is), by ``messages`` fewer. ``pinned`` says how many
    messages that could go each consumer holds back, ``lost`` how many each consumer will never see. ``held`` says in
    words what was not done, and why.
    """

    log: str
    first_id: int | None
    messages: int = 0
    pinned: Mapping[str, int] = {}
    lost: Mapping[str, int] = {}
    held: tuple[str, ...] = ()
    freed_bytes: int = 0


def clock_problem(last_seen: int, now: int, max_age: int) -> str | None:
    """The reason why ages are not trusted at *now*, if they were last checked at *last_seen*; None if they are.

    A clock that has jumped ahead makes every message old. So a single look moves on by half of the age that is kept at
    most; times in microseconds.
    """
    if now - last_seen <= max_age // 2:
        return None
    seconds = (now - last_seen) // MICROSECONDS
    passed = f"{seconds:,} seconds" if seconds < 2 * 86_400 else f"{seconds / 86_400:,.1f} days"
    return (
        f"the clock is {passed} after the last check of ages, more than half of the maximum age "
        f"({format_duration(max_age)}): nothing was trimmed by age. If the clock is right, run `millstream log trim "
        "NAME --accept-clock` once"
    )
