"""Integrity: how far the copies are checked, what was found, and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from millstream.core.errors import NotFoundError
from millstream.core.shown_commands import check_command
from millstream.mill.duplication.held_items import VANISHED
from millstream.mill.manifest import ManifestRow
from millstream.mill.remedies import outcome_of
from millstream.mill.repair.repair_log import RepairEvent
from millstream.mill.reports.coverage import SpaceCoverage
from millstream.mill.reports.report import IntegrityReport
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Limit, Listing, Name, Number, PartialListing
from millstream.status.snapshot import FINDINGS, HELD_ITEMS, MANIFEST, MOST_FINDINGS, StatusSnapshot
from millstream.status.verdict.copies import report_part

endpoints = EndpointRegistry()


class NoReportError(NotFoundError):
    """This space was never checked; run `millstream mill check`."""


class SpacesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spaces of one ``store`` whose names contain ``text``, after the first ``offset``.

    ``sort`` is ``worst`` (those with findings, then those checked least and longest ago), ``oldest`` (never checked,
    then checked longest ago), ``largest`` (bytes), ``items``, ``missing``, ``vanished`` or ``name``.
    """

    store: str | None = None
    text: str | None = None
    sort: Literal["worst", "oldest", "largest", "items", "missing", "vanished", "name"] = "worst"
    offset: int = msgspec.field(default=0)
    limit: Limit = 100


class ItemsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items of a ``space`` in a ``store`` with ids after ``after``."""

    store: Name
    space: Name
    after: str = ""
    limit: Limit = 100


class FindingsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Findings, optionally of one ``store``, one ``space`` and one ``row`` of the table of check outcomes (``B3``).

    ``sort`` is ``store`` (store, space and id), ``item`` (space and id), ``outcome`` (the row) or ``oldest`` (checked
    longest ago). The first ``offset`` findings are left out.
    """

    store: str | None = None
    space: str | None = None
    row: str | None = None
    sort: Literal["store", "item", "outcome", "oldest"] = "store"
    offset: Number = 0
    limit: Limit = 200


class ReportsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last reports, after the first ``offset`` spaces.

    ``sort`` is ``name`` (store and space), ``oldest``, ``failed`` (most failed items) or ``differing`` (most stray and
    absent items).
    """

    sort: Literal["name", "oldest", "failed", "differing"] = "name"
    offset: Number = 0
    limit: Limit = 100


class ItemQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content item ``content_id`` of ``space``, in all stores."""

    space: Name
    content_id: Name


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content item to repair in all stores, and the reason."""

    space: Name
    content_id: Name
    reason: str = ""


class SpaceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``space`` in a ``store``."""

    store: Name
    space: Name


class SpaceRow(msgspec.Struct, frozen=True):
    """One space in one store: the copies with a known state, and the findings.

    ``coverage`` is their share (None without copies); times are in microseconds (None if never). ``vanished`` items are
    recorded in this store and gone from it without a recorded deletion; None if unknown.
    """

    store: str
    space: str
    items: int
    bytes: int
    checked: int
    coverage: float | None
    failed: int
    missing: int
    oldest_check: int | None
    newest_check: int | None
    vanished: int | None = 0


class CopyRow(msgspec.Struct, frozen=True):
    """One copy of a content item: its expected hash, and the result of the last check.

    ``code`` is the outcome that ``detail`` begins with (``B3``), ``todo`` its remedy; None where nothing is to be done.
    """

    store: str
    space: str
    content_id: str
    sha256: str | None
    bytes: int
    deleted: bool
    checked_at: int | None
    verified_at: int | None
    outcome: str | None
    detail: str | None
    code: str | None = None
    todo: str | None = None


class FindingCount(msgspec.Struct, frozen=True):
    """The number of copies with one outcome: its ``row`` in the table of check outcomes, and its name ``kind``."""

    row: str
    kind: str
    copies: int


class ReportRow(msgspec.Struct, frozen=True):
    """The last report on a space: its ``result``, its end time (microseconds), and its numbers of items.

    ``coverage`` is None if nothing was checked. ``strays`` are only in this copy, ``absent`` items only at its source.
    """

    store: str
    space: str
    result: str
    ended_at: int
    listed: int
    checked: int
    explained: int
    failed: int
    coverage: float | None
    strays: int = 0
    absent: int = 0


class ReportCount(msgspec.Struct, frozen=True):
    """The number of items in a report with one check outcome (``B1 intact``)."""

    row: str
    items: int


class RepairPlanned(msgspec.Struct, frozen=True):
    """The plan of a repair of an item: the stores that it would write, the good copy, and what it refuses."""

    space: str
    content_id: str
    good: str | None
    sha256: str | None
    actions: Sequence[str]
    refusals: Sequence[str]


class Repaired(msgspec.Struct, frozen=True):
    """The results of a repair, one per copy."""

    events: Sequence[RepairEvent]


