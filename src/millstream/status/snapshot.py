"""The slower figures of a node: one look at all logs, the journal, the ledger, and the manifest of copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from millstream.anchoring.index import IndexTotals
from millstream.anchoring.journal_reader import CutReasonCount, RejectCount
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.registry.follow_state import FollowState
from millstream.anchoring.states import JournalTotals
from millstream.batching.batch_log_origin import read_origin
from millstream.core.errors import BusyError, MillstreamError
from millstream.log import DATA_KINDS, SYSTEM_KINDS, Gap, Log, LogInfo, LogNotFoundError, is_system
from millstream.mill.duplication.change_guard import PendingApproval
from millstream.mill.duplication.held_items import HeldCount
from millstream.mill.manifest import ManifestRow
from millstream.mill.reports.coverage import SpaceCoverage, coverage_of, findings_of
from millstream.mill.tasks import QueueName
from millstream.node.members.members_status import MembersStatus
from millstream.queue import DeadLetterGroup, queue_name
from millstream.status.ledger_signatures import CosigningLedger, UnsignedLedger, cosigning_ledgers, unsigned_ledgers
from millstream.status.ledger_timestamps import StampedLedger, stamped_ledgers
from millstream.status.message_counts import MessageCounts, batched_logs, count_messages
from millstream.status.models import (
    AnchorMetrics,
    BatchedLog,
    BatchMetrics,
    CheckMetrics,
    CopyMetrics,
    Lag,
    LogMetrics,
    LogRow,
    QueueStatus,
)
from millstream.status.node_view import NodeView
from millstream.status.verdict.copies import LookStoppedError
from millstream.status.verdict.store_watch import disk_free

Value = TypeVar("Value")

MOST_FINDINGS = 2_000
MESSAGES, ENDS, REJECTS = "messages of batches", "ends of batches", "rejected messages"
JOURNAL, ANCHORS, OBSERVER, LEDGER = "journal", "anchors", "observer", "ledger"
LOGS, MANIFEST, FINDINGS, HELD_ITEMS = "logs", "manifest", "findings", "held items"
"""Parts of a snapshot, as its troubles name them."""

BATCHING = "batching"
"""The producer of a batch service on its output log."""


def log_part(name: str) -> str:
    """The log *name* as a part of a snapshot."""
    return f"log {name}"


def unread_part(name: str) -> str:
    """The messages of the log *name* that a consumer has not read, as a part of a snapshot; the log itself is known."""
    return f"unread messages of {name}"


_OWN_CONSUMERS = frozenset({"snapshot"})


class UnreadablePartError(BusyError):
    """A part of the node could not be read when its status was looked at last."""


class BatchLag(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of ``log`` that are to be batched into ``output`` and that no batch or reject came of yet: ``messages``
    of them, the first received at ``oldest_at`` (microseconds), None where there are none.

    ``patience`` is the longest time (microseconds) until that one is batched or rejected by the rules of ``output``;
    None where these are not known, or not needed yet.
    """

    log: str
    output: str
    messages: int
    oldest_at: int | None
    patience: int | None = None


