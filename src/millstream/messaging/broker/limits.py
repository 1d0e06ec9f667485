"""The limits of a broker and the delivery rules of a consumer group."""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.messaging.broker.delivery.group_delivery import RENEW_STEP
from millstream.messaging.broker.settings import BACKOFF, MAX_ATTEMPTS, BrokerSettings, check_retries

MAX_DELAY: Final = 24 * 3600 * 1_000_000
"""The longest delay of a message, in microseconds."""


class GroupSpec(msgspec.Struct, frozen=True):
    """The maximum number of deliveries of a message to a group (``max_attempts``, 1 to 1,000), and the pauses between
    them (``backoff``, in microseconds: at most 100 pauses of at most 12 hours; the last one repeats). 0 and an empty
    list mean the broker's settings.
    """

    name: str
    max_attempts: int = 0
    backoff: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_retries(self.max_attempts, self.backoff, f"group {self.name!r}: ")


class Limits(msgspec.Struct, frozen=True):
    """The limits and time-outs of a broker; times in microseconds.

    Receives may ask for ``shortest`` to ``longest`` invisibility and ``batch`` messages; what the broker renews is
    hidden for ``renewed_for`` at a time. If a group has no rules, a message is delivered ``max_attempts`` times, then
    it is dead; between them consumers are told to wait for ``backoff`` (the last one repeats). A producer is asked
    about a transaction first after ``first_check``, then again ``check_every``, ``max_checks`` times in all. After
    ``snapshot_after`` events the journal is summed up and trimmed. Put off with TOO_MANY_REQUESTS are sends while more
    than ``max_pending_bytes`` bytes are being stored, and receives and pulls that have to wait while ``max_waiting``
    others do.
    """

    shortest: int = 10 * 1_000_000
    longest: int = 12 * 3600 * 1_000_000
    shortest_poll: int = 0
    longest_poll: int = 20 * 1_000_000
    renewed_for: int = RENEW_STEP
    batch: int = 1024
    max_delay: int = MAX_DELAY
    max_attempts: int = MAX_ATTEMPTS
    backoff: tuple[int, ...] = BACKOFF
    first_check: int = 6 * 1_000_000
    check_every: int = 30 * 1_000_000
    max_checks: int = 15
    snapshot_after: int = 20_000
    max_pending_bytes: int = 32 << 20
    max_waiting: int = 10_000


def limits_of(settings: BrokerSettings) -> Limits:
    """The limits of a broker with these *settings*."""
    return Limits(max_attempts=settings.max_attempts, backoff=settings.backoff)
