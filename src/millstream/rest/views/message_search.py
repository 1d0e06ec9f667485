"""Search for messages by key, source, header, time and text: in one log or in all, in steps of bounded work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from millstream.log import DATA_KINDS, MessageFilter, UnreadableIds, search_messages
from millstream.log.message_search import STEP_BYTES
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Limit, Name, Number
from millstream.rest.views.logs import MessageId, MessageRow, message_row

endpoints = EndpointRegistry()

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0.05, le=10)]
Cursor = Annotated[str, msgspec.Meta(max_length=1024, pattern="^[^/]+/[1-9][0-9]{0,15}$")]


class _Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a message must have, and how much one request does."""

    key: Text | None = None
    source: Text | None = None
    header: Text | None = None
    value: Text | None = None
    text: Text | None = None
    since: Number | None = None
    until: Number | None = None
    time: Literal["received", "event"] = "received"
    limit: Limit = 50
    seconds: Seconds = 1.0


class MessageSearchQuery(_Conditions, frozen=True, kw_only=True):
    """Messages of ``log`` that match all given conditions: the exact ``key``, the exact ``source``, a ``header`` (with
    the exact ``value``), ``text`` in the body (case-sensitive), and a ``time`` of ``since`` or later and before
    ``until`` (microseconds).

    A request searches the ids from ``first`` to ``last`` until it has found ``limit`` messages, worked for ``seconds``,
    or decoded 64 MiB of columns. To continue, set ``first`` to ``next`` of the response.
    """

    log: Name
    first: MessageId | None = None
    last: MessageId | None = None


class AllLogsSearchQuery(_Conditions, frozen=True, kw_only=True):
    """Messages of all message logs that match all given conditions, which are those of a search in one log.

    The logs are searched by name. A request begins at ``first`` (``LOG/ID``; default: the first message of the first
    log) and ends when it has found ``limit`` messages, worked for ``seconds``, or decoded 64 MiB of columns. To
    continue, set ``first`` to ``next`` of the response.
    """

    first: Cursor | None = None


class MessageMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Matching messages among the ids ``first_id`` to ``searched_to`` of ``log``; the search ends at ``last_id``.

    ``next`` is the id at which to continue (None at the end). ``compared`` is the number of searched messages,
    ``bytes`` the size of the decoded columns. ``unreadable`` lists ids that could not be searched.
    """

    log: str
    items: Sequence[MessageRow]
    next: str | None
    first_id: int
    searched_to: int
    last_id: int
    compared: int
    bytes: int
    unreadable: Sequence[UnreadableIds] = ()


class AllLogsMatches(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a search in all ``logs``: an entry of ``steps`` for each log that it searched, some to their end.

    ``next`` is where to continue (``LOG/ID``, None at the end), ``found`` the number of messages of this step.
    """

    steps: Sequence[MessageMatches]
    next: str | None
    logs: int
    found: int


@endpoints.get("/logs/{log}/search", MessageSearchQuery)
def search_log(app: AppContext, request: ApiRequest[MessageSearchQuery, Any]) -> MessageMatches:
    """Search the messages of a log, a limited number per request."""
    query = request.query
    limits = {"limit": query.limit, "seconds": query.seconds}
    return _search(app, query.log, _filter_of(query), query.first, query.last, **limits)


@endpoints.get("/search/messages", AllLogsSearchQuery)
def search_all_logs(app: AppContext, request: ApiRequest[AllLogsSearchQuery, Any]) -> AllLogsMatches:
    """Search the messages of all message logs, a limited number per request."""
    query, names = request.query, message_logs(app)
    wanted, deadline = _filter_of(query), app.clock.monotonic() + query.seconds
    wanted.check()
    log, _, first = (query.first or "/").rpartition("/")
    steps, found, decoded = list[MessageMatches](), 0, 0
    for name in (name for name in names if name >= log):
        left = deadline - app.clock.monotonic()
        if steps and (found >= query.limit or left <= 0 or decoded >= STEP_BYTES):
            return AllLogsMatches(steps=steps, next=f"{name}/1", logs=len(names), found=found)
        begin = int(first) if name == log else None
        step = _search(app, name, wanted, begin, None, limit=query.limit - found, seconds=max(left, 0.05))
        steps.append(step)
        found, decoded = found + len(step.items), decoded + step.bytes
        if step.next is not None:
            return AllLogsMatches(steps=steps, next=f"{name}/{step.next}", logs=len(names), found=found)
    return AllLogsMatches(steps=steps, next=None, logs=len(names), found=found)


def message_logs(app: AppContext) -> Sequence[str]:
    """The names of the logs with messages of users, sorted."""
    return sorted(name for name, kind in app.node.logs.store.kinds().items() if kind in DATA_KINDS)


def _filter_of(query: _Conditions) -> MessageFilter:
    return MessageFilter(**{name: getattr(query, name) for name in MessageFilter.__struct_fields__})


def _search(
    app: AppContext, log: str, wanted: MessageFilter, first: int | None, last: int | None, **limits: Any
) -> MessageMatches:
    found = app.log(log)
    end = min(last or found.last_id, found.last_id)
    step = search_messages(found, wanted, first_id=first, last_id=end, clock=app.clock, **limits)
    return MessageMatches(
        log=found.name,
        items=list(map(message_row, step.messages)),
        next=None if step.next_id is None else str(step.next_id),
        first_id=step.first_id,
        searched_to=step.last_id,
        last_id=end,
        compared=step.rows,
        bytes=step.bytes,
        unreadable=step.unreadable,
    )
