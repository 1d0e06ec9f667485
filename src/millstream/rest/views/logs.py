"""Logs, their messages and consumers."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from millstream.core import tracing
from millstream.core.errors import NotFoundError
from millstream.core.message import check_source
from millstream.log import DATA_KINDS, Gap, Kind, Log, LogSpec, Message, SystemLogError, WriterBusyError
from millstream.messaging.broker.admin import TOPICS
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
from millstream.status.models import Lag, LogRow
from millstream.status.snapshot import LOGS, log_part, log_row

endpoints = EndpointRegistry()

_utf8_decoder = codecs.getincrementaldecoder("utf-8")

PREVIEW_BYTES = 400
MOST_BODY_BYTES = 1 << 20
MessageId = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]


class MessageNotFoundError(NotFoundError):
    """The log has no message of this id."""


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``log`` is its name."""

    log: Name


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``kind``: only logs of this kind."""

    kind: Kind | None = None


class ConsumersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``log``: only consumers of this log."""

    log: str | None = None


class MessagesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages from ``first`` on, or from the first one received at or after ``time`` (microseconds); otherwise the
    last ones.
    """

    log: Name
    first: MessageId | None = None
    time: Number | None = None
    limit: Limit = 50


class MessageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message ``id`` of ``log``."""

    log: Name
    id: MessageId


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to append: text, and optionally a key, a source, and an event time in microseconds."""

    body: Annotated[str, msgspec.Meta(max_length=65_536)]
    key: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    source: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    event_time: Number | None = None


class MessageRow(msgspec.Struct, frozen=True):
    """A message.

    ``body`` is the beginning of its body (None if it is not text), ``bytes`` its length. A row with a ``gap``
    represents ids without messages, with the reason.
    """

    id: int
    event_time: int | None = None
    received_at: int | None = None
    source: str = ""
    key: str = ""
    bytes: int = 0
    body: str | None = None
    gap: str | None = None


class WholeMessage(msgspec.Struct, frozen=True):
    """A message with its body (at most the first 1 MiB), as text or else in base64."""

    log: str
    id: int
    event_time: int | None
    received_at: int | None
    source: str
    key: str
    headers: Sequence[tuple[str, str]]
    bytes: int
    body: str | None = None
    body_base64: str | None = None


class LogDetail(msgspec.Struct, frozen=True):
    """A log, its consumers, its durability, and whether test messages may be appended."""

    log: LogRow
    durability: str
    consumers: Sequence[Lag]
    retention: Mapping[str, Any] | None
    publishable: bool


class Published(msgspec.Struct, frozen=True):
    """The position of an appended message."""

    log: str
    id: int


@endpoints.get("/logs", LogsQuery)
def logs(app: AppContext, request: ApiRequest[LogsQuery, Any]) -> PartialListing[LogRow]:
    """List the logs of this node."""
    snapshot = app.poller.snapshot
    snapshot.require(LOGS)
    found = [row for row in snapshot.logs if request.query.kind in (None, row.kind)]
    return partial_listing(found, snapshot.unreadable_logs, snapshot.at)


@endpoints.get("/consumers", ConsumersQuery)
def consumers(app: AppContext, request: ApiRequest[ConsumersQuery, Any]) -> PartialListing[Lag]:
    """List the consumers of all logs, or of one, the largest lag first."""
    snapshot, log = app.poller.snapshot, request.query.log
    snapshot.require(LOGS)
    found = [lag for lag in snapshot.lags if log in (None, lag.log)]
    unreadable = {part: why for part, why in snapshot.unreadable_logs.items() if log is None or part == log_part(log)}
    return partial_listing(found, unreadable, snapshot.at)


@endpoints.get("/logs/{log}", LogQuery)
def log(app: AppContext, request: ApiRequest[LogQuery, Any]) -> LogDetail:
    """Show the status of a log and its consumers."""
    found = app.log(request.query.log)
    row, lags = log_row(app, found.name)
    policy = found.retention
    kept = None if policy is None else msgspec.to_builtins(policy)
    return LogDetail(row, found.info().durability, lags, kept, row.kind in DATA_KINDS)


@endpoints.get("/logs/{log}/messages", MessagesQuery)
def messages(app: AppContext, request: ApiRequest[MessagesQuery, Any]) -> Listing[MessageRow]:
    """Browse the messages of a log, by id or by time."""
    query, found = request.query, app.log(request.query.log)
    first_id, last_id = found.first_id, found.last_id
    if query.first is not None:
        begin = query.first
    elif query.time is not None:
        begin = found.first_id_since(query.time)
    else:
        begin = max(first_id, last_id - query.limit + 1)
    end = min(last_id, begin + query.limit - 1)
    rows = list(_rows(found, begin, end)) if begin <= end else []
    return Listing(rows, str(end + 1) if end < last_id else None, total=max(0, last_id - first_id + 1))


@endpoints.get("/logs/{log}/messages/{id}", MessageQuery)
def message(app: AppContext, request: ApiRequest[MessageQuery, Any]) -> WholeMessage:
    """Show a message with its complete body and its headers."""
    number, found = request.query.id, app.log(request.query.log)
    first_id, last_id = found.first_id, found.last_id
    for batch in found.read(number, number, gaps="trimmed") if number <= last_id else ():
        for each in batch:
            return _whole(found.name, each)
    has = f"its ids are {first_id:,} to {last_id:,}" if first_id <= last_id else "the log is empty"
    raise MessageNotFoundError(f"log {found.name} has no message {number}: {has}")


@endpoints.post("/logs/{log}/messages", LogQuery, NewMessage)
def publish(app: AppContext, request: ApiRequest[LogQuery, NewMessage]) -> Published:
    """Append a test message to a message log."""
    name, new = request.query.log, request.body
    is_topic = app.broker is not None and any(topic.name == name for topic in app.broker.ask(TOPICS, ""))
    if not is_topic and (kind := app.log(name).kind) not in DATA_KINDS:  # the first message of a topic creates its log
        raise SystemLogError(
            f"log {name} has the kind {kind!r}, and only Millstream writes to logs of this kind: choose another log"
        )
    app.operator_log.check()
    body = new.body.encode("utf-8", "surrogatepass")
    message = Message(body, new.key, new.source, new.event_time)
    check_source(message)
    with tracing.entering("publish", [message], log=name) as (traced,):
        number = app.broker.publish(name, traced) if app.broker and is_topic else _append(app, name, traced)
    app.operator_log.add(request.principal.name, "publish", name, id=number, bytes=len(body))
    app.poller.hurry()
    return Published(name, number)


def _append(app: AppContext, name: str, new: Message) -> int:
    with app.node.logs.store.log(LogSpec(name), create=False).writer("console") as writer:
        ids = writer.append([new])
    if ids is None:
        raise WriterBusyError(f"log {name} accepts no messages now: try again")
    return ids.first


def _rows(found: Log, begin: int, end: int) -> Iterator[MessageRow]:
    for batch in found.read(begin, end, gaps="all"):
        if isinstance(batch, Gap):
            yield MessageRow(id=batch.first_id, gap=f"{batch.reason}: {batch.first_id:,} to {batch.last_id:,}")
        yield from map(message_row, batch)


def message_row(m: Message) -> MessageRow:
    """A message as a row of a list: with the beginning of its body."""
    return MessageRow(
        id=m.id,
        event_time=m.event_time,
        received_at=m.received_at,
        source=m.source,
        key=m.key,
        bytes=len(m.body),
        body=_text(m.body),
    )


def _whole(name: str, m: Message) -> WholeMessage:
    text = _text(m.body, MOST_BODY_BYTES)
    headers = [(header, value[:4096].decode("utf-8", "backslashreplace")) for header, value in m.headers]
    facts = (name, m.id, m.event_time, m.received_at, m.source, m.key, headers, len(m.body))
    if text is not None:
        return WholeMessage(*facts, body=text)
    return WholeMessage(*facts, body_base64=base64.b64encode(m.body[:MOST_BODY_BYTES]).decode("ascii"))


def _text(body: bytes, most: int = PREVIEW_BYTES) -> str | None:
    """The first *most* bytes of *body*, without a character that the cut divides; None if they are not UTF-8."""
    try:
        return _utf8_decoder().decode(body[:most], final=len(body) <= most)
    except UnicodeDecodeError:
        return None
