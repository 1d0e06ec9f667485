"""The pages of batches: their times, end reasons and messages; messages that are in none; and the batching rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.routing import BaseRoute, Route

from millstream.batching.batch_config import BatchConfig
from millstream.console.formatting import number
from millstream.console.page_renderer import PageRenderer, PageRequest
from millstream.core.amounts import format_duration
from millstream.core.message import MessageError, decode_line
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, Listing
from millstream.rest.views import batches
from millstream.status.snapshot import UnreadablePartError

Row = TypeVar("Row")

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


RULE_STATES = {
    "earlier": ("earlier", "soft"),
    "in-force": ("in force", "good"),
    "pending": ("not reached yet", "warn"),
    "not-begun": ("no batches yet", "soft"),
    "unknown": ("unknown", "warn"),
}
"""The states of batching rules in words, and how they are marked."""

_DURATIONS = ("window", "max_delay", "leap", "grace")
_UNSET_RULES = {"max_count": "no limit", "max_bytes": "no limit", "late": "reject"}


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/batches", pages.show("batches.html", list_batches)),
        Route("/batches/one", pages.show("batch.html", show_batch)),
        Route("/batches/rejected", pages.show("rejected.html", list_rejected)),
        Route("/batches/rules", pages.show("batch_rules.html", list_rules)),
    ]


def list_batches(call: PageRequest) -> Mapping[str, Any]:
    """Batches over time, by state, by why they ended, and one by one."""
    app = call.app
    timeline = batches.timeline(app, call.ask(batches.TimelineQuery)).items
    ask = call.ask(batches.BatchesQuery)
    chosen = {name: call.query.get(name) for name in ("log", "only", "ended", "since", "until")}
    return {
        "batches": batches.batches(app, ask),
        "ends": _known(batches.ends, call),
        "rejects": _known(batches.rejects, call),
        "states": _known(batches.states, call),
        "logs": _known(batches.batched_logs, call),
        "unreadable": app.poller.snapshot.unreadable_user_logs,
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
    counts = [row for row in _known(batches.rejects, call) or () if row.log == query.log]
    facts = {"log": query.log, "reason": query.reason, "after": query.after, "reasons": REASONS, "counts": counts}
    return {"messages": batches.rejected(call.app, ask), **facts}


def _known(view: Callable[[AppContext, ApiRequest[Any, Any]], Listing[Row]], call: PageRequest) -> Sequence[Row] | None:
    """The rows of *view*; None where they cannot be read, so that the rest of the page is shown."""
    try:
        return view(call.app, call.ask()).items
    except UnreadablePartError:
        return None


def list_rules(call: PageRequest) -> Mapping[str, Any]:
    """The batching rules of each log that is batched: those in force, those before, and those to come."""
    rows = batches.batching_rules(call.app, call.ask()).items
    latest = {row.output: row for row in rows}
    return {
        "rows": [(row, rule_facts(row.rules), override_facts(row.rules)) for row in rows],
        "states": RULE_STATES,
        "reached": {output: row.batched_to for output, row in latest.items() if row.batched_to is not None},
        "unused": [row for row in latest.values() if row.as_in_settings is False],
    }


def rule_facts(rules: Mapping[str, Any] | None) -> Mapping[str, str]:
    """The members of *rules* (those of :class:`BatchConfig`) as text, without the mode unless it is ``faithful``."""
    given = {**_UNSET_RULES, **rules} if rules else {}
    facts = {}
    for name in BatchConfig.__struct_fields__:
        value = given.get(name)
        if value is None or (name, value) == ("mode", "order-free"):
            continue
        if name in _DURATIONS:
            facts[name] = format_duration(value)
        else:
            facts[name] = number(value) if isinstance(value, int) else value
    return facts


def override_facts(rules: Mapping[str, Any] | None) -> Sequence[tuple[str, Mapping[str, str]]]:
    """Each override of *rules*: which messages it is for, and the members that differ from those of all others."""
    usual = rule_facts(rules)
    found = []
    for override in (rules or {}).get("overrides", ()):
        which = [f"{name} {override[name]}" for name in ("source", "key") if override[name] is not None]
        own = rule_facts(override["config"])
        found.append((", ".join(which), {name: text for name, text in own.items() if usual.get(name) != text}))
    return found


def show_batch(call: PageRequest) -> Mapping[str, Any]:
    """One batch, and the messages that its file holds."""
    found = batches.batch(call.app, call.ask(batches.BatchQuery))
    nothing = Listing[batches.BatchMessage](())
    messages = batches.batch_messages(call.app, call.ask(batches.BatchMessagesQuery)) if not found.trouble else nothing
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
