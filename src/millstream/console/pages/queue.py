"""The pages of queues: their list, one queue, dead letters, one dead task."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import FormError, PageRenderer, PageRequest, body_of, parsed_json
from millstream.console.rendering import idle_since
from millstream.rest.views import queues

_MOST_NAMED = 20
_LAST_DONE = 10
"""Events of the operator audit log that the page of a queue shows."""


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/queues", pages.show("queues.html", list_queues)),
        Route("/queues/{queue}", pages.show("queue.html", show_queue)),
        Route("/queues/{queue}/redrive", pages.act(redrive), methods=["POST"]),
        Route("/queues/{queue}/discard", pages.act(discard), methods=["POST"]),
        Route("/queues/{queue}/{task_id:int}/amend", pages.act(amend), methods=["POST"]),
        Route("/queues/{queue}/{task_id:int}", pages.show("task.html", show_task)),
        Route("/dead-letters", pages.show("dead_letters.html", list_dead_letters)),
    ]


def list_queues(call: PageRequest) -> Mapping[str, Any]:
    """All queues."""
    found = queues.queues(call.app, call.ask())
    coarse = call.query.get("past") == "day"
    samples = call.app.poller.history(coarse=coarse)
    return {
        "coarse": coarse,
        "queues": sorted(found.items, key=lambda one: (-one.dead, -(one.ready + one.leased + one.delayed))),
        "alarms": queues.alarms(call.app, call.ask()).items,
        "unreadable": found.unreadable,
        "limits": call.app.node.settings.mill.alarms,
        "open_tasks": [sample.open_tasks for sample in samples],
        "idle_since": idle_since(samples, [one.open_tasks + one.dead_tasks for one in samples]),
    }


def show_queue(call: PageRequest) -> Mapping[str, Any]:
    """One queue, its dead letters by cause and one by one."""
    detail = queues.queue(call.app, call.ask(queues.QueueQuery))
    ask = call.ask(queues.DeadQuery)
    dead = queues.dead(call.app, ask)
    name = detail.figures.queue
    coarse = call.query.get("past") == "day"
    past = call.app.poller.queue_history(name, coarse=coarse)
    return {
        "d": detail,
        "q": detail.figures,
        "dead": dead,
        "cause": ask.query.cause,
        "after": ask.query.after,
        "alarms": [
            one
            for one in call.app.poller.alarms()
            if one.queue == name and (detail.figures.dead or one.kind != "dead-letters")
        ],
        "open_tasks": [sample.ready + sample.leased + sample.delayed for sample in past],
        "idle_since": idle_since(past, [one.ready + one.leased + one.delayed + one.dead for one in past]),
        "coarse": coarse,
        "done": call.app.operator_log.last(_LAST_DONE, target=f"queue {name}"),
    }


def list_dead_letters(call: PageRequest) -> Mapping[str, Any]:
    """The dead letters of all queues by cause."""
    query = call.ask(queues.DeadLettersQuery)
    return {"groups": queues.dead_letters(call.app, query), "sort": query.query.sort}


def show_task(call: PageRequest) -> Mapping[str, Any]:
    """One dead task."""
    row = queues.dead_task(call.app, call.ask(queues.TaskQuery))
    return {"queue": call.path["queue"], "row": row, "parsed": parsed_json(row.body)}


def amend(call: PageRequest) -> Mapping[str, Any] | Response:
    """Give a dead task another body."""
    name, number = call.path["queue"], call.path["task_id"]
    back = f"/queues/{quote(name)}/{number}"
    body, seen = call.field("body").replace("\r\n", "\n"), call.field("seen")
    if call.field("confirmed") == "yes":
        made = body_of(queues.Amendment, body=body, seen=seen, reason=call.field("reason").strip())
        queues.amend(call.app, call.ask(queues.TaskQuery, made))
        return call.redirect_with_notice(back, "Body replaced. Redrive the task to retry it.")
    row = queues.dead_task(call.app, call.ask(queues.TaskQuery))
    if row.body == body:
        return call.redirect_with_notice(back, "Nothing was changed.")
    before, after = (row.body or "").split("\n"), body.split("\n")
    return {
        "what": "Save",
        "effect": f"Task {number} of the queue {name} gets a new body. It stays dead until it is redriven.",
        "details": [],
        "diff": list(difflib.unified_diff(before, after, "before", "after", lineterm="")),
        "action": f"{back}/amend",
        "hidden": [("body", body), ("seen", seen)],
        "reason_needed": True,
        "danger": True,
        "back": back,
    }


def redrive(call: PageRequest) -> Mapping[str, Any] | Response:
    """Try dead tasks again."""
    name, chosen, words = call.path["queue"], *_chosen(call)
    if call.field("confirmed") != "yes":
        effect = f"{words} of the queue {name}: retried as new tasks."
        return _confirm(call, "Redrive", effect, danger=False)
    rate = call.field("per_second").strip() or None
    settled = queues.redrive(call.app, call.ask(queues.QueueQuery, body_of(queues.Redrive, per_second=rate, **chosen)))
    said = f"{settled.tasks:,} task{' is' if settled.tasks == 1 else 's are'} ready again"
    return call.redirect_with_notice(f"/queues/{quote(name)}", f"{said}, {rate} per second." if rate else f"{said}.")


def discard(call: PageRequest) -> Mapping[str, Any] | Response:
    """Give dead tasks up, with a reason."""
    name, chosen, words = call.path["queue"], *_chosen(call)
    if call.field("confirmed") != "yes":
        return _confirm(call, "Discard", f"{words} of the queue {name}: discarded for good.", danger=True)
    body = body_of(queues.Discard, reason=call.field("reason").strip(), **chosen)
    settled = queues.discard(call.app, call.ask(queues.QueueQuery, body))
    return call.redirect_with_notice(
        f"/queues/{quote(name)}", f"{settled.tasks:,} tasks were discarded; the operator audit log keeps the reason."
    )


def _chosen(call: PageRequest) -> tuple[dict[str, Any], str]:
    """Which dead tasks the form speaks of, and in words."""
    if call.field("by") == "cause":
        cause = call.field("cause")
        count = next((one.count for one in call.app.queues.causes(call.path["queue"]) if one.cause == cause), 0)
        return {"cause": cause}, f"{count:,} dead tasks with the cause “{cause or 'none given'}”"
    if call.field("by") == "all":
        count, most = call.app.queues.depth(call.path["queue"]).dead, queues.MOST_AT_ONCE
        which = f"all {count:,}" if count <= most else f"the first {most:,} of {count:,}"
        return {"everything": True}, f"{which} dead tasks, whatever their cause,"
    ids = call.fields("task")
    if not ids:
        raise FormError("select at least one task")
    return {"task_ids": ids}, f"{len(ids):,} dead task{'' if len(ids) == 1 else 's'}"


def _confirm(call: PageRequest, verb: str, effect: str, *, danger: bool) -> Mapping[str, Any]:
    name = quote(call.path["queue"])
    ids = call.fields("task")
    hidden = [("by", call.field("by")), *([("cause", call.field("cause"))] if call.field("by") == "cause" else [])]
    causes = call.app.queues.causes(call.path["queue"]) if call.field("by") == "all" else []
    named = [f"{one.count:,} × {one.cause or 'no cause given'}" for one in causes] + [f"task {one}" for one in ids]
    grouped = sum(one.count for one in causes)
    if causes and grouped < call.app.queues.depth(call.path["queue"]).dead:
        named.insert(0, f"causes of the first {grouped:,} tasks:")
    return {
        "what": verb,
        "effect": effect[:1].upper() + effect[1:],
        "details": named[:_MOST_NAMED] + (["…"] if len(named) > _MOST_NAMED else []),
        "action": f"/queues/{name}/{verb.lower()}",
        "hidden": [*hidden, *(("task", one) for one in ids)],
        "reason_needed": danger,
        "rate_asked": not danger and len(ids) != 1,
        "danger": danger,
        "back": f"/queues/{name}",
    }
