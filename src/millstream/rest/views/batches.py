"""Batches: their states and times, why they ended, and which messages are in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from millstream.anchoring.batch_files import BatchFileEntry, split_batches
from millstream.anchoring.batch_records import BatchHeader
from millstream.anchoring.cut_manifest import MAX_FILE_BYTES
from millstream.anchoring.errors import AnchoringError, CasUnavailableError
from millstream.anchoring.journal_reader import (
    BatchFilter,
    BatchHistogramBucket,
    BatchRow,
    CutReasonCount,
    RejectCount,
    RejectRow,
)
from millstream.anchoring.states import BatchState
from millstream.batching.rule_changes import CHANGE_ACTION
from millstream.batching.rulebook import RuleChange
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.core.timestamps import format_timestamp
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
from millstream.rest.operator_audit_log import OperatorAuditEvent
from millstream.rest.views.logs import MessageId
from millstream.status.models import BatchedLog, StateCount
from millstream.status.snapshot import ANCHORS, ENDS, JOURNAL, LOGS, MESSAGES, REJECTS, log_part

endpoints = EndpointRegistry()


class UnknownBatchError(NotFoundError):
    """No batch of this id was ever handed to the batch writer here."""


class UnreadableBatchError(AnchoringError):
    """The file of the batch is missing or damaged, so its messages are not known."""


class BatchesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches with numbers below ``before``; of one ``log``; with ``only=bad`` only rejected ones; with one reason in
    ``ended``; that begin at ``since`` or later and before ``until`` (event time in microseconds).
    """

    before: Number | None = None
    log: str | None = None
    only: Literal["all", "bad"] = "all"
    ended: str | None = None
    since: Number | None = None
    until: Number | None = None
    limit: Limit = 50


class TimelineQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches of one ``log`` and time range, as in the list of batches."""

    log: str | None = None
    since: Number | None = None
    until: Number | None = None


class BatchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The batch ``batch`` of ``log``."""

    log: Name
    batch: Name


class RejectedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rejected messages of ``log`` with ids above ``after``, optionally of one ``reason``."""

    log: Name
    reason: str | None = None
    after: Number = 0
    limit: Limit = 100


class BatchMessagesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of the batch ``batch`` of ``log``, after the first ``offset``."""

    log: Name
    batch: Name
    offset: Number = 0
    limit: Limit = 100


class BatchMessage(msgspec.Struct, frozen=True):
    """A message of a batch file: its ``id`` and its complete ``line``."""

    id: int
    line: str


class Located(msgspec.Struct, frozen=True):
    """The location of an anchored batch: the ledger entry, the file, and the range of bytes."""

    anchor: int
    file: str
    offset: int
    size: int
    reason: str | None


class MessageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a message: the ``batch`` that contains it, or the ``reason`` why it was rejected, and the ledger
    entry that records it (``anchor``, None before it is anchored). Without both, its window is open, or it is a tick.
    ``batched`` is false if its log is not batched.
    """

    batched: bool
    batch: str | None = None
    reason: str | None = None
    anchor: int | None = None


class OutcomeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message ``id`` of ``log``."""

    log: Name
    id: MessageId


class BatchDetail(msgspec.Struct, frozen=True):
    """The journal's row of a batch (None if another writer anchored it), all its anchors, and its header (None before
    it is anchored). ``trouble`` is the reason why the header cannot be read.
    """

    log: str
    batch: str
    row: BatchRow | None
    anchored: Sequence[Located]
    header: BatchHeader | None = None
    trouble: str | None = None


class BatchingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The ``rules`` number ``number`` of ``log``, whose batches are in the log ``output``. They are for messages with
    event times from ``since`` on (None: from the first message).

    ``state``: the batch service has passed ``since`` (``in-force``), and also the beginning of the next rules
    (``earlier``); it has not reached ``since`` (``pending``); it has made no batch, and will begin with the rules in
    the settings (``not-begun``); the rules cannot be read, for the reason ``problem`` (``unknown``).

    A change was recorded at ``recorded_at`` by the user ``recorded_by``; both are None for the first rules, and if the
    operator audit log does not contain the change. ``as_in_settings`` is true if the settings of this process have the
    same rules. Messages received up to ``batched_to`` are batched; other rules can begin at ``earliest_change`` or
    later. Times are in microseconds.
    """

    log: str
    output: str
    number: int | None = None
    since: int | None = None
    state: Literal["earlier", "in-force", "pending", "not-begun", "unknown"]
    recorded_at: int | None = None
    recorded_by: str | None = None
    as_in_settings: bool | None = None
    batched_to: int | None = None
    earliest_change: int | None = None
    rules: Mapping[str, Any] | None = None
    problem: str | None = None


@endpoints.get("/batches", BatchesQuery)
def batches(app: AppContext, request: ApiRequest[BatchesQuery, Any]) -> Listing[BatchRow]:
    """List the accepted batches, the last one first."""
    query = request.query
    chosen = BatchFilter(query.log, query.only == "bad", query.ended, query.since, query.until)
    found = app.batches.batches(chosen, before=query.before, limit=query.limit + 1)
    rows = found[: query.limit]
    overview = app.poller.overview() if chosen == BatchFilter() else None
    is_known = app.poller.snapshot.knows(JOURNAL, ANCHORS)
    total = overview.batches.batches if overview is not None and is_known else None
    return Listing(rows, str(rows[-1].number) if len(found) > query.limit else None, total=total)


@endpoints.get("/batches/states")
def states(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[StateCount]:
    """Count the batches in each state."""
    snapshot = app.poller.snapshot
    snapshot.require(JOURNAL)
    rows = [StateCount(state.value, getattr(snapshot.journal, state.value)) for state in BatchState]
    return Listing(rows, total=len(rows), as_of=snapshot.at)


@endpoints.get("/batches/timeline", TimelineQuery)
def timeline(app: AppContext, request: ApiRequest[TimelineQuery, Any]) -> Listing[BatchHistogramBucket]:
    """Count batches by log, start time and reason of their end."""
    query = request.query
    chosen = BatchFilter(query.log, since=query.since, until=query.until)
    rows = app.timeline() if chosen == BatchFilter() else app.batches.starts(chosen)
    return Listing(rows, total=len(rows))


@endpoints.get("/batches/logs")
def batched_logs(app: AppContext, _ask: ApiRequest[Any, Any]) -> PartialListing[BatchedLog]:
    """Count, by log, the batched, rejected and open messages."""
    snapshot = app.poller.snapshot
    snapshot.require(LOGS, MESSAGES)
    return partial_listing(snapshot.batched, snapshot.unreadable_user_logs, snapshot.at)


@endpoints.get("/batches/rules")
def batching_rules(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[BatchingRules]:
    """List the batching rules of each log that is batched, with the event times at which they begin."""
    rows = [row for log, output in sorted(app.node.batching.batched_pairs()) for row in _rules_of(app, log, output)]
    return Listing(rows, total=len(rows))


@endpoints.get("/batches/ends")
def ends(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[CutReasonCount]:
    """Count batches by log and reason of their end."""
    snapshot = app.poller.snapshot
    snapshot.require(ENDS)
    return Listing(snapshot.ends, total=len(snapshot.ends), as_of=snapshot.at)


@endpoints.get("/batches/rejects")
def rejects(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[RejectCount]:
    """Count rejected messages by log and reason."""
    snapshot = app.poller.snapshot
    snapshot.require(REJECTS)
    return Listing(snapshot.rejects, total=len(snapshot.rejects), as_of=snapshot.at)


@endpoints.get("/batches/rejected", RejectedQuery)
def rejected(app: AppContext, request: ApiRequest[RejectedQuery, Any]) -> Listing[RejectRow]:
    """List the rejected messages of a log, by id."""
    query = request.query
    found = app.batches.rejected(query.log, reason=query.reason, after=query.after, limit=query.limit + 1)
    rows = found[: query.limit]
    return Listing(rows, str(rows[-1].id) if len(found) > query.limit else None)


@endpoints.get("/batches/outcomes/{log}/{id}", OutcomeQuery)
def outcome(app: AppContext, request: ApiRequest[OutcomeQuery, Any]) -> MessageOutcome:
    """Show which batch holds a message, or why it was rejected."""
    return message_outcome(app, app.log(request.query.log).name, request.query.id)


@endpoints.get("/batches/one", BatchQuery)
def batch(app: AppContext, request: ApiRequest[BatchQuery, Any]) -> BatchDetail:
    """Show the state of one batch, and where it is anchored."""
    log, name = request.query.log, request.query.batch
    row, found = app.batches.batch(log, name), _places(app, log, name)
    if row is None and not found:
        raise UnknownBatchError(
            f"unknown batch {name[:100]!r} of log {log!r}: `/batches?log={log}` lists the batches of the log"
        )
    try:
        header = _stored(app, found[0]).header if found else None
    except AnchoringError as error:
        return BatchDetail(log, name, row, found, trouble=str(error))
    return BatchDetail(log, name, row, found, header)


@endpoints.get("/batches/one/places", BatchQuery)
def batch_places(app: AppContext, request: ApiRequest[BatchQuery, Any]) -> Listing[Located]:
    """List the anchors of one batch."""
    found = _places(app, request.query.log, request.query.batch)
    return Listing(found, total=len(found))


@endpoints.get("/batches/one/messages", BatchMessagesQuery)
def batch_messages(app: AppContext, request: ApiRequest[BatchMessagesQuery, Any]) -> Listing[BatchMessage]:
    """List the messages of an anchored batch from its file; none before it is anchored."""
    query = request.query
    found = _places(app, query.log, query.batch)
    lines = _stored(app, found[0]).lines if found else ()
    end = query.offset + query.limit
    chosen = [line.decode("utf-8") for line in lines[query.offset : end]]
    rows = [BatchMessage(msgspec.json.decode(line)["id"], line) for line in chosen]
    return Listing(rows, str(end) if end < len(lines) else None, total=len(lines))


def message_outcome(app: AppContext, log: str, message_id: int) -> MessageOutcome:
    """The state of a message. Raises :class:`UnreadablePartError` if it is not known whether *log* is batched."""
    snapshot = app.poller.snapshot
    snapshot.require(LOGS, log_part(log), MESSAGES)
    if not any(row.log == log and row.batched for row in snapshot.batched):
        return MessageOutcome(batched=False)
    journal, index = app.node.anchoring.journal, app.node.anchoring.observer.index
    if (location := index.locate(log, message_id)) is not None:
        return MessageOutcome(batched=True, batch=location.batch, anchor=location.number)
    rows = app.batches.rejected(log, after=message_id - 1, limit=1)
    if rows and rows[0].id == message_id:
        return MessageOutcome(batched=True, reason=rows[0].reason, anchor=rows[0].anchor)
    if (batch := journal.batch_of(log, message_id)) is not None:
        return MessageOutcome(batched=True, batch=batch)
    anchor, reason = index.reject_reason(log, message_id) or (None, None)
    return MessageOutcome(batched=True, reason=reason, anchor=anchor)


def _rules_of(app: AppContext, log: str, output: str) -> list[BatchingRules]:
    batching, store = app.node.batching, app.node.logs.store
    given = batching.rules
    try:
        status = batching.rules_status(output) if store.has(log) and store.has(output) else None
    except MillstreamError as error:
        return [BatchingRules(log=log, output=output, state="unknown", problem=str(error))]
    if status is None:
        return [BatchingRules(log=log, output=output, state="not-begun", as_in_settings=True, rules=given.plain)]
    changes = status.rules.later
    events = app.operator_log.of(CHANGE_ACTION, output) if changes else ()
    current = sum(change.since <= status.clock for change in changes)
    rows = []
    for number, (change, rules) in enumerate(zip((None, *changes), status.rules.periods, strict=True)):
        event = None if change is None else _event_of(change, events)
        row = BatchingRules(
            log=log,
            output=output,
            number=number + 1,
            since=None if change is None else change.since,
            state="earlier" if number < current else "in-force" if number == current else "pending",
            recorded_at=None if event is None else event.at,
            recorded_by=None if event is None else event.user,
            as_in_settings=rules == given,
            batched_to=status.clock,
            earliest_change=status.earliest,
            rules=rules.plain,
        )
        rows.append(row)
    return rows


def _event_of(change: RuleChange, events: Sequence[OperatorAuditEvent]) -> OperatorAuditEvent | None:
    """The entry of the operator audit log about *change*: an earlier log of this name may have had other changes."""
    try:
        since = format_timestamp(change.since)
    except OverflowError:
        return None
    facts = (since, change.rules.rules_text)
    return next((event for event in events if (event.facts.get("since"), event.facts.get("rules")) == facts), None)


def _places(app: AppContext, log: str, batch: str) -> list[Located]:
    found = app.node.anchoring.observer.index.find_batch(log, batch)
    return [Located(f.number, f.uri, f.offset, f.size, f.reason) for f in found]


def _stored(app: AppContext, place: Located) -> BatchFileEntry:
    """The batch at *place*. Raises :class:`UnreadableBatchError`, :class:`CasUnavailableError`."""
    try:
        data = app.node.anchoring.cas.get(place.file, MAX_FILE_BYTES)[place.offset : place.offset + place.size]
        return next(split_batches(data))
    except CasUnavailableError:
        raise
    except AnchoringError as error:
        raise UnreadableBatchError(f"the batch file {place.file} cannot be read: {error}") from error