@endpoints.get("/integrity/spaces", SpacesQuery)
def spaces(app: AppContext, request: ApiRequest[SpacesQuery, Any]) -> Listing[SpaceRow]:
    """List the check results of all spaces of all stores, those with findings first."""
    query, snapshot = request.query, app.poller.snapshot
    snapshot.require(MANIFEST)
    found = [
        one
        for one in snapshot.spaces
        if query.store in (None, one.store) and (query.text is None or query.text in one.space)
    ]
    if query.sort == "vanished":
        snapshot.require(HELD_ITEMS)
    begin, gone = max(0, query.offset), vanished_by_space(snapshot)
    if query.sort != "worst":
        found.sort(key=partial(_SPACE_ORDERS[query.sort], gone or {}))
    rows = [
        _space(one, None if gone is None else gone.get((one.store, one.space), 0))
        for one in found[begin : begin + query.limit]
    ]
    end = begin + len(rows)
    return Listing(rows, str(end) if end < len(found) else None, total=len(found), as_of=snapshot.at)


@endpoints.get("/integrity/items", ItemsQuery)
def items(app: AppContext, request: ApiRequest[ItemsQuery, Any]) -> Listing[CopyRow]:
    """List the items of a space, with the results of their last checks."""
    query = request.query
    found = app.node.stores.manifest.page(query.store, query.space, after=query.after, limit=query.limit + 1)
    rows = [_copy(row) for row in found[: query.limit]]
    return Listing(rows, rows[-1].content_id if len(found) > query.limit else None)


@endpoints.get("/integrity/findings", FindingsQuery)
def findings(app: AppContext, request: ApiRequest[FindingsQuery, Any]) -> Listing[CopyRow]:
    """List the copies whose last check found a fault."""
    query, snapshot = request.query, app.poller.snapshot
    snapshot.require(FINDINGS)
    found = [
        each
        for each in snapshot.findings
        if query.store in (None, each.store) and query.space in (None, each.space) and query.row in (None, row_of(each))
    ]
    if query.sort != "store":
        found.sort(key=_FINDING_ORDERS[query.sort])
    end = query.offset + query.limit
    rows = [_copy(row) for row in found[query.offset : end]]
    total = None if has_more_findings(snapshot) else len(found)
    return Listing(rows, str(end) if end < len(found) else None, total=total, as_of=snapshot.at)


