"""The pages of logs: their list, one log, one message; and a test message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest, body_of, parsed_json, read_time
from millstream.console.pages.batch import REASONS
from millstream.rest.views import batches, logs, topics
from millstream.status.snapshot import UnreadablePartError


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/logs", pages.show("logs.html", list_logs)),
        Route("/logs/{log}", pages.show("log.html", show_log)),
        Route("/logs/{log}/publish", pages.act(publish), methods=["POST"]),
        Route("/logs/{log}/{id:int}", pages.show("message.html", show_message)),
    ]


def list_logs(call: PageRequest) -> Mapping[str, Any]:
    """Logs, topics and groups."""
    found = logs.logs(call.app, call.ask(logs.LogsQuery))
    found_topics = topics.topics(call.app, call.ask(topics.TopicsQuery)).items
    found_groups = topics.groups(call.app, call.ask(topics.GroupsQuery)).items
    return {"logs": found, "topics": found_topics, "groups": found_groups, "kind": call.query.get("kind", "")}


def show_log(call: PageRequest) -> Mapping[str, Any]:
    """One log and its messages, from an id, a time, or the last ones."""
    first, time = call.query.get("first", ""), call.query.get("time", "")
    given: dict[str, Any] = {}
    if first:
        given["first"] = "".join(sign for sign in first if sign not in ", _") or first
    time_us = None
    if time:
        time_us = given["time"] = read_time(time)
    detail = logs.log(call.app, call.ask(logs.LogQuery))
    names = dict.fromkeys(("first", "time")) | given
    found = logs.messages(call.app, call.ask(logs.MessagesQuery, **names))
    begin = found.items[0].id if found.items else 1
    before = max(detail.log.first_id, begin - 50) if begin > detail.log.first_id else None
    return {"d": detail, "m": found, "first": first, "time": time, "time_us": time_us, "before": before}


def publish(call: PageRequest) -> Response:
    """Append a test message."""
    fields = {name: call.field(name) for name in ("body", "key", "source")}
    body = body_of(logs.NewMessage, **fields)
    done_ = logs.publish(call.app, call.ask(logs.LogQuery, body))
    return call.redirect_with_notice(f"/logs/{done_.log}", f"Appended as message {done_.id:,}.")


def show_message(call: PageRequest) -> Mapping[str, Any]:
    """One message, as a tree where it is JSON."""
    found = logs.message(call.app, call.ask(logs.MessageQuery))
    try:
        outcome = batches.message_outcome(call.app, found.log, found.id)
    except UnreadablePartError:
        outcome = None
    return {"m": found, "parsed": parsed_json(found.body), "outcome": outcome, "reasons": REASONS}
