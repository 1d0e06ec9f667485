"""The slower figures of a node: one look at all logs, the journal, the ledger, and the manifest of copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from millstream.anchoring.index import IndexTotals
from millstream.anchoring.journal_reader import CutReasonCount, RejectCount
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.registry.follow_state import FollowState
from millstream.anchoring.states import JournalTotals
from millstream.core.errors import MillstreamError
from millstream.log import DATA_KINDS, SYSTEM_KINDS, Kind, Log, LogInfo
from millstream.mill.manifest import ManifestRow
from millstream.mill.reports.coverage import SpaceCoverage, coverage_of, findings_of
from millstream.rest.node_view import NodeView
from millstream.rest.status_models import AnchorFigures, BatchFigures, CheckFigures, CopyFigures, LogFigures

Value = TypeVar("Value")

MOST_FINDINGS = 2_000
LOW_DISK = 1_000_000_000
_OWN_CONSUMERS = frozenset({"snapshot"})


class Lag(msgspec.Struct, frozen=True):
    """How far a consumer is behind its log, in messages, and when the first of these was received (microseconds)."""

    log: str
    consumer: str
    pointer: int
    lag: int
    oldest_at: int | None


class LogRow(msgspec.Struct, frozen=True):
    """One log as it stands. ``kind`` says what it is for, as the store keeps it.

    ``bytes`` as stored; times in microseconds, None in an empty log; ``lag`` is that of its slowest consumer.
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


