"""The state of a node at one moment: its parts, the queues, and the current issues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from millstream.log import Kind
from millstream.queue import Depth
from millstream.status.verdict.models import Verdict


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at the time ``at`` (microseconds): messages in all logs, batches accepted by the batch writer, anchors,
    open tasks, and dead tasks.
    """

    at: int
    messages: int
    batches: int
    anchors: int
    open_tasks: int
    dead_tasks: int


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a consumer, in messages, and the receive time of the first of these (microseconds)."""

    log: str
    consumer: str
    pointer: int
    lag: int
    oldest_at: int | None


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a log.

    ``kind`` is its purpose, as stored. ``bytes`` is the stored size; times are in microseconds (None in an empty log);
    ``lag`` is the lag of its slowest consumer.
    """

    log: str
    kind: Kind
    first_id: int
    last_id: int
    messages: int
    bytes: int
    first_received_at: int | None
    last_received_at: int | None
    consumers: int
    lag: int
    writer: str | None


class LogMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All message logs. ``lag`` is the lag of the slowest consumer, ``slowest``, in messages; ``oldest_unprocessed_at``
    is the receive time of the first of these messages. Times in microseconds.
    """

    logs: int = 0
    messages: int = 0
    bytes: int = 0
    per_second: float = 0.0
    last_received_at: int | None = None
    lag: int = 0
    slowest: str | None = None
    oldest_unprocessed_at: int | None = None


class BatchedLog(msgspec.Struct, frozen=True):
    """The states of all ``messages`` ever appended to ``log``: in accepted batches, rejected with a reason, or
    ``neither`` (their window is open, or they are ticks).

    ``batched`` is false for a log without batches and rejects that no setting batches.
    """

    log: str
    batched: bool
    messages: int
    in_batches: int
    rejected: int
    neither: int


class BatchMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Batches: ``waiting`` to be anchored, ``under_way`` (being anchored), and rejected ones.

    ``eligible`` is the number of messages of logs that are batched: ``in_batches`` are in a batch,
    ``rejected_messages`` were rejected, ``neither`` are still open. ``unbatched`` messages are in ``unbatched_logs``.
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
    """The ledger: its number of entries, the hash of the last one, and how many the observer has not read yet
    (``behind``).
    """

    anchors: int = 0
    head: str | None = None
    head_at: int | None = None
    behind: int = 0
    invalid: int = 0


class CopyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Copies on all stores; ``waiting`` is the number of duplication tasks, ``dead`` of those failed permanently."""

    copies: int = 0
    bytes: int = 0
    stores: int = 0
    spaces: int = 0
    waiting: int = 0
    dead: int = 0


class CheckMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Integrity checks: the share of copies with a known state (None without copies), and the findings.

    ``dead`` is the number of checks and repairs that failed permanently.
    """

    copies: int = 0
    checked: int = 0
    coverage: float | None = None
    failed: int = 0
    missing: int = 0
    oldest_check: int | None = None
    newest_check: int | None = None
    repairs_waiting: int = 0
    dead: int = 0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A work queue. ``desired_workers`` is the recommended number of workers for autoscalers (None for queues that no
    pool serves).
    """

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
    """The number of tasks of one queue by state, at the time ``at`` (microseconds)."""

    at: int
    ready: int
    leased: int
    delayed: int
    dead: int


class QueueAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm about a queue: ``kind`` is ``dead-letters``, ``too-many`` or ``too-old``.

    ``count`` is the number of affected tasks; ``since`` is when this node first saw it (microseconds).
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
    """A problem: its severity (``bad`` or ``warn``), its description, its remedy, and its page."""

    kind: str
    severity: str
    text: str
    remedy: str
    page: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The overview at one time; ``counted_at`` is the time of the slower counts (microseconds). ``unreadable`` names
    the steps (``log``, ``batches``, ``anchors``, ``copies``, ``checks``) with counts that cannot be read and are 0, and
    ``queues`` if no queue can be read.
    """

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
    unreadable: Sequence[str] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong, and nothing unknown."""
        return self.verdict.ok
