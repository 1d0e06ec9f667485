"""From what somebody typed into the field at the top to the page about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from millstream.console.page import PageRequest
from millstream.core.cid import is_cid
from millstream.rest.app_context import AppContext


def search(call: PageRequest) -> Response:
    """Go to the page of what is asked for; where nothing has that name, to the spaces whose names hold it."""
    text = call.query.get("q", "").strip()
    return RedirectResponse(search_result(call.app, text), 303)


def search_result(app: AppContext, text: str) -> str:
    """The page of the log, message (``log/id``), queue, file, batch, DID, anchor or account called *text*."""
    if not text:
        return "/"
    found = (look(app, text) for look in _LOOKS)
    return next((place for place in found if place), f"/integrity?text={quote(text)}")


def _identifier(_app: AppContext, text: str) -> str:
    return f"/identifiers?did={quote(text)}" if text.startswith("did:") else ""


def _log(app: AppContext, text: str) -> str:
    name, _, number = text.partition("/")
    if name not in {row.log for row in app.poller.snapshot.logs}:
        return ""
    return f"/logs/{quote(name)}/{int(number)}" if number.isdecimal() else f"/logs/{quote(name)}"


def _queue(app: AppContext, text: str) -> str:
    return f"/queues/{quote(text)}" if text in app.queues.names() else ""


def _file(_app: AppContext, text: str) -> str:
    return f"/files/{text}" if is_cid(text) else ""


def _batch(app: AppContext, text: str) -> str:
    for row in app.poller.snapshot.logs:
        if app.batches.batch(row.log, text) or app.node.anchoring.observer.index.find_batch(row.log, text):
            return f"/batches/one?log={quote(row.log)}&batch={quote(text)}"
    return ""


def _anchor(_app: AppContext, text: str) -> str:
    return f"/anchors/{int(text)}" if text.isdecimal() and len(text) < 16 else ""


def _account(app: AppContext, text: str) -> str:
    from millstream.rest.views.policies import accounts

    return f"/policies/{quote(text, safe='')}" if text in accounts(app) else ""


_LOOKS: Sequence[Callable[[AppContext, str], str]] = (_identifier, _log, _queue, _file, _account, _anchor, _batch)
