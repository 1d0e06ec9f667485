"""The pages of held plans and of items that are gone from their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest, body_of
from millstream.core.errors import NotFoundError
from millstream.core.shown_commands import arguments
from millstream.mill.duplication.change_guard import PendingApproval
from millstream.rest.views import holds

_FIRST = 20
"""Items that are listed where a plan is to be approved or rejected; its own page lists all of them."""


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/integrity/vanished", pages.show("vanished.html", show_vanished)),
        Route("/integrity/holds/{number:int}", pages.show("hold.html", show_hold)),
        Route("/integrity/holds/{number:int}/approve", pages.act(approve), methods=["POST"]),
        Route("/integrity/holds/{number:int}/reject", pages.act(reject), methods=["POST"]),
    ]


def show_vanished(call: PageRequest) -> Mapping[str, Any]:
    """Items that are gone from their source."""
    ask = call.ask(holds.VanishedQuery)
    plans = call.app.node.stores.change_guard.pending(approved=True)
    found = holds.vanished(call.app, ask)
    return {
        "found": found,
        "plans": {one.content_id + "\0" + one.destination: holds.plan_of(one, plans) for one in found.items},
        "faults": call.app.poller.overview().checks.failed,
        "store": ask.query.store,
        "space": ask.query.space,
        "offset": ask.query.offset,
    }


def show_hold(call: PageRequest) -> Mapping[str, Any]:
    """One held plan, with its items."""
    ask = call.ask(holds.HeldItemsQuery)
    plan = holds.hold(call.app, call.ask(holds.HoldQuery))
    return {"plan": plan, "found": holds.held_items(call.app, ask), "after": ask.query.after, "does": effects(plan)}


def approve(call: PageRequest) -> Mapping[str, Any] | Response:
    """Let a held plan continue."""
    plan = _waiting(call)
    if call.field("confirmed") == "yes":
        holds.approve(call.app, call.ask(holds.HoldQuery, _reason(call)))
        return call.redirect_with_notice(
            "/integrity",
            f"Approved: `millstream mill duplicate` executes {plan.space} {plan.pair} now, the next loop of the "
            "producer later.",
        )
    return _confirm(call, plan, "Approve", effects(plan), danger=bool(plan.deletes or plan.changes))


def reject(call: PageRequest) -> Mapping[str, Any] | Response:
    """Decide that a held plan is not executed."""
    plan = _waiting(call)
    if call.field("confirmed") == "yes":
        holds.reject(call.app, call.ask(holds.HoldQuery, _reason(call)))
        return call.redirect_with_notice(
            f"/integrity/holds/{plan.number}", f"Rejected: the plan for {plan.space} {plan.pair} is not executed."
        )
    restored = arguments(plan.space, options="--to FOLDER")
    details = [
        f"No plan for {plan.space} from {plan.source} to {plan.destination} is executed until its source is in order: "
        f"put missing items back at {plan.source} (`millstream restore {restored}` writes them from the copies), "
        "or record their deletion (`millstream mill forget`).",
        f"Single copies after recorded changes of {plan.source} continue within the limits of the change guard.",
        "You are asked again only if the plan grows. A rejected plan can still be approved.",
    ]
    return _confirm(call, plan, "Reject", details, danger=False)


def effects(plan: PendingApproval) -> Sequence[str]:
    """The effects of an approval of *plan*, and what it does not change."""
    lines = []
    if plan.deletes:
        lines.append(f"Deletes {_copies(plan.deletes)} in {plan.destination}: their deletion is recorded.")
    if plan.changes:
        lines.append(f"Replaces {_copies(plan.changes)} in {plan.destination} by what {plan.source} has now.")
    if plan.vanished:
        command = f"millstream mill forget {arguments(plan.source, plan.space)} ID"
        lines.append(
            f"Keeps {_copies(plan.vanished)} in {plan.destination} without an original in {plan.source}: an approval "
            f"deletes no copy without a recorded deletion (`{command}`)."
        )
    if not plan.deletes and not plan.changes:
        lines.append(f"Deletes and replaces nothing in {plan.destination}.")
    lines.append(f"New and changed items of {plan.space} are copied to {plan.destination} again.")
    lines.append(f"Nothing is written to {plan.source}.")
    return lines


def _copies(count: int) -> str:
    return f"{count:,} {'copy' if count == 1 else 'copies'}"


def _waiting(call: PageRequest) -> PendingApproval:
    number = call.path["number"]
    for plan in call.app.node.stores.change_guard.pending():
        if plan.number == number:
            return plan
    raise NotFoundError(
        f"plan {number} is no longer held: it was approved or replaced; open Integrity for the current list of plans"
    )


def _reason(call: PageRequest) -> Any:
    return body_of(holds.Approval, reason=call.field("reason").strip())


def _confirm(
    call: PageRequest, plan: PendingApproval, verb: str, details: Sequence[str], *, danger: bool
) -> Mapping[str, Any]:
    page = f"/integrity/holds/{plan.number}"
    items = call.app.node.stores.change_guard.items.page(plan.pair, plan.space, limit=_FIRST)
    return {
        "what": verb,
        "effect": f"{plan.space} {plan.pair}: {plan.reason}.",
        "details": details,
        "items": items,
        "all_items": page if plan.deletes + plan.changes + plan.vanished > len(items) else None,
        "action": f"{page}/{verb.lower()}",
        "hidden": [],
        "reason_needed": True,
        "danger": danger,
        "back": page,
    }
