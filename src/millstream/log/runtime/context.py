"""The shared context of writers and readers of one log."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from millstream.core.clock import Clock
from millstream.log.runtime.scheduler_thread import SchedulerThread
from millstream.log.runtime.tail import Tail
from millstream.log.runtime.writer_refusals import WriterRefusals

if TYPE_CHECKING:
    from millstream.log.tiering.backend import TieredBackend
    from millstream.log.tiering.spec import Compaction
    from millstream.log.upkeep.migration import LegacyLogNames


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """The backend of a log, the clock, the store's scheduler threads, the log's tail, for how long a lease holds, and
    the leases that were refused.

    ``renewals`` has a thread of its own: neither leases nor commits that no thread waits for hold up the others.
    ``names`` has the system logs that bear the names of an older release. Writers wait ``min_linger`` seconds for more
    messages, or longer if their spec asks for it. Logs in a bucket are compacted by ``compaction``; None: not at all.
    ``bodies_only`` where the backend has no place for anything but the bodies of messages.
    """

    backend: TieredBackend
    clock: Clock
    scheduler: SchedulerThread
    renewals: SchedulerThread
    tail: Tail
    lease_seconds: float
    names: LegacyLogNames
    refusals: WriterRefusals
    bodies_only: bool = False
    min_linger: float = 0.0
    compaction: Compaction | None = None
