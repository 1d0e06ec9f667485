"""What a torture does, and what it found."""

from __future__ import annotations

import msgspec

from millstream.log.reading.reader import ACK_SECONDS

LOG = "torture"
"""The log that is tortured, in a store of its own."""

PRODUCER = CONSUMER = "torture"

GRACE_SECONDS = 5.0
"""How much longer than its window storing an acknowledgement may take on a machine that is this busy."""


class TorturePlan(msgspec.Struct, frozen=True):
    """How many processes to kill, or for how many seconds to continue killing (whichever ends first), drawn by *seed*.

    Writers wait for each pack, or continue while the last packs, ``ahead`` of them, are under way.
    """

    kills: int = 20
    seconds: float | None = None
    seed: int = 0
    ahead: int = 0


class TortureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and found. ``window`` is for how many seconds an acknowledgement may be lost with its reader."""

    store: str
    seed: int
    seconds: float
    writers_killed: int
    readers_killed: int
    databases_killed: int
    packs_confirmed: int
    messages_stored: int
    messages_delivered: int
    redelivered_most: int
    window: float
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


WINDOW_SECONDS = ACK_SECONDS + GRACE_SECONDS
