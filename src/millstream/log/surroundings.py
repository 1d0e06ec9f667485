"""What writers and readers of one log share."""

from __future__ import annotations

import dataclasses

from millstream.core.clock import Clock
from millstream.log.housekeeper import Housekeeper
from millstream.log.migration import FormerNames
from millstream.log.tail import Tail
from millstream.log.tiering.backend import TieredBackend


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The backend of a log, the clock, the store's housekeeper, the log's tail, and for how long a lease holds.

    ``names`` has the system logs that bear the names of an older release.
    ``bodies_only`` where the backend has no place for anything but the bodies of messages.
    """

    backend: TieredBackend
    clock: Clock
    keeper: Housekeeper
    tail: Tail
    lease_seconds: float
    names: FormerNames
    bodies_only: bool = False
