"""The members of a node: the processes that serve it, where its database is on a server."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.node.members.members_status import MemberRow, UnownedRole, member_row
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing, Name

endpoints = EndpointRegistry()


class MemberQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The member with the id ``member``."""

    member: Name


@endpoints.get("/members")
def members(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[MemberRow]:
    """List the members of the node, and those that ended in the last day; none where its database is a file."""
    status = app.node.databases.members.status()
    rows = status.rows if status is not None else []
    return Listing(rows, total=len(rows), as_of=status.at if status is not None else None)


@endpoints.get("/members/unowned-roles")
def unowned_roles(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[UnownedRole]:
    """List the roles that members offer and none of them runs."""
    status = app.node.databases.members.status()
    roles = status.unowned if status is not None else []
    return Listing(roles, total=len(roles), as_of=status.at if status is not None else None)


@endpoints.post("/members/{member}/drain", MemberQuery)
def drain(app: AppContext, request: ApiRequest[MemberQuery, Any]) -> MemberRow:
    """Let a member give its roles up, and take none."""
    return _drained(app, request, draining=True)


@endpoints.post("/members/{member}/cancel-drain", MemberQuery)
def cancel_drain(app: AppContext, request: ApiRequest[MemberQuery, Any]) -> MemberRow:
    """Let a member that drains take roles again."""
    return _drained(app, request, draining=False)


def _drained(app: AppContext, request: ApiRequest[MemberQuery, Any], *, draining: bool) -> MemberRow:
    app.node.databases.members.require_shared()
    app.operator_log.check()
    table, member = app.node.databases.members.table, request.query.member
    table.drain(member, draining=draining)
    app.operator_log.add(request.principal.name, "drain" if draining else "cancel drain", f"member {member}")
    app.poller.hurry()
    return member_row(table.find(member), table.time())
