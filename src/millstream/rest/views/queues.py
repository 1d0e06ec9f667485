"""Work queues and their dead letters."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from millstream.core.errors import InputError, MillstreamError, NotFoundError
from millstream.mill.remedies import outcome_of
from millstream.mill.tasks import MAX_TASK_BYTES, QueueName, decode_task
from millstream.mill.workers.scaling import recommended, scaling_of
from millstream.queue import DeadLetterGroup, DeadTask
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import (
    ApiRequest,
    EndpointRegistry,
    Limit,
    Listing,
    Name,
    Number,
    PartialListing,
    partial_listing,
)
from millstream.status.models import QueueAlarm, QueueSample, QueueStatus

endpoints = EndpointRegistry()

MOST_AT_ONCE = 100_000
"""Dead tasks that one call redrives or discards."""

MOST_BODY = MAX_TASK_BYTES
"""Characters of a task that is amended."""

MOST_CAUSES = 50
"""Groups of dead tasks that come with a queue; ``causes`` returns the others."""

Reason = Annotated[str, msgspec.Meta(min_length=3, max_length=500)]
TaskId = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
PerSecond = Annotated[float, msgspec.Meta(ge=0.001, le=100_000)]
_OF_THE_MILL = frozenset(name.value for name in QueueName)
TaskIds = Annotated[Sequence[TaskId], msgspec.Meta(max_length=10_000)]


class ChoiceError(InputError):
    """Name the tasks by exactly one of task_ids, cause and everything."""


class NoTaskError(NotFoundError):
    """The queue has no such dead task."""


class ChangedTaskError(MillstreamError):
    """The task has changed since you read it (amended, redriven or discarded): read the task again."""


class QueueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``queue`` is its name."""

    queue: Name


class CausesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Causes of dead tasks in ``queue``, after the ``offset`` largest groups."""

    queue: Name
    offset: Number = 0
    limit: Limit = 1000


class DeadLettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sort`` is ``largest`` (most tasks), ``oldest`` (first died first) or ``latest`` (last died first)."""

    sort: Literal["largest", "oldest", "latest"] = "largest"


class QueueHistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples of ``queue`` after ``since`` (microseconds). ``coarse``: one per minute of the last day; otherwise one
    per two seconds of the last half hour.
    """

    queue: Name
    since: Number = 0
    coarse: bool = False


class DeadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead tasks of ``queue`` with ids above ``after``; with ``cause``, only those of that group."""

    queue: Name
    after: Number = 0
    cause: str | None = None
    limit: Limit = 50


class TaskQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dead task ``task_id`` of ``queue``."""

    queue: Name
    task_id: TaskId


class Redrive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dead tasks to retry: those with these ids, those with this cause (as ``causes`` names it), or all.

    ``per_second`` limits the rate; otherwise all are retried at once.
    """

    task_ids: TaskIds | None = None
    cause: str | None = None
    everything: bool = False
    per_second: PerSecond | None = None


class Amendment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new body of a dead task, and the reason. ``seen`` is the ``sha256`` of the body that it replaces."""

    body: Annotated[str, msgspec.Meta(max_length=MOST_BODY)]
    seen: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    reason: Reason


class Discard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dead tasks to discard, and the reason; see ``Redrive``."""

    reason: Reason
    task_ids: TaskIds | None = None
    cause: str | None = None
    everything: bool = False


class DeadRow(msgspec.Struct, frozen=True):
    """A dead task. ``body`` is the beginning of its text; ``died_at`` is in microseconds."""

    task_id: int
    died_at: int
    attempts: int
    cause: str
    body: str


class WholeTask(msgspec.Struct, frozen=True):
    """A dead task with its complete body, as text or else in base64; ``sha256`` is the hash of the body."""

    task_id: int
    died_at: int
    attempts: int
    cause: str
    bytes: int
    sha256: str
    body: str | None = None
    body_base64: str | None = None


