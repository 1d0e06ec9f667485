"""The pages of copies: integrity with its map of ages, findings, reports, and repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.console.formatting import ago, percent
from millstream.console.page_renderer import PageRenderer, PageRequest, body_of
from millstream.core.clock import MICROSECONDS
from millstream.mill.duplication.held_items import DELETE, VANISHED
from millstream.mill.reports.coverage import SpaceCoverage
from millstream.mill.reports.report import IntegrityReport, coverage_text, difference_lines
from millstream.rest.views import holds, integrity
from millstream.status.snapshot import HELD_ITEMS, StatusSnapshot

MOST_SQUARES = 400
"""Spaces of one store that the map of ages shows, the worst of them."""

_DAY = 24 * 3600 * MICROSECONDS


class HeatMapCell(msgspec.Struct, frozen=True):
    """One space in the map of ages."""

    space: str
    tone: str
    text: str


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/integrity", pages.show("integrity.html", show_integrity)),
        Route("/integrity/findings", pages.show("findings.html", show_findings)),
        Route("/integrity/reports", pages.show("reports.html", show_reports)),
        Route("/integrity/space", pages.show("space.html", show_space)),
        Route("/integrity/item", pages.show("item.html", show_item)),
        Route("/integrity/repair", pages.act(repair), methods=["POST"]),
    ]


def show_integrity(call: PageRequest) -> Mapping[str, Any]:
    """Coverage and age of checks, by space and store."""
    app, snapshot, ask = call.app, call.app.poller.snapshot, call.ask(integrity.SpacesQuery)
    store, text = call.query.get("store") or None, call.query.get("text") or None
    offset = call.query.get("offset")
    return {
        "c": app.poller.overview().checks,
        "stores": sorted({one.store for one in snapshot.spaces}),
        "heat": list(_heat(snapshot, store, call.app.clock.now())),
        "spaces": integrity.spaces(app, ask),
        "vanished_known": snapshot.knows(HELD_ITEMS),
        "sort": ask.query.sort,
        "repairs": app.node.mill.repairs.log.last(12),
        "holds": app.node.stores.change_guard.pending(approved=True),
        "store": store,
        "text": text,
        "offset": offset,
    }


def show_findings(call: PageRequest) -> Mapping[str, Any]:
    """Copies whose last check found a fault."""
    query, snapshot = call.ask(integrity.FindingsQuery), call.app.poller.snapshot
    gone = integrity.vanished_by_space(snapshot)
    rows = integrity.finding_rows(call.app, call.ask()).items
    return {
        "findings": integrity.findings(call.app, query),
        "vanished": None if gone is None else sum(gone.values()),
        "rows": rows,
        "most": len(snapshot.findings) if integrity.has_more_findings(snapshot) else None,
        "where": {"store": query.query.store, "space": query.query.space},
        "only": query.query.row,
        "sort": query.query.sort,
        "offset": query.query.offset,
        "faults": _faults(call),
    }


def show_reports(call: PageRequest) -> Mapping[str, Any]:
    """The last report of every space."""
    ask = call.ask(integrity.ReportsQuery)
    found = integrity.reports(call.app, ask)
    return {"reports": found, "sort": ask.query.sort, "offset": call.query.get("offset"), "faults": _faults(call)}


def show_space(call: PageRequest) -> Mapping[str, Any]:
    """One space of a store: its last report, and its items."""
    ask = call.ask(integrity.ItemsQuery)
    where = (ask.query.store, ask.query.space)
    facts: dict[str, Any] = {"store": where[0], "space": where[1], "after": ask.query.after}
    report = call.app.node.mill.reports.archive.latest(*where)
    gone = integrity.vanished_by_space(call.app.poller.snapshot)
    facts["vanished"] = None if gone is None else gone.get(where, 0)
    return {
        **facts,
        "report": report,
        "coverage": _coverage(report) if report is not None else None,
        "differences": list(difference_lines(report)) if report is not None else [],
        "copies": integrity.items(call.app, ask),
    }


def show_item(call: PageRequest) -> Mapping[str, Any]:
    """The copies of one item."""
    ask = call.ask(integrity.ItemQuery)
    facts = {"space": ask.query.space, "content_id": ask.query.content_id}
    plans = call.app.node.stores.change_guard.pending(approved=True)
    held = holds.plans_of_item(call.app, call.ask(holds.HeldItemQuery)).items
    return {
        **facts,
        "copies": integrity.copies(call.app, ask).items,
        "held": [(one, holds.plan_of(one, plans)) for one in held],
        "gone": {one.source for one in held if one.kind in (VANISHED, DELETE)},
    }


def repair(call: PageRequest) -> Mapping[str, Any] | Response:
    """Show what a repair would do, and do it when that is confirmed."""
    space, content_id = call.field("space"), call.field("content_id")
    item = body_of(integrity.Item, space=space, content_id=content_id, reason=call.field("reason"))
    back = f"/integrity/item?space={quote(space)}&content_id={quote(content_id)}"
    if call.field("confirmed") == "yes":
        repaired = integrity.repair(call.app, call.ask(body=item))
        repaired_copies = sum(event.healed for event in repaired.events)
        left = [event.reason for event in repaired.events if not event.healed]
        return call.redirect_with_notice(
            back, f"{repaired_copies} repaired" + (f"; not repaired: {'; '.join(left)[:300]}" if left else ".")
        )
    plan = integrity.planned_repair(call.app, space, content_id)
    if not plan.actions:
        why = "; ".join(plan.refusals) or "all copies match the manifest"
        return call.redirect_with_notice(back, f"Nothing to repair: {why}.")
    effect = f"The copy at {plan.good} replaces the bad copy at {' and at '.join(plan.actions)}."
    return {
        "what": "Repair",
        "effect": effect,
        "details": [f"{space}/{content_id}", f"SHA-256 {plan.sha256}", *plan.refusals],
        "action": "/integrity/repair",
        "hidden": [("space", space), ("content_id", content_id)],
        "reason_needed": True,
        "danger": True,
        "back": back,
    }


def _coverage(report: IntegrityReport) -> str:
    known = report.known_coverage
    return coverage_text(report) if known is None else percent(known)


def _faults(call: PageRequest) -> int:
    return call.app.poller.overview().checks.failed


def _heat(snapshot: StatusSnapshot, only: str | None, now: int) -> Iterator[tuple[str, Sequence[HeatMapCell], int]]:
    by_store: dict[str, list[SpaceCoverage]] = {}
    gone = integrity.vanished_by_space(snapshot) or {}
    for one in sorted(snapshot.spaces, key=lambda one: (not one.failed, (one.store, one.space) not in gone)):
        if only in (None, one.store):
            by_store.setdefault(one.store, []).append(one)
    for store, found in sorted(by_store.items()):
        shown = found[:MOST_SQUARES]
        if len(found) <= MOST_SQUARES:
            shown = sorted(shown, key=lambda one: one.space)
        cells = [_square(one, gone.get((one.store, one.space), 0), now) for one in shown]
        yield store, cells, len(found) - len(shown)


def _square(one: SpaceCoverage, vanished: int, now: int) -> HeatMapCell:
    oldest = ago(one.oldest_check, now)
    text = f"{one.space}: {one.checked:,} of {one.items:,} checked, {one.failed:,} faults, oldest check {oldest}"
    if one.failed:
        return HeatMapCell(one.space, "bad", text)
    if vanished:
        return HeatMapCell(one.space, "gone", f"{text}, {vanished:,} items vanished")
    if one.checked < one.items or one.oldest_check is None:
        return HeatMapCell(one.space, "never", text)
    days = (now - one.oldest_check) / _DAY
    tone = next(name for name, limit in (("a0", 1), ("a1", 7), ("a2", 31), ("a3", float("inf"))) if days < limit)
    return HeatMapCell(one.space, tone, text)