class StatusSnapshot(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """The snapshot at ``at`` (microseconds), taken in ``seconds``; ``troubles`` names what could not be looked at. What
    stands in the place of that part is no fact: ask :meth:`knows` or :meth:`require` before you show it. ``is_taken``
    is false for what stands in the place of the first snapshot.

    ``following`` is the state of a registry that follows another one.
    ``spaces`` are the worst first: those with findings, then those that are checked least and longest ago.
    ``approvals`` are plans that wait for a person, ``held_items`` counts what plans would delete or replace and what
    has no original, ``batch_lags`` are logs that are to be batched, ``without_worker`` the queues with open tasks
    that no worker holds (none of those on a broker), ``orphans`` their leased tasks by queue, and ``only_cause`` the
    cause of the dead tasks of a queue where all have the same, ``dead_since`` when the first of them died.
    ``former_tasks`` counts the open and dead tasks of queues that the settings name no more.
    ``behind_since`` is when the first anchor was made that is not verified, ``waiting_since`` when the first batch was
    accepted that waits for an anchor. ``unsigned`` are ledgers whose last entries have no checkpoint that is given out,
    ``cosigning`` those that witnesses cosign, and ``stamping`` those that authorities stamp. ``members`` is None for a
    node whose database is a file.
    """

    at: int
    seconds: float
    logs: Sequence[LogRow] = ()
    lags: Sequence[Lag] = ()
    journal: JournalTotals = JournalTotals()
    index: IndexTotals = IndexTotals(0, 0, 0, 0, 0, 0)
    head: LedgerEntry | None = None
    position: int = 0
    spaces: Sequence[SpaceCoverage] = ()
    findings: Sequence[ManifestRow] = ()
    holds: int = 0
    ends: Sequence[CutReasonCount] = ()
    rejects: Sequence[RejectCount] = ()
    batched: Sequence[BatchedLog] = ()
    free_bytes: int | None = None
    troubles: Mapping[str, str] = {}
    following: FollowState | None = None
    approvals: Sequence[PendingApproval] = ()
    held_items: Sequence[HeldCount] = ()
    without_worker: frozenset[str] = frozenset()
    batch_lags: Sequence[BatchLag] = ()
    orphans: Mapping[str, int] = {}
    only_cause: Mapping[str, str] = {}
    dead_since: Mapping[str, int] = {}
    former_tasks: Mapping[str, int] = {}
    behind_since: int | None = None
    waiting_since: int | None = None
    unsigned: Sequence[UnsignedLedger] = ()
    cosigning: Sequence[CosigningLedger] = ()
    stamping: Sequence[StampedLedger] = ()
    members: MembersStatus | None = None
    is_taken: bool = True

    def knows(self, *parts: str) -> bool:
        """Whether all *parts* could be read."""
        return self.is_taken and self.troubles.keys().isdisjoint(parts)

    def require(self, *parts: str) -> None:
        """Raise :class:`UnreadablePartError` if one of *parts* could not be read."""
        if not self.is_taken:
            raise UnreadablePartError("the status of the node has not been read yet: try again in a minute")
        for part in parts:
            if part in self.troubles:
                raise UnreadablePartError(f"{part} cannot be read: {self.troubles[part]}")

    @cached_property
    def unreadable_logs(self) -> Mapping[str, str]:
        """The logs that could not be read, as :func:`log_part` names them, with the reasons."""
        return {part: why for part, why in self.troubles.items() if part.startswith(log_part(""))}

    @cached_property
    def unreadable_user_logs(self) -> Mapping[str, str]:
        """Those of :attr:`unreadable_logs` that may have messages of users."""
        begin = log_part("")
        return {part: why for part, why in self.unreadable_logs.items() if not is_system(part.removeprefix(begin))}

    @cached_property
    def space_names(self) -> Sequence[str]:
        """The names of all spaces of all stores, in order."""
        return sorted({row.space for row in self.spaces})

    @cached_property
    def copies(self) -> CopyMetrics:
        """All copies together; what waits for workers is not known here."""
        rows = self.spaces
        stores, spaces = {row.store for row in rows}, {row.space for row in rows}
        return CopyMetrics(
            copies=sum(row.items for row in rows),
            bytes=sum(row.bytes for row in rows),
            stores=len(stores),
            spaces=len(spaces),
        )

    @cached_property
    def checks(self) -> CheckMetrics:
        """All checks together; the repairs that wait are not known here."""
        rows = self.spaces
        items, checked = sum(row.items for row in rows), sum(row.checked for row in rows)
        return CheckMetrics(
            copies=items,
            checked=checked,
            coverage=checked / items if items else None,
            failed=sum(row.failed for row in rows),
            missing=sum(row.missing for row in rows),
            oldest_check=min((row.oldest_check for row in rows if row.oldest_check is not None), default=None),
            newest_check=max((row.newest_check for row in rows if row.newest_check is not None), default=None),
        )


def badness(one: SpaceCoverage) -> tuple[bool, float, int, str, str]:
    """Spaces in this order are the worst first."""
    return (not one.failed, one.coverage or 0.0, one.oldest_check or 0, one.space, one.store)


def _in_brief(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


class _SnapshotParts:
    """Reads the parts of a snapshot; ``troubles`` has the error of each part that cannot be read."""

    def __init__(self, view: NodeView, stopping: Callable[[], bool]) -> None:
        self._view, self._stopping = view, stopping
        self.troubles: dict[str, str] = {}

    def read(self, what: str, function: Callable[[], Value], otherwise: Value) -> Value:
        """The answer of *function*; if it fails, *otherwise*, and the error is one of the part *what*."""
        if self._stopping():
            raise LookStoppedError
        try:
            return function()
        except (MillstreamError, OSError, sa.exc.SQLAlchemyError) as error:
            self.troubles[what] = _in_brief(error)
            return otherwise

    def logs(self) -> tuple[Sequence[LogRow], Sequence[Lag]]:
        """The rows of all logs, and the lags of their consumers, the largest first."""
        no_logs: Sequence[str] = ()
        names = self.read(LOGS, self._view.node.logs.store.logs, no_logs)
        found = [self.read(log_part(name), partial(log_row, self._view, name, self.troubles), None) for name in names]
        lags = [lag for _, of_log in filter(None, found) for lag in of_log]
        return [row for row, _ in filter(None, found)], sorted(lags, key=lambda lag: -lag.lag)

    def batch_lags(self) -> Sequence[BatchLag]:
        """The lags of the batch services."""
        node = self._view.node
        configured: Sequence[tuple[str, str]] = list(node.settings.serve.batching.items())
        pairs = self.read("states of batch services", node.batching.batched_pairs, configured)
        lags = [
            self.read(f"batching of {log}", partial(batch_lag, self._view, log, output, self.troubles), None)
            for log, output in pairs
        ]
        return [lag for lag in lags if lag is not None]

    def dead_letters(self, rows: Sequence[LogRow]) -> Mapping[str, Sequence[DeadLetterGroup]]:
        """The dead tasks of the queues among *rows*, by queue and grouped by cause."""
        names = [queue_name(row.log) for row in rows if row.kind == "queue"]
        no_causes: Mapping[str, Sequence[DeadLetterGroup]] = {}
        return self.read("dead letters", lambda: causes_by_queue(self._view, names), no_causes)


def take_snapshot(
    view: NodeView, free_bytes: Callable[[Path], int] = disk_free, stopping: Callable[[], bool] = lambda: False
) -> StatusSnapshot:
    """Read the state of all parts once. A part that cannot be read is left out and named in ``troubles``.

    *free_bytes* gives the free space of a folder's disk. Raises :class:`LookStoppedError` if *stopping* returns True,
    which is asked before each part and each log.
    """
    began, node, parts = view.clock.monotonic(), view.node, _SnapshotParts(view, stopping)
    read = parts.read
    counts = read(MESSAGES, partial(count_messages, view), MessageCounts())  # before the logs: none is more
    rows, lags = parts.logs()
    position = read(OBSERVER, node.anchoring.observer.index.position, None)
    head, observed = read(LEDGER, node.anchoring.ledger.head, None), position[0] if position else 0
    no_approvals: Sequence[PendingApproval] = ()
    no_counts: Sequence[HeldCount] = ()
    approvals = read("change guard", node.stores.change_guard.pending, no_approvals)
    dead = parts.dead_letters(rows)
    idle = read("workers", partial(queues_without_worker, view, rows), frozenset[str]())
    snapshot = StatusSnapshot(
        at=view.clock.now(),
        seconds=0.0,
        logs=rows,
        lags=lags,
        journal=read(JOURNAL, node.anchoring.journal.totals, JournalTotals()),
        index=read(ANCHORS, node.anchoring.observer.index.totals, IndexTotals(0, 0, 0, 0, 0, 0)),
        head=head,
        position=observed,
        spaces=read(MANIFEST, lambda: sorted(coverage_of(node.databases.own), key=badness), ()),
        findings=read(FINDINGS, lambda: findings_of(node.databases.own, MOST_FINDINGS), ()),
        holds=len(approvals),
        ends=read(ENDS, view.batches.ends, ()),
        rejects=read(REJECTS, view.batches.rejects, ()),
        batched=batched_logs(counts, rows),
        free_bytes=read("disk", lambda: free_bytes(node.folder), None),
        troubles=parts.troubles,
        following=read("followed registry", node.registry.follow_state, None),
        approvals=approvals,
        held_items=read(HELD_ITEMS, node.stores.change_guard.items.counts, no_counts),
        batch_lags=parts.batch_lags(),
        without_worker=idle,
        orphans=read("leases", partial(orphaned_tasks, view, idle), {}),
        only_cause={name: groups[0].cause for name, groups in dead.items() if len(groups) == 1},
        dead_since={name: min(one.first_died_at for one in groups) for name, groups in dead.items() if groups},
        former_tasks=read("former queues", partial(former_tasks, view), {}),
        behind_since=read(LEDGER, partial(_time_of_entry, view, observed + 1), None)
        if head is not None and head.number > observed
        else None,
        waiting_since=read(JOURNAL, view.batches.first_waiting, None),
        unsigned=read("signed ledgers", partial(unsigned_ledgers, view), ()),
        cosigning=read("cosignatures", partial(cosigning_ledgers, view), ()),
        stamping=read("time stamps", partial(stamped_ledgers, view), ()),
        members=read("members", node.databases.members.status, None),
    )
    return msgspec.structs.replace(snapshot, seconds=view.clock.monotonic() - began)


def log_row(view: NodeView, name: str, troubles: dict[str, str] | None = None) -> tuple[LogRow, list[Lag]]:
    """The status of the log *name* and of its consumers. *troubles* gets the damage of what these would read next."""
    log = view.log(name)
    info = log.info()
    own = _OWN_CONSUMERS if info.kind in SYSTEM_KINDS else frozenset[str]()
    damage = {} if troubles is None else troubles
    lags = [_lag(log, info, name, pointer, damage) for name, pointer in info.consumers.items() if name not in own]
    row = LogRow(
        log=info.name,
        kind=info.kind,
        first_id=info.first_id,
        last_id=info.last_id,
        messages=info.count,
        bytes=info.bytes,
        first_received_at=info.min_received_at,
        last_received_at=info.max_received_at,
        consumers=len(lags),
        lag=max((lag.lag for lag in lags), default=0),
        writer=info.writer,
    )
    return row, lags


def _lag(log: Log, info: LogInfo, consumer: str, pointer: int, troubles: dict[str, str]) -> Lag:
    first = max(pointer + 1, info.first_id)
    lag = max(0, info.last_id - pointer)
    oldest = _received_at(log, first, info.last_id, troubles) if lag and first <= info.last_id else None
    return Lag(log=log.name, consumer=consumer, pointer=pointer, lag=lag, oldest_at=oldest)


def _received_at(log: Log, first: int, last: int, troubles: dict[str, str]) -> int | None:
    """When the message *first* was received (microseconds); None where it was trimmed meanwhile.

    If it is damaged, *troubles* gets the error, and the time is the least of its block by the index, or that of the
    next message up to *last* which has one: whoever stops at the damage is late all the same.
    """
    for end in (first, last):  # most messages can be read: what comes after the first one is not fetched for them
        for batch in log.read(first, end, columns=["received_at"], gaps="all"):
            if not isinstance(batch, Gap):
                return int(batch.arrow.column("received_at")[0].as_py())
            if batch.reason == "trimmed":
                return None
            if batch.first_id == first:
                troubles[unread_part(log.name)] = _in_brief(batch.error)
            if known := log.block_index(batch.first_id, batch.first_id):
                return known[0].min_received_at
    return None


def batch_lag(view: NodeView, name: str, output: str, troubles: dict[str, str]) -> BatchLag | None:
    """What nothing came of yet in the log *name*, which is batched into *output*; None where there is no such log.

    *troubles* gets the damage of what would be batched next.
    """
    store = view.node.logs.store
    if not store.has(name):
        return None
    log, done = view.log(name), 0
    if store.has(output):
        origin = read_origin(view.log(output))  # what a job over history took is in files, or was handed over
        before = origin.position if origin is not None and origin.log == name else 0
        done = max(view.log(output).sequence(BATCHING), before)
    lag = _lag(log, log.info(), BATCHING, done, troubles)
    patience = _patience_of(view, output, lag.oldest_at)
    return BatchLag(log=name, output=output, messages=lag.lag, oldest_at=lag.oldest_at, patience=patience)


def _patience_of(view: NodeView, output: str, oldest_at: int | None) -> int | None:
    """The ``patience`` of a :class:`BatchLag`: if another member batches, the settings of this one do not say it.

    The rules are read only when they matter: they may be in a large state. Raises
    :class:`~millstream.batching.BatchingError` and :class:`~millstream.log.LogError` where they cannot be read: whether
    the messages are late is not known then.
    """
    batching = view.node.batching
    if oldest_at is None or view.clock.now() - oldest_at <= batching.patience:
        return None
    try:
        status = batching.rules_status(output)
    except LogNotFoundError:  # nothing was batched yet
        return None
    return None if status is None else status.rules.patience_at(oldest_at)


def queues_without_worker(view: NodeView, rows: Sequence[LogRow]) -> frozenset[str]:
    """The queues with open tasks that no worker holds; not known of queues on a broker, which nobody holds."""
    if view.node.settings.queue.broker:  # logs of queues may be left from before
        return frozenset()
    return frozenset(
        queue_name(row.log)
        for row in rows
        if row.kind == "queue"
        and row.writer is None
        and (name := queue_name(row.log)) in view.queues.names()
        and view.queues.depth(name).open
        and view.queues.holder(name) is None  # asked again: a worker may have come meanwhile
    )


def orphaned_tasks(view: NodeView, without_worker: frozenset[str]) -> Mapping[str, int]:
    """The leased tasks by queue of the queues *without_worker*."""
    leased = {name: view.queues.depth(name).leased for name in without_worker}
    return {name: tasks for name, tasks in leased.items() if tasks}


def former_tasks(view: NodeView) -> Mapping[str, int]:
    """The open and dead tasks, by queue, that no worker finds since the node's queues are on a broker."""
    return {name: count for name, depth in view.queues.former().items() if (count := depth.open + depth.dead)}


def causes_by_queue(view: NodeView, names: Sequence[str]) -> Mapping[str, Sequence[DeadLetterGroup]]:
    """The dead tasks of each of the queues *names* by cause."""
    if view.node.settings.queue.broker:
        return {}  # there the groups are not kept, and reading them all is not cheap
    return {name: view.queues.causes(name) for name in names}


def _time_of_entry(view: NodeView, number: int) -> int | None:
    entry = view.node.anchoring.ledger.entry(number)
    return None if entry is None else entry.time


_STEPS = {
    "log": (LOGS,),
    "batches": (LOGS, MESSAGES, JOURNAL, ANCHORS),
    "anchors": (LEDGER, OBSERVER, ANCHORS),
    "copies": (MANIFEST,),
    "checks": (MANIFEST,),
}
"""The parts that the counts of each step of the overview are from."""


def unreadable_steps(snapshot: StatusSnapshot) -> Sequence[str]:
    """The steps of the overview with counts that could not be read, or lack those of a log."""
    return [
        step
        for step, parts in _STEPS.items()
        if not snapshot.knows(*parts) or (LOGS in parts and snapshot.unreadable_user_logs)
    ]


def log_metrics(snapshot: StatusSnapshot, per_second: float) -> LogMetrics:
    """The station of the log."""
    rows = [row for row in snapshot.logs if row.kind in DATA_KINDS]
    names = {row.log for row in rows}
    slowest = next((lag for lag in snapshot.lags if lag.log in names and lag.lag), None)
    return LogMetrics(
        logs=len(rows),
        messages=sum(row.messages for row in rows),
        bytes=sum(row.bytes for row in rows),
        per_second=per_second,
        last_received_at=max((row.last_received_at for row in rows if row.last_received_at is not None), default=None),
        lag=slowest.lag if slowest else 0,
        slowest=f"{slowest.log} / {slowest.consumer}" if slowest else None,
        oldest_unprocessed_at=min(
            (lag.oldest_at for lag in snapshot.lags if lag.log in names and lag.oldest_at is not None), default=None
        ),
    )


def batch_metrics(snapshot: StatusSnapshot, per_minute: float) -> BatchMetrics:
    """The station of batches."""
    journal, index = snapshot.journal, snapshot.index
    batched = [row for row in snapshot.batched if row.batched]
    others = [row for row in snapshot.batched if not row.batched and row.messages]
    return BatchMetrics(
        batches=max(journal.accepted + journal.cut + journal.anchored + journal.observed, index.batches),
        waiting=journal.accepted,
        under_way=journal.cut + journal.anchored,
        anchored=index.batches,
        messages=index.messages,
        rejected_messages=sum(row.rejected for row in batched),
        rejected_batches=journal.rejected,
        per_minute=per_minute,
        eligible=sum(row.messages for row in batched),
        in_batches=sum(row.in_batches for row in batched),
        neither=sum(row.neither for row in batched),
        unbatched=sum(row.messages for row in others),
        unbatched_logs=len(others),
    )


def anchor_metrics(snapshot: StatusSnapshot) -> AnchorMetrics:
    """The station of anchors."""
    head, index = snapshot.head, snapshot.index
    number = head.number if head else 0
    return AnchorMetrics(
        anchors=number,
        head=head.hash if head else None,
        head_at=head.time if head else None,
        behind=max(0, number - snapshot.position),
        invalid=index.invalid_anchors + index.invalid_batches,
    )


def copy_metrics(snapshot: StatusSnapshot, queues: Sequence[QueueStatus]) -> CopyMetrics:
    """The station of copies."""
    copying = [one for one in queues if one.queue in (QueueName.DUPLICATION_HIGH, QueueName.DUPLICATION_LOW)]
    waiting, dead = sum(one.ready + one.leased + one.delayed for one in copying), sum(one.dead for one in copying)
    return msgspec.structs.replace(snapshot.copies, waiting=waiting, dead=dead)


def check_metrics(snapshot: StatusSnapshot, queues: Sequence[QueueStatus]) -> CheckMetrics:
    """The station of checks."""
    repairs = sum(one.ready + one.leased + one.delayed for one in queues if one.queue == QueueName.REPAIR)
    dead = sum(one.dead for one in queues if one.queue in (QueueName.REPAIR, QueueName.BIT_INTEGRITY))
    return msgspec.structs.replace(snapshot.checks, repairs_waiting=repairs, dead=dead)