class QueueDetail(msgspec.Struct, frozen=True):
    """The status of a queue, its workers (None without any), and its dead tasks by cause.

    ``groups`` is the number of causes; ``causes`` lists the largest.
    """

    figures: QueueStatus
    holder: str | None
    causes: Sequence[DeadLetterGroup]
    groups: int


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead tasks of one queue that died alike; see :class:`~millstream.queue.DeadLetterGroup`.

    ``code`` is the outcome that the cause begins with (``D14``), ``todo`` its remedy; None for other causes.
    """

    queue: str
    cause: str
    count: int
    first_died_at: int
    last_died_at: int
    example: str
    code: str | None = None
    todo: str | None = None


class Settled(msgspec.Struct, frozen=True):
    """The number of redriven or discarded tasks."""

    queue: str
    tasks: int


@endpoints.get("/queues")
def queues(app: AppContext, _ask: ApiRequest[Any, Any]) -> PartialListing[QueueStatus]:
    """List the work queues: tasks that are ready, leased, delayed and dead."""
    return partial_listing(app.poller.queues(), app.poller.unreadable_queues)


@endpoints.get("/queues/{queue}", QueueQuery)
def queue(app: AppContext, request: ApiRequest[QueueQuery, Any]) -> QueueDetail:
    """Show the status of a queue, its workers, and the causes of its dead tasks."""
    name = request.query.queue
    depth = app.queues.depth(name)
    desired = recommended({name: depth}, scaling_of(app.node.settings.mill.scaling))
    status = QueueStatus.of(name, depth, desired.get(name))
    found = app.queues.causes(name)
    return QueueDetail(status, app.queues.holder(name), found[:MOST_CAUSES], len(found))


@endpoints.get("/queues/{queue}/history", QueueHistoryQuery)
def queue_history(app: AppContext, request: ApiRequest[QueueHistoryQuery, Any]) -> Listing[QueueSample]:
    """Show the samples of a queue of the last half hour or day, as far as this process has seen it."""
    query = request.query
    app.queues.depth(query.queue)
    found = app.poller.queue_history(query.queue, coarse=query.coarse, since=query.since)
    return Listing(found, total=len(found))


@endpoints.get("/alarms")
def alarms(app: AppContext, _ask: ApiRequest[Any, Any]) -> PartialListing[QueueAlarm]:
    """List the current alarms about queues."""
    return partial_listing(app.poller.alarms(), app.poller.unreadable_queues)


@endpoints.get("/dead-letters", DeadLettersQuery)
def dead_letters(app: AppContext, request: ApiRequest[DeadLettersQuery, Any]) -> PartialListing[DeadGroup]:
    """List the causes of the dead tasks of all queues, the largest group first; of each queue the largest groups."""
    found = [
        _group(figures.queue, one)
        for figures in app.poller.queues()
        if figures.dead
        for one in app.queues.causes(figures.queue)[:MOST_CAUSES]
    ]
    orders: Mapping[str, Callable[[DeadGroup], int]] = {
        "largest": lambda group: -group.count,
        "oldest": lambda group: group.first_died_at,
        "latest": lambda group: -group.last_died_at,
    }
    found.sort(key=orders[request.query.sort])
    return partial_listing(found, app.poller.unreadable_queues)


@endpoints.get("/queues/{queue}/causes", CausesQuery)
def causes(app: AppContext, request: ApiRequest[CausesQuery, Any]) -> Listing[DeadLetterGroup]:
    """List the causes of the dead tasks of a queue, the largest group first."""
    query, found = request.query, app.queues.causes(request.query.queue)
    end = query.offset + query.limit
    return Listing(found[query.offset : end], str(end) if end < len(found) else None, total=len(found))


@endpoints.get("/queues/{queue}/dead", DeadQuery)
def dead(app: AppContext, request: ApiRequest[DeadQuery, Any]) -> Listing[DeadRow]:
    """List the dead tasks of a queue."""
    query = request.query
    found = app.queues.dead(query.queue, limit=query.limit + 1, after=query.after, cause=query.cause)
    rows = [_row(task) for task in found[: query.limit]]
    return Listing(rows, str(rows[-1].task_id) if len(found) > query.limit else None)


@endpoints.get("/queues/{queue}/dead/{task_id}", TaskQuery)
def dead_task(app: AppContext, request: ApiRequest[TaskQuery, Any]) -> WholeTask:
    """Show a dead task with its complete body."""
    task = _task(app, request.query)
    facts = (task.task_id, task.died_at, task.attempts, task.cause, len(task.body), _digest(task.body))
    try:
        return WholeTask(*facts, body=task.body.decode("utf-8"))
    except UnicodeDecodeError:
        return WholeTask(*facts, body_base64=base64.b64encode(task.body).decode("ascii"))


@endpoints.post("/queues/{queue}/dead/{task_id}/amend", TaskQuery, Amendment)
def amend(app: AppContext, request: ApiRequest[TaskQuery, Amendment]) -> WholeTask:
    """Replace the body of a dead task, if it is still the one you saw; the task stays dead until it is redriven."""
    name, wanted = request.query.queue, request.body
    before = _task(app, request.query).body
    after = wanted.body.encode("utf-8", "surrogatepass")
    if name in _OF_THE_MILL:
        decode_task(after)
    app.operator_log.check()
    with app.queues.taken(name) as found:
        if _digest(before) != wanted.seen or not found.amend(request.query.task_id, after, seen=before):
            raise ChangedTaskError
    texts = {"before": _short(before), "after": _short(after)}
    app.operator_log.add(
        request.principal.name, "amend", f"queue {name}, task {request.query.task_id}", reason=wanted.reason, **texts
    )
    app.poller.hurry()
    return dead_task(app, request)


@endpoints.post("/queues/{queue}/redrive", QueueQuery, Redrive)
def redrive(app: AppContext, request: ApiRequest[QueueQuery, Redrive]) -> Settled:
    """Retry dead tasks as if they were new, all at once or at a rate."""
    name, chosen = request.query.queue, request.body
    ids = _chosen(app, name, chosen)
    app.operator_log.check()
    with app.queues.taken(name) as found:
        count = found.redrive(ids, per_second=chosen.per_second)
    facts: dict[str, Any] = {"tasks": count, "cause": chosen.cause, "per_second": chosen.per_second}
    app.operator_log.add(request.principal.name, "redrive", f"queue {name}", **facts)
    app.poller.hurry()
    return Settled(name, count)


@endpoints.post("/queues/{queue}/discard", QueueQuery, Discard)
def discard(app: AppContext, request: ApiRequest[QueueQuery, Discard]) -> Settled:
    """Discard dead tasks for good, with a reason for the operator audit log."""
    name, chosen = request.query.queue, request.body
    ids = _chosen(app, name, chosen)
    app.operator_log.check()
    with app.queues.taken(name) as found:
        count = found.discard(ids)
    facts: dict[str, Any] = {"tasks": count, "cause": chosen.cause, "task_ids": list(ids[:100])}
    app.operator_log.add(request.principal.name, "discard", f"queue {name}", reason=chosen.reason, **facts)
    app.poller.hurry()
    return Settled(name, count)


def _task(app: AppContext, query: TaskQuery) -> DeadTask:
    found = app.queues.dead(query.queue, limit=1, after=query.task_id - 1)
    if not found or found[0].task_id != query.task_id:
        raise NoTaskError(
            f"queue {query.queue} has no dead task {query.task_id}: it may have been redriven or discarded; "
            f"`/queues/{query.queue}/dead` lists the dead tasks"
        )
    return found[0]


def _group(queue: str, one: DeadLetterGroup) -> DeadGroup:
    known = outcome_of(one.cause)
    facts = (queue, one.cause, one.count, one.first_died_at, one.last_died_at, one.example)
    return DeadGroup(*facts, code=known.code if known else None, todo=known.todo if known else None)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _short(body: bytes) -> str:
    return body[:4096].decode("utf-8", "replace")


def _row(task: DeadTask) -> DeadRow:
    return DeadRow(task.task_id, task.died_at, task.attempts, task.cause, _short(task.body))


def _chosen(app: AppContext, name: str, chosen: Redrive | Discard) -> Sequence[int]:
    given = (chosen.task_ids is not None) + (chosen.cause is not None) + chosen.everything
    if given != 1:
        raise ChoiceError
    if chosen.task_ids is not None:
        return chosen.task_ids
    return [task.task_id for task in app.queues.dead(name, limit=MOST_AT_ONCE, cause=chosen.cause)]
