"""The pages of batches: when they are, why they ended, which messages are in none, and one with its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest
from millstream.core.message import MessageError, decode_line
from millstream.rest.views import batches

_BODY = 300
"""Characters of a body that a row shows."""

CUTS = {
    "window": "window closed",
    "conflict": "repeated key",
    "size": "size limit reached",
    "neighbour": "next batch of the source began",
    "flush": "flushed manually",
}
"""The reasons why a batch ended, in words."""

REASONS = {
    "late": "received after its batch was final",
    "future": "event time too far ahead",
    "duplicate": "same record already batched",
    "conflicting_duplicate": "different record with the same key and time",
}
"""The reasons why a message was rejected, in words."""


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/batches", pages.show("batches.html", list_batches)),
        Route("/batches/one", pages.show("batch.html", show_batch)),
        Route("/batches/rejected", pages.show("rejected.html", list_rejected)),
    ]


def list_batches(call: PageRequest) -> Mapping[str, Any]:
    """Batches over time, by state, by why they ended, and one by one."""
    app = call.app
    timeline = batches.timeline(app, call.ask(batches.TimelineQuery)).items
    ask = call.ask(batches.BatchesQuery)
    chosen = {name: call.query.get(name) for name in ("log", "only", "ended", "since", "until")}
    return {
        "batches": batches.batches(app, ask),
        "ends": batches.ends(app, call.ask()).items,
        "rejects": batches.rejects(app, call.ask()).items,
        "states": batches.states(app, call.ask()).items,
        "logs": batches.batched_logs(app, call.ask()).items,
        "timeline": timeline,
        "begin": min((row.at for row in timeline), default=None),
        "end": max((row.until for row in timeline), default=None),
        "chosen": chosen,
        "where": {name: chosen[name] for name in ("log", "since", "until")},
        "before": call.query.get("before"),
        "cuts": CUTS,
        "reasons": REASONS,
    }


def list_rejected(call: PageRequest) -> Mapping[str, Any]:
    """Messages that are in no batch, one by one."""
    ask = call.ask(batches.RejectedQuery)
    query = ask.query
    counts = [row for row in batches.rejects(call.app, call.ask()).items if row.log == query.log]
    facts = {"log": query.log, "reason": query.reason, "after": query.after, "reasons": REASONS, "counts": counts}
    return {"messages": batches.rejected(call.app, ask), **facts}


def show_batch(call: PageRequest) -> Mapping[str, Any]:
    """One batch, and the messages that its file holds."""
    found = batches.batch(call.app, call.ask(batches.BatchQuery))
    messages = batches.batch_messages(call.app, call.ask(batches.BatchMessagesQuery))
    where = {"log": found.log, "batch": found.batch}
    facts = {"where": where, "offset": call.query.get("offset"), "cuts": CUTS}
    return {"b": found, "messages": messages, "stored": [stored_message(one.line) for one in messages.items], **facts}


def stored_message(line: str) -> Mapping[str, Any]:
    """What a row of the page shows of a message of a batch file; the whole line where it is none."""
    try:
        message = decode_line(line.encode("utf-8"))
    except MessageError:
        return {"id": 0, "event_time": None, "source": "", "key": "", "body": line}
    body = message.body.decode("utf-8", "replace")[:_BODY]
    return msgspec.structs.asdict(message) | {"body": body}