class StatusSnapshot(msgspec.Struct, frozen=True, dict=True):
    """What was found at ``at`` (microseconds) in ``seconds``; ``troubles`` names what could not be looked at.

    ``following`` is the state of a registry that follows another one.
    ``spaces`` are the worst first: those with findings, then those that are checked least and longest ago.
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
    free_bytes: int | None = None
    troubles: Mapping[str, str] = {}
    following: FollowState | None = None

    @cached_property
    def space_names(self) -> Sequence[str]:
        """The names of all spaces of all stores, in order."""
        return sorted({row.space for row in self.spaces})

    @cached_property
    def copies(self) -> CopyFigures:
        """All copies together; what waits for workers is not known here."""
        rows = self.spaces
        stores, spaces = {row.store for row in rows}, {row.space for row in rows}
        return CopyFigures(sum(row.items for row in rows), sum(row.bytes for row in rows), len(stores), len(spaces))

    @cached_property
    def checks(self) -> CheckFigures:
        """All checks together; the repairs that wait are not known here."""
        rows = self.spaces
        items, checked = sum(row.items for row in rows), sum(row.checked for row in rows)
        return CheckFigures(
            items,
            checked,
            checked / items if items else None,
            sum(row.failed for row in rows),
            sum(row.missing for row in rows),
            min((row.oldest_check for row in rows if row.oldest_check is not None), default=None),
            max((row.newest_check for row in rows if row.newest_check is not None), default=None),
        )


def badness(one: SpaceCoverage) -> tuple[bool, float, int, str, str]:
    """Spaces in this order are the worst first."""
    return (not one.failed, one.coverage or 0.0, one.oldest_check or 0, one.space, one.store)


def take_snapshot(view: NodeView) -> StatusSnapshot:
    """Look at everything once. What cannot be looked at is left out and named."""
    began, node = view.clock.monotonic(), view.node
    troubles: dict[str, str] = {}

    def look(what: str, function: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return function()
        except (MillstreamError, OSError, sa.exc.SQLAlchemyError) as error:
            troubles[what] = str(error).partition("\n")[0][:300]
            return otherwise

    nobody: Sequence[str] = ()
    nothing_found: list[tuple[LogRow, list[Lag]]] = []
    rows, lags = list[LogRow](), list[Lag]()
    for name in look("logs", node.logs.store.logs, nobody):
        found = look(f"log {name}", partial(_rows, view, name), nothing_found)
        rows += [row for row, _ in found]
        lags += [lag for _, of_log in found for lag in of_log]
    position = look("observer", node.anchoring.observer.index.position, None)
    nothing = IndexTotals(0, 0, 0, 0, 0, 0)
    snapshot = StatusSnapshot(
        view.clock.now(),
        0.0,
        rows,
        sorted(lags, key=lambda lag: -lag.lag),
        look("journal", node.anchoring.journal.totals, JournalTotals()),
        look("anchors", node.anchoring.observer.index.totals, nothing),
        look("ledger", node.anchoring.ledger.head, None),
        position[0] if position else 0,
        look("manifest", lambda: sorted(coverage_of(node.databases.own), key=badness), ()),
        look("findings", lambda: findings_of(node.databases.own, MOST_FINDINGS), ()),
        look("brake", lambda: len(node.stores.change_guard.pending()), 0),
        look("ends of batches", view.batches.ends, ()),
        look("rejected messages", view.batches.rejects, ()),
        look("disk", lambda: shutil.disk_usage(node.folder).free, None),
        troubles,
        look("followed registry", node.registry.follow_state, None),
    )
    return msgspec.structs.replace(snapshot, seconds=view.clock.monotonic() - began)


def _rows(view: NodeView, name: str) -> list[tuple[LogRow, list[Lag]]]:
    return [log_row(view, name)]


def log_row(view: NodeView, name: str) -> tuple[LogRow, list[Lag]]:
    """How the log *name* stands, and its consumers."""
    log = view.log(name)
    info = log.info()
    own = _OWN_CONSUMERS if info.kind in SYSTEM_KINDS else frozenset[str]()
    lags = [_lag(log, info, name, pointer) for name, pointer in info.consumers.items() if name not in own]
    row = LogRow(
        info.name,
        info.kind,
        info.first_id,
        info.last_id,
        info.count,
        info.bytes,
        info.min_received_at,
        info.max_received_at,
        len(lags),
        max((lag.lag for lag in lags), default=0),
        info.writer,
    )
    return row, lags


def _lag(log: Log, info: LogInfo, consumer: str, pointer: int) -> Lag:
    first = max(pointer + 1, info.first_id)
    lag = max(0, info.last_id - pointer)
    oldest = None
    if lag and first <= info.last_id:
        for batch in log.read(first, first, columns=["received_at"], gaps="all"):
            oldest = next(iter(batch.arrow.column("received_at").to_pylist()), None)
    return Lag(log.name, consumer, pointer, lag, oldest)


def log_figures(snapshot: StatusSnapshot, per_second: float) -> LogFigures:
    """The station of the log."""
    rows = [row for row in snapshot.logs if row.kind in DATA_KINDS]
    names = {row.log for row in rows}
    slowest = next((lag for lag in snapshot.lags if lag.log in names and lag.lag), None)
    return LogFigures(
        len(rows),
        sum(row.messages for row in rows),
        sum(row.bytes for row in rows),
        per_second,
        max((row.last_received_at for row in rows if row.last_received_at is not None), default=None),
        slowest.lag if slowest else 0,
        f"{slowest.log} / {slowest.consumer}" if slowest else None,
        min((lag.oldest_at for lag in snapshot.lags if lag.log in names and lag.oldest_at is not None), default=None),
    )


def batch_figures(snapshot: StatusSnapshot, per_minute: float) -> BatchFigures:
    """The station of batches."""
    journal, index = snapshot.journal, snapshot.index
    return BatchFigures(
        max(journal.accepted + journal.cut + journal.anchored + journal.observed, index.batches),
        journal.accepted,
        journal.cut + journal.anchored,
        index.batches,
        index.messages,
        index.rejects + journal.waiting_rejects,
        journal.rejected,
        per_minute,
    )


def anchor_figures(snapshot: StatusSnapshot) -> AnchorFigures:
    """The station of anchors."""
    head, index = snapshot.head, snapshot.index
    number = head.number if head else 0
    return AnchorFigures(
        number,
        head.hash if head else None,
        head.time if head else None,
        max(0, number - snapshot.position),
        index.invalid_anchors + index.invalid_batches,
    )


def copy_figures(snapshot: StatusSnapshot, waiting: int) -> CopyFigures:
    """The station of copies."""
    return msgspec.structs.replace(snapshot.copies, waiting=waiting)


def check_figures(snapshot: StatusSnapshot, repairs: int) -> CheckFigures:
    """The station of checks."""
    return msgspec.structs.replace(snapshot.checks, repairs_waiting=repairs)
