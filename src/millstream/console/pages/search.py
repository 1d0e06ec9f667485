"""The pages of search: everything that has a name, and the messages of a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest, read_time, sentence
from millstream.console.rendering import link
from millstream.core.errors import InputError
from millstream.rest.views import message_search, search

ROWS = 50
"""Messages after which a search waits for a person."""

STEP_SECONDS = 0.5
_CRITERIA = ("key", "source", "header", "value", "text", "since", "until")


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/find", pages.show("search.html", find)),
        Route("/messages", pages.show("messages.html", find_messages)),
    ]


def find(call: PageRequest) -> Mapping[str, Any] | Response:
    """Go to the page of the only thing with that name; otherwise list what was found, and what was searched."""
    text = call.query.get("q", "").strip()
    page = {"q": text, "answer": None, **_form(call), "criteria": dict.fromkeys(_CRITERIA, "") | {"key": text}}
    page["time"] = "received"
    if not text:
        return page
    answer = search.find(call.app, call.ask(search.FindQuery, q=text))
    exact = [result for result in answer.items if result.exact]
    if len(exact) == 1:
        return RedirectResponse(exact[0].page, 303)
    return {**page, "answer": answer}


def find_messages(call: PageRequest) -> Mapping[str, Any]:
    """One step of a search over the messages of a log, or of all logs in turn; the page asks for the next one.

    Without ``log``, ``at`` is the log whose turn it is.
    """
    criteria = {name: call.query.get(name, "").strip() for name in _CRITERIA}
    time = call.query.get("time") or "received"
    form = _form(call)
    page = {**form, "criteria": criteria, "time": time, "m": None, "error": None, "turn": None}
    at = form["log"] or call.query.get("at") or next(iter(form["logs"]), "")
    if not any(criteria.values()):
        return {**page, "error": "Fill in at least one field." if "key" in call.query else None}
    hits = _number(call.query.get("hits", ""))
    given: dict[str, Any] = {name: value or None for name, value in criteria.items()}
    try:
        given |= {name: read_time(criteria[name]) for name in ("since", "until") if criteria[name]}
        query = call.ask(
            message_search.MessageSearchQuery, log=at, limit=ROWS - hits % ROWS, seconds=STEP_SECONDS, **given
        )
        step = message_search.search_log(call.app, query)
    except InputError as error:
        return {**page, "error": sentence(error)}
    hits += len(step.items)
    begun = _number(call.query.get("begun", "")) or step.first_id
    onward = {"log": form["log"], **criteria, "time": time, "hits": hits}
    later = [] if form["log"] else [name for name in form["logs"] if name > at]
    following = None
    if step.next:
        here = {"at": None if form["log"] else at, "last": step.last_id, "begun": begun, "first": step.next}
        following = link("/messages", **onward, **here)
    elif later:
        following = link("/messages", **onward, at=later[0])
    if not form["log"]:
        page["turn"] = len(form["logs"]) - len(later)
    waits = bool(step.items) and hits % ROWS == 0
    return {**page, "m": step, "hits": hits, "begun": begun, "next": following, "waits": waits}


def _form(call: PageRequest) -> dict[str, Any]:
    names = message_search.message_logs(call.app)
    log = call.query.get("log", "")
    return {"logs": names if log in names or not log else [*names, log], "log": log}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
