"""Plans of duplication that wait for a person, and items that are gone from their source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from millstream.core.errors import NotFoundError
from millstream.mill.duplication.change_guard import DecisionRecorder, PendingApproval
from millstream.mill.duplication.held_items import HeldItem
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Limit, Listing, Name, Number

endpoints = EndpointRegistry()

HoldNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class HoldQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The held plan ``number``."""

    number: HoldNumber


class HeldItemsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items of the held plan ``number`` with ids after ``after``."""

    number: HoldNumber
    after: str = ""
    limit: Limit = 100


class VanishedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that vanished from their source (the ``store``, the ``space``), after the first ``offset``."""

    store: str | None = None
    space: str | None = None
    offset: Number = 0
    limit: Limit = 100


class HeldItemQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content item ``content_id`` of ``space``."""

    space: Name
    content_id: Name


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason for an approval or a rejection."""

    reason: Annotated[str, msgspec.Meta(min_length=3, max_length=500)]


@endpoints.get("/integrity/holds")
def holds(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[PendingApproval]:
    """List the held plans, and those with a valid approval."""
    found = app.node.stores.change_guard.pending(approved=True)
    return Listing(found, total=len(found))


@endpoints.get("/integrity/holds/{number}", HoldQuery)
def hold(app: AppContext, request: ApiRequest[HoldQuery, Any]) -> PendingApproval:
    """Show a held plan, or one with a valid approval."""
    number = request.query.number
    for found in app.node.stores.change_guard.pending(approved=True):
        if found.number == number:
            return found
    raise NotFoundError(
        f"there is no plan {number}: it was replaced, or its approval has expired; `/integrity/holds` lists the plans"
    )


@endpoints.get("/integrity/holds/{number}/items", HeldItemsQuery)
def held_items(app: AppContext, request: ApiRequest[HeldItemsQuery, Any]) -> Listing[HeldItem]:
    """List the items that a held plan would delete or replace, and those that have no original."""
    query = request.query
    plan = hold(app, ApiRequest(HoldQuery(query.number), request.body, request.principal))
    found = app.node.stores.change_guard.items.page(plan.pair, plan.space, after=query.after, limit=query.limit + 1)
    rows = found[: query.limit]
    return Listing(rows, rows[-1].content_id if len(found) > query.limit else None)


@endpoints.get("/integrity/vanished", VanishedQuery)
def vanished(app: AppContext, request: ApiRequest[VanishedQuery, Any]) -> Listing[HeldItem]:
    """List the items that vanished from their source without a recorded deletion, the longest ago first."""
    query = request.query
    items = app.node.stores.change_guard.items
    found = items.vanished(query.store, query.space, offset=query.offset, limit=query.limit + 1)
    rows = found[: query.limit]
    return Listing(rows, str(query.offset + len(rows)) if len(found) > query.limit else None)


@endpoints.get("/integrity/copies/plans", HeldItemQuery)
def plans_of_item(app: AppContext, request: ApiRequest[HeldItemQuery, Any]) -> Listing[HeldItem]:
    """List what plans of duplication do to the copies of one item: delete, replace, or keep without an original."""
    found = app.node.stores.change_guard.items.of_item(request.query.space, request.query.content_id)
    return Listing(found, total=len(found))


@endpoints.post("/integrity/holds/{number}/approve", HoldQuery, Approval)
def approve(app: AppContext, request: ApiRequest[HoldQuery, Approval]) -> PendingApproval:
    """Approve a held plan: the next `millstream mill duplicate` or loop of the producer executes it."""
    (approved,) = app.node.stores.change_guard.approve([request.query.number], _recorder(app, request, "approve"))
    app.poller.hurry()
    return approved


@endpoints.post("/integrity/holds/{number}/reject", HoldQuery, Approval)
def reject(app: AppContext, request: ApiRequest[HoldQuery, Approval]) -> PendingApproval:
    """Reject a held plan: it is not executed, and needs a new decision only if it grows."""
    number, by, reason = request.query.number, request.principal.name, request.body.reason
    rejected = app.node.stores.change_guard.reject(number, by, reason, _recorder(app, request, "reject"))
    app.poller.hurry()
    return rejected


def plan_of(item: HeldItem, plans: Sequence[PendingApproval]) -> PendingApproval | None:
    """The one of *plans* that *item* is of."""
    place = (item.source, item.destination, item.space)
    return next((one for one in plans if (one.source, one.destination, one.space) == place), None)


def _recorder(app: AppContext, request: ApiRequest[HoldQuery, Approval], action: str) -> DecisionRecorder:
    return app.operator_log.decision_recorder(request.principal.name, action, reason=request.body.reason)
