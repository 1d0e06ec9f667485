"""Batches: how they stand, when they are, why they ended, and which messages are in none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from millstream.anchoring.files import StoredBatch, split_batches
from millstream.anchoring.journal_reading import BatchRow, Chosen, EndCount, RejectCount, RejectRow, Starts
from millstream.anchoring.manifest import MAX_FILE_BYTES
from millstream.anchoring.records import BatchHeader
from millstream.anchoring.states import BatchState
from millstream.core.errors import NotFoundError
from millstream.rest.desk import Desk
from millstream.rest.endpoint import Ask, Endpoints, Limit, Listing, Name, Number
from millstream.rest.figures import StateCount

endpoints = Endpoints()


class UnknownBatchError(NotFoundError):
    """No batch of this id was ever handed to the batch writer here."""


class BatchesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches that were added before number ``before``; of one ``log``; with ``only=bad`` those that were rejected;
    that ``ended`` for one reason; that begin from ``since`` until before ``until`` (microseconds of event time)."""

    before: Number | None = None
    log: str | None = None
    only: Literal["all", "bad"] = "all"
    ended: str | None = None
    since: Number | None = None
    until: Number | None = None
    limit: Limit = 50


class TimelineQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches of one ``log``, and of a time, as in the list of batches."""

    log: str | None = None
    since: Number | None = None
    until: Number | None = None


class BatchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The batch ``batch`` of ``log``."""

    log: Name
    batch: Name


class RejectedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of ``log`` with ids above ``after`` that are in no batch, for one ``reason`` or any."""

    log: Name
    reason: str | None = None
    after: Number = 0
    limit: Limit = 100


class BatchMessagesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of the batch ``batch`` of ``log``, the first ``offset`` left out."""

    log: Name
    batch: Name
    offset: Number = 0
    limit: Limit = 100


class BatchMessage(msgspec.Struct, frozen=True):
    """A message as it stands in a batch file: its ``id``, and the whole ``line``."""

    id: int
    line: str


class Located(msgspec.Struct, frozen=True):
    """Where an anchored batch lies: in which entry of the ledger, which file, and which of its bytes."""

    anchor: int
    file: str
    offset: int
    size: int
    reason: str | None


class BatchDetail(msgspec.Struct, frozen=True):
    """A batch as the journal has it (None where it came from elsewhere), every place where it is anchored, and the
    header that stands there (None where it is anchored nowhere yet)."""

    log: str
    batch: str
    row: BatchRow | None
    anchored: Sequence[Located]
    header: BatchHeader | None = None


@endpoints.get("/batches", BatchesQuery)
def batches(desk: Desk, ask: Ask[BatchesQuery, Any]) -> Listing[BatchRow]:
    """List the batches that were handed to the batch writer, the last one first."""
    query = ask.query
    chosen = Chosen(query.log, query.only == "bad", query.ended, query.since, query.until)
    found = desk.batches.batches(chosen, before=query.before, limit=query.limit + 1)
    rows = found[: query.limit]
    total = desk.watch.overview().batches.batches if chosen == Chosen() else None
    return Listing(rows, str(rows[-1].number) if len(found) > query.limit else None, total=total)


@endpoints.get("/batches/states")
def states(desk: Desk, _ask: Ask[Any, Any]) -> Listing[StateCount]:
    """How many batches stand in each state."""
    survey = desk.watch.survey
    rows = [StateCount(state.value, getattr(survey.journal, state.value)) for state in BatchState]
    return Listing(rows, total=len(rows), as_of=survey.at)


@endpoints.get("/batches/timeline", TimelineQuery)
def timeline(desk: Desk, ask: Ask[TimelineQuery, Any]) -> Listing[Starts]:
    """How many batches begin when, by log, and why they ended."""
    query = ask.query
    chosen = Chosen(query.log, since=query.since, until=query.until)
    rows = desk.timeline() if chosen == Chosen() else desk.batches.starts(chosen)
    return Listing(rows, total=len(rows))


@endpoints.get("/batches/ends")
def ends(desk: Desk, _ask: Ask[Any, Any]) -> Listing[EndCount]:
    """Why batches ended, and how many of them, by log."""
    survey = desk.watch.survey
    return Listing(survey.ends, total=len(survey.ends), as_of=survey.at)


@endpoints.get("/batches/rejects")
def rejects(desk: Desk, _ask: Ask[Any, Any]) -> Listing[RejectCount]:
    """Why messages are in no batch, and how many of them, by log."""
    survey = desk.watch.survey
    return Listing(survey.rejects, total=len(survey.rejects), as_of=survey.at)


@endpoints.get("/batches/rejected", RejectedQuery)
def rejected(desk: Desk, ask: Ask[RejectedQuery, Any]) -> Listing[RejectRow]:
    """List the messages of a log that are in no batch, by id."""
    query = ask.query
    found = desk.batches.rejected(query.log, reason=query.reason, after=query.after, limit=query.limit + 1)
    rows = found[: query.limit]
    return Listing(rows, str(rows[-1].id) if len(found) > query.limit else None)


@endpoints.get("/batches/one", BatchQuery)
def batch(desk: Desk, ask: Ask[BatchQuery, Any]) -> BatchDetail:
    """Where one batch stands, and where it is anchored."""
    log, name = ask.query.log, ask.query.batch
    row, found = desk.batches.batch(log, name), _places(desk, log, name)
    if row is None and not found:
        raise UnknownBatchError
    header = _stored(desk, found[0]).header if found else None
    return BatchDetail(log, name, row, found, header)


@endpoints.get("/batches/one/places", BatchQuery)
def batch_places(desk: Desk, ask: Ask[BatchQuery, Any]) -> Listing[Located]:
    """List every place where one batch is anchored."""
    found = _places(desk, ask.query.log, ask.query.batch)
    return Listing(found, total=len(found))


@endpoints.get("/batches/one/messages", BatchMessagesQuery)
def batch_messages(desk: Desk, ask: Ask[BatchMessagesQuery, Any]) -> Listing[BatchMessage]:
    """List the messages of an anchored batch as they stand in its file; none where it is anchored nowhere yet."""
    query = ask.query
    found = _places(desk, query.log, query.batch)
    lines = _stored(desk, found[0]).lines if found else ()
    end = query.offset + query.limit
    chosen = [line.decode("utf-8") for line in lines[query.offset : end]]
    rows = [BatchMessage(msgspec.json.decode(line)["id"], line) for line in chosen]
    return Listing(rows, str(end) if end < len(lines) else None, total=len(lines))


def _places(desk: Desk, log: str, batch: str) -> list[Located]:
    found = desk.node.observer.index.find_batch(log, batch)
    return [Located(f.number, f.uri, f.offset, f.size, f.reason) for f in found]


def _stored(desk: Desk, place: Located) -> StoredBatch:
    data = desk.node.cas.get(place.file, MAX_FILE_BYTES)[place.offset : place.offset + place.size]
    return next(split_batches(data))