@endpoints.get("/integrity/findings/rows")
def finding_rows(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[FindingCount]:
    """List the check outcomes of all findings, the most frequent first."""
    snapshot = app.poller.snapshot
    snapshot.require(FINDINGS)
    counts = Counter(map(row_of, snapshot.findings))
    kinds = {row_of(each): (each.detail or "").partition(":")[0] for each in snapshot.findings}
    rows = [FindingCount(row, kinds[row], count) for row, count in counts.most_common()]
    return Listing(rows, total=None if has_more_findings(snapshot) else len(rows), as_of=snapshot.at)


@endpoints.get("/integrity/reports", ReportsQuery)
def reports(app: AppContext, request: ApiRequest[ReportsQuery, Any]) -> PartialListing[ReportRow]:
    """List the last report of each space, by store and space."""
    query = request.query
    where, end = app.node.mill.reports.current_spaces(), query.offset + query.limit
    shown = where if query.sort != "name" else where[query.offset : end]
    last, troubles = app.poller.reports.latest(shown), app.poller.reports.troubles
    rows = [_report(*key, last[key]) for key in shown if key in last]
    if query.sort != "name":
        rows = sorted(rows, key=_REPORT_ORDERS[query.sort])[query.offset : end]
    unreadable = {part: why for key in shown if (why := troubles.get(part := report_part(*key))) is not None}
    total = None if unreadable else len(where)
    return PartialListing(rows, str(end) if end < len(where) else None, total=total, unreadable=unreadable)


@endpoints.get("/integrity/copies", ItemQuery)
def copies(app: AppContext, request: ApiRequest[ItemQuery, Any]) -> Listing[CopyRow]:
    """List the copies of one item in all stores, including deleted ones."""
    found = app.node.stores.manifest.replicas(request.query.space, request.query.content_id)
    return Listing([_copy(row) for row in found], total=len(found))


@endpoints.get("/integrity/report", SpaceQuery)
def report(app: AppContext, request: ApiRequest[SpaceQuery, Any]) -> IntegrityReport:
    """Show the latest report on a space of a store."""
    found = app.node.mill.reports.archive.latest(request.query.store, request.query.space)
    if found is None:
        store, space = request.query.store, request.query.space
        raise NoReportError(
            f"space {space!r} of store {store!r} was never checked: run `{check_command(store, space)}`"
        )
    return found


@endpoints.get("/integrity/report/rows", SpaceQuery)
def report_rows(app: AppContext, request: ApiRequest[SpaceQuery, Any]) -> Listing[ReportCount]:
    """List the check outcomes in the latest report on a space, with their numbers of items."""
    rows = [ReportCount(kind, items) for kind, items in report(app, request).kinds.items()]
    return Listing(rows, total=len(rows))


@endpoints.get("/integrity/repairs")
def repairs(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[RepairEvent]:
    """List the last repairs, and refused repairs with reasons."""
    found = app.node.mill.repairs.log.last(200)
    return Listing(found)


@endpoints.post("/integrity/repair/plan", body=Item)
def plan_repair(app: AppContext, request: ApiRequest[Any, Item]) -> RepairPlanned:
    """Preview the repair of one item; reads every copy and changes nothing."""
    return planned_repair(app, request.body.space, request.body.content_id)


@endpoints.post("/integrity/repair", body=Item)
def repair(app: AppContext, request: ApiRequest[Any, Item]) -> Repaired:
    """Repair the copies of one item from a copy that the manifest and the audit log confirm."""
    wanted = request.body
    app.operator_log.check()
    target = f"{wanted.space}/{wanted.content_id}"
    try:
        result = app.node.mill.repairs.repairer.repair(wanted.space, wanted.content_id, wanted.reason)
    except Exception as error:  # a copy may have been repaired before another one failed
        app.operator_log.add(request.principal.name, "repair", target, reason=wanted.reason, error=str(error))
        raise
    facts = {"repaired": result.repaired, "refused": len(result.refused)}
    app.operator_log.add(request.principal.name, "repair", target, reason=wanted.reason, **facts)
    app.poller.hurry()
    return Repaired(result.events)


def has_more_findings(snapshot: StatusSnapshot) -> bool:
    """Whether there may be more findings than *snapshot* has: it has the first ones by store, space and id."""
    return len(snapshot.findings) >= MOST_FINDINGS


def row_of(finding: ManifestRow) -> str:
    """The row of the table of checks that *finding* is of; ``–`` where its check came to no end."""
    first = (finding.detail or "").split(" ", 1)[0]
    return first if first[1:].isdecimal() else "–"


def planned_repair(app: AppContext, space: str, content_id: str) -> RepairPlanned:
    """What a repair of an item would do."""
    plan = app.node.mill.repairs.repairer.plan(space, content_id)
    actions = [
        f"{action.store}{' (its corrupt content goes to quarantine)' if action.quarantine else ''}"
        for action in plan.actions
    ]
    return RepairPlanned(space, content_id, plan.good, plan.sha256, actions, list(map(str, plan.reasons)))


def vanished_by_space(snapshot: StatusSnapshot) -> Mapping[tuple[str, str], int] | None:
    """How many items of each store and space are gone from there without a recorded deletion; None if unknown."""
    if not snapshot.knows(HELD_ITEMS):
        return None
    found = Counter[tuple[str, str]]()
    for one in snapshot.held_items:
        if one.kind == VANISHED:
            found[one.source, one.space] = max(found[one.source, one.space], one.items)
    return found


_SPACE_ORDERS: Mapping[str, Callable[[Mapping[tuple[str, str], int], SpaceCoverage], Any]] = {
    "oldest": lambda _, one: one.oldest_check or 0,
    "largest": lambda _, one: -one.bytes,
    "items": lambda _, one: -one.items,
    "missing": lambda _, one: -one.missing,
    "vanished": lambda gone, one: -gone.get((one.store, one.space), 0),
    "name": lambda _, one: (one.space, one.store),
}
_FINDING_ORDERS: Mapping[str, Callable[[ManifestRow], Any]] = {
    "item": lambda row: (row.space, row.content_id, row.store),
    "outcome": lambda row: (row_of(row), row.store, row.space, row.content_id),
    "oldest": lambda row: row.checked_at or 0,
}
_REPORT_ORDERS: Mapping[str, Callable[[ReportRow], Any]] = {
    "oldest": lambda row: row.ended_at,
    "failed": lambda row: -row.failed,
    "differing": lambda row: -(row.strays + row.absent),
}


def _report(store: str, space: str, one: IntegrityReport) -> ReportRow:
    counts = (one.listed, one.checked, one.explained, one.failed, one.known_coverage)
    return ReportRow(store, space, one.result.value, one.ended_at, *counts, one.strays.count, one.absent.count)


def _space(one: SpaceCoverage, vanished: int | None) -> SpaceRow:
    counts = (one.items, one.bytes, one.checked, one.coverage, one.failed, one.missing)
    return SpaceRow(one.store, one.space, *counts, one.oldest_check, one.newest_check, vanished)


def _copy(row: ManifestRow) -> CopyRow:
    checked, known = (row.checked_at, row.verified_at, row.outcome, row.detail), outcome_of(row.detail)
    remedy = (known.code, known.todo) if known else ()
    return CopyRow(row.store, row.space, row.content_id, row.sha256, row.size, row.deleted, *checked, *remedy)
