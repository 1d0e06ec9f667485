"""What a node looks like at one moment: the stations of the road, the queues, and what is not well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from millstream.queue import Depth
from millstream.status.verdict.models import Verdict


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at one moment (``at`` in microseconds): messages in all logs, batches that were handed to the batch
    writer, anchors, tasks that are open, and tasks that are dead."""

    at: int
    messages: int
    batches: int
    anchors: int
    open_tasks: int
    dead_tasks: int


class LogMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All logs of messages. ``lag`` is that of the slowest consumer of all, ``slowest``, in messages, and
    ``oldest_unprocessed_at`` when the first of these was received. Times in microseconds."""

    logs: int = 0
    messages: int = 0
    bytes: int = 0
    per_second: float = 0.0
    last_received_at: int | None = None
    lag: int = 0
    slowest: str | None = None
    oldest_unprocessed_at: int | None = None


class BatchedLog(msgspec.Struct, frozen=True):
    """What became of the ``messages`` that were ever appended to ``log``: in batches that were handed to the batch
    writer, rejected with a reason, and ``neither`` yet (their window is open, or they are ticks of the clock).

    ``batched`` is false for a log of which no batch or reject was ever handed over, and that no setting batches.
    """

    log: str
    batched: bool
    messages: int
    in_batches: int
    rejected: int
    neither: int


class BatchMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Batches: ``waiting`` for a cut, ``under_way`` to their anchor, and what was rejected.

    ``eligible`` messages were appended to logs that are batched: ``in_batches`` of them are in a batch,
    ``rejected_messages`` were rejected, ``neither`` are neither yet; ``unbatched`` messages are in ``unbatched_logs``.
    """

    batches: int = 0
    waiting: int = 0
    under_way: int = 0
    anchored: int = 0
    messages: int = 0
    rejected_messages: int = 0
    rejected_batches: int = 0
    per_minute: float = 0.0
    eligible: int = 0
    in_batches: int = 0
    neither: int = 0
    unbatched: int = 0
    unbatched_logs: int = 0


class AnchorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger: its entries, the hash of the last one, and how many the observer has not read yet (``behind``)."""

    anchors: int = 0
    head: str | None = None
    head_at: int | None = None
    behind: int = 0
    invalid: int = 0


class CopyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Copies on all stores; ``waiting`` counts tasks of duplication."""

    copies: int = 0
    bytes: int = 0
    stores: int = 0
    spaces: int = 0
    waiting: int = 0


class CheckMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of every bit: the share of copies whose state the last check found out (None where there are no
    copies), and what was found."""

    copies: int = 0
    checked: int = 0
    coverage: float | None = None
    failed: int = 0
    missing: int = 0
    oldest_check: int | None = None
    newest_check: int | None = None
    repairs_waiting: int = 0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One work queue. ``desired_workers`` is a figure for autoscalers, None for queues that no pool serves."""

    queue: str
    ready: int
    leased: int
    delayed: int
    dead: int
    exact: bool
    as_of: int
    desired_workers: int | None = None

    @classmethod
    def of(cls, queue: str, depth: Depth, desired_workers: int | None) -> Self:
        """The status of a queue with *depth*."""
        return cls(
            queue=queue,
            ready=depth.ready,
            leased=depth.leased,
            delayed=depth.delayed,
            dead=depth.dead,
            exact=depth.exact,
            as_of=depth.as_of,
            desired_workers=desired_workers,
        )


class QueueSample(msgspec.Struct, frozen=True, gc=False):
    """How many tasks of one queue stood where at one moment (``at`` in microseconds)."""

    at: int
    ready: int
    leased: int
    delayed: int
    dead: int


class QueueAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """What people are told of a queue while it lasts: ``kind`` is ``dead-letters``, ``too-many`` or ``too-old``.

    ``count`` are the tasks it is about; ``since`` is when this node was first seen so (microseconds).
    """

    queue: str
    kind: str
    message: str
    count: int
    since: int


class StateCount(msgspec.Struct, frozen=True):
    """The number of batches, or of operations on identifiers, in one state."""

    state: str
    count: int


class Fault(msgspec.Struct, frozen=True):
    """Something that is not well: how bad (``bad``, ``warn``), what, what is done about it, and the page about it."""

    kind: str
    severity: str
    text: str
    remedy: str
    page: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole road at one moment; ``counted_at`` is when the slower figures were counted (microseconds)."""

    at: int
    counted_at: int
    log: LogMetrics
    batches: BatchMetrics
    anchors: AnchorMetrics
    copies: CopyMetrics
    checks: CheckMetrics
    queues: Sequence[QueueStatus]
    faults: Sequence[Fault]
    verdict: Verdict

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong, and nothing unknown."""
        return self.verdict.ok
