"""The page of the members of a node: who serves it, and who owns which role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.console.formatting import since
from millstream.console.page_renderer import PageRenderer, PageRequest
from millstream.rest.views import members


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/members", pages.show("members.html", show_members)),
        Route("/members/{member}/drain", pages.act(drain), methods=["POST"]),
        Route("/members/{member}/cancel-drain", pages.act(cancel_drain), methods=["POST"]),
    ]


def show_members(call: PageRequest) -> Mapping[str, Any]:
    """The members, and the roles without an owner."""
    status = call.app.node.databases.members.status()
    if status is None:
        return {"is_shared": False}
    return {
        "is_shared": True,
        "serving": status.rows[: len(status.serving)],
        "others": status.rows[len(status.serving) :],
        "unowned": status.unowned,
        "lease_seconds": status.lease / 1_000_000,
        "ago": lambda at: since(at, status.at),  # by the database's clock, as all times of members
    }


def drain(call: PageRequest) -> Mapping[str, Any] | Response:
    """Let a member give its roles up."""
    member = call.path["member"]
    if call.field("confirmed") == "yes":
        members.drain(call.app, call.ask(members.MemberQuery))
        return call.redirect_with_notice("/members", f"{member} gives its roles up, and takes none.")
    details = [
        "Running work is finished first; then other members take the roles over.",
        "The process keeps running, with its workers and its console. Stop it when it owns no more roles.",
        "It takes roles again after Cancel drain.",
    ]
    return _confirm(member, "Drain", f"{member} gives its roles up, and takes none.", details)


def cancel_drain(call: PageRequest) -> Mapping[str, Any] | Response:
    """Let a member take roles again."""
    member = call.path["member"]
    if call.field("confirmed") == "yes":
        members.cancel_drain(call.app, call.ask(members.MemberQuery))
        return call.redirect_with_notice("/members", f"{member} may take roles again.")
    details = ["It takes roles again once it has two less than another member, or a role has no owner."]
    return _confirm(member, "Cancel drain", f"{member} may take roles again.", details)


def _confirm(member: str, what: str, effect: str, details: list[str]) -> Mapping[str, Any]:
    return {
        "what": what,
        "effect": effect,
        "details": details,
        "action": f"/members/{member}/{what.lower().replace(' ', '-')}",
        "hidden": [],
        "reason_needed": False,
        "danger": False,
        "back": "/members",
    }
