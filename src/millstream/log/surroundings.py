"""What writers and readers of one log share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from millstream.core.clock import Clock
from millstream.log.housekeeper import Housekeeper
from millstream.log.tail import Tail
from millstream.log.tiering.backend import TieredBackend

if TYPE_CHECKING:
    from millstream.log.migration import FormerNames


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
