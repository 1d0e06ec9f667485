"""Batches: how they stand, when they are, why they ended, and which messages are in none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from millstream.anchoring.journal_reading import BatchRow, Chosen, EndCount, RejectCount, RejectRow, Starts
from millstream.core.errors import NotFoundError
from millstream.rest.desk import Desk
from millstream.rest.endpoint import Ask, Endpoints, Limit, Listing, Name, Number

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


class Located(msgspec.Struct, frozen=True):
    """Where an anchored batch lies: in which entry of the ledger, which file, and which of its bytes."""

    anchor: int
    file: str
    offset: int
    size: int
    reason: str | None


class BatchDetail(msgspec.Struct, frozen=True):
    """A batch as the journal has it (None where it came from elsewhere), and every place where it is anchored."""

    log: str
    batch: str
    row: BatchRow | None
    anchored: Sequence[Located]


@endpoints.get("/batches", BatchesQuery)
def batches(desk: Desk, ask: Ask[BatchesQuery, Any]) -> Listing[BatchRow]:
    """List the batches that were handed to the batch writer, the last one first."""
    query = ask.query
    chosen = Chosen(query.log, query.only == "bad", query.ended, query.since, query.until)
    found = desk.batches.batches(chosen, before=query.before, limit=query.limit + 1)
    rows = found[: query.limit]
    total = desk.watch.overview().batches.batches if chosen == Chosen() else None
    return Listing(rows, str(rows[-1].number) if len(found) > query.limit else None, total=total)


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
    row, found = desk.batches.batch(log, name), desk.node.observer.index.find_batch(log, name)
    if row is None and not found:
        raise UnknownBatchError
    return BatchDetail(log, name, row, [Located(f.number, f.uri, f.offset, f.size, f.reason) for f in found])
