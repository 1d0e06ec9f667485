"""The facts about a node, from which the verdict is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.queue import Depth
from millstream.settings import AlarmSettings
from millstream.settings.verdict import VerdictSettings
from millstream.status.disk_usage import Disk, Usage
from millstream.status.snapshot import StatusSnapshot
from millstream.status.verdict.clock_watch import ClockStep
from millstream.status.verdict.copies import CopiesStatus
from millstream.status.verdict.process import ProcessState
from millstream.status.verdict.store_watch import StoreState


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring poll of a node: the time at which it last ended (microseconds), and the obstacle of the next one.

    ``is_late`` says that it should have come to an end again by now.
    """

    name: str
    ended_at: int | None
    error: str = ""
    is_late: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a node at ``at`` (microseconds). None means not known yet.

    ``unreadable`` says why queues cannot be read; ``patience`` is the longest time (microseconds) after which a message
    is in a batch or rejected, by the settings and services of this process. ``anchor_every`` is the interval of anchors
    (microseconds). ``alarms`` has the limits of queues. ``step`` says that the clock was set. ``disks`` have their
    pace, ``usage`` what the parts of the node take.
    """

    at: int
    limits: VerdictSettings
    snapshot: StatusSnapshot
    process: ProcessState = ProcessState()
    step: ClockStep | None = None
    copies: CopiesStatus | None
    stores: Sequence[StoreState]
    depths: Mapping[str, Depth]
    unreadable: Mapping[str, str]
    alarms: AlarmSettings
    patience: int
    anchor_every: int = 0
    looks: Sequence[Look] = ()
    disks: Sequence[Disk] = ()
    usage: Sequence[Usage] = ()
