"""The pages of the road: overview, logs and messages, anchors, proofs, identifiers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.anchoring.errors import NoteError
from millstream.anchoring.proof import decode_proof
from millstream.console.batch_pages import REASONS
from millstream.console.page import FormError, PageRenderer, PageRequest, body_of
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import MillstreamError
from millstream.log import DATA_KINDS
from millstream.rest.views import anchors, batches, identifiers, logs, proofs, topics
from millstream.settings.console import Role
from millstream.status.models import Sample

MOST_LINES = 200
"""Lines of a file that a page shows as trees."""

_SHOWN_LAGS = 8
_TIMES = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/", pages.show("overview.html", overview)),
        Route("/logs", pages.show("logs.html", list_logs)),
        Route("/logs/{log}", pages.show("log.html", show_log)),
        Route("/logs/{log}/publish", pages.act(publish), methods=["POST"]),
        Route("/logs/{log}/{id:int}", pages.show("message.html", show_message)),
        Route("/anchors", pages.show("anchors.html", list_anchors)),
        Route("/anchors/{number:int}", pages.show("anchor.html", show_anchor)),
        Route("/files/{cid}", pages.show("file.html", show_file)),
        Route("/proof", pages.show("proof.html", show_proof)),
        Route("/proof", pages.act(verify, Role.VIEWER, "proof.html"), methods=["POST"]),
        Route("/identifiers", pages.show("identifiers.html", show_identifiers)),
    ]


def overview(call: PageRequest) -> Mapping[str, Any]:
    """The whole road at a glance."""
    coarse = call.query.get("past") == "day"
    samples = call.app.poller.history(coarse=coarse)
    return {
        "coarse": coarse,
        "o": call.app.poller.overview(),
        "lags": [lag for lag in call.app.poller.snapshot.lags if lag.lag][:_SHOWN_LAGS],
        "rates": rates(samples),
        "open_tasks": [sample.open_tasks for sample in samples],
    }


def list_logs(call: PageRequest) -> Mapping[str, Any]:
    """Logs, topics and groups."""
    found = logs.logs(call.app, call.ask(logs.LogsQuery))
    found_topics = topics.topics(call.app, call.ask(topics.TopicsQuery)).items
    found_groups = topics.groups(call.app, call.ask(topics.GroupsQuery)).items
    return {"logs": found, "topics": found_topics, "groups": found_groups, "kind": call.query.get("kind", "")}


def show_log(call: PageRequest) -> Mapping[str, Any]:
    """One log and its messages, from an id, a time, or the last ones."""
    first, time = call.query.get("first", ""), call.query.get("time", "")
    given: dict[str, Any] = {}
    if first:
        given["first"] = "".join(sign for sign in first if sign not in ", _") or first
    time_us = None
    if time:
        time_us = given["time"] = read_time(time)
    detail = logs.log(call.app, call.ask(logs.LogQuery))
    names = dict.fromkeys(("first", "time")) | given
    found = logs.messages(call.app, call.ask(logs.MessagesQuery, **names))
    begin = found.items[0].id if found.items else 1
    before = max(detail.log.first_id, begin - 50) if begin > detail.log.first_id else None
    return {"d": detail, "m": found, "first": first, "time": time, "time_us": time_us, "before": before}


def publish(call: PageRequest) -> Response:
    """Append a test message."""
    fields = {name: call.field(name) for name in ("body", "key", "source")}
    body = body_of(logs.NewMessage, **fields)
    done_ = logs.publish(call.app, call.ask(logs.LogQuery, body))
    return call.redirect_with_notice(f"/logs/{done_.log}", f"Appended as message {done_.id:,}.")


def show_message(call: PageRequest) -> Mapping[str, Any]:
    """One message, as a tree where it is JSON."""
    found = logs.message(call.app, call.ask(logs.MessageQuery))
    outcome = batches.message_outcome(call.app, found.log, found.id)
    return {"m": found, "parsed": parsed(found.body), "outcome": outcome, "reasons": REASONS}


def list_anchors(call: PageRequest) -> Mapping[str, Any]:
    """A ledger, the last entry first."""
    query = call.ask(anchors.AnchorsQuery)
    found = anchors.anchors(call.app, query)
    return {"anchors": found, "ledger": query.query.ledger, "only": query.query.only, "before": query.query.before}


def show_anchor(call: PageRequest) -> Mapping[str, Any]:
    """An entry of the ledger and the files under it."""
    return {"a": anchors.anchor(call.app, call.ask(anchors.AnchorQuery))}


def show_file(call: PageRequest) -> Mapping[str, Any]:
    """A content-addressed file as trees, some lines of it at a time."""
    cid = call.path["cid"]
    data = anchors.file(call.app, call.ask(anchors.FileQuery)).data
    lines = data.splitlines()
    text = call.query.get("first", "0")
    first = int(text) if text.isdecimal() and len(text) < 10 else 0
    shown = [parsed(line.decode("utf-8", "replace")) for line in islice(lines, first, first + MOST_LINES)]
    following = first + MOST_LINES if first + MOST_LINES < len(lines) else None
    facts = {"bytes": len(data), "lines": len(lines), "values": shown, "first": first, "next": following}
    return {"cid": cid, **facts}


def show_proof(call: PageRequest) -> Mapping[str, Any]:
    """The proof of a message, made and checked."""
    log, number = call.query.get("log"), call.query.get("id")
    page = _proof_page(call, log, number)
    if not log or not number:
        return page
    try:
        data = proofs.proof(call.app, call.ask(proofs.ProofQuery, id=number.replace(",", ""))).data
    except MillstreamError as error:
        return {**page, "error": str(error)}
    return {**page, "p": proofs.check_proof(call.app, data), "proof": decode_proof(data)}


def verify(call: PageRequest) -> Mapping[str, Any]:
    """Check a proof that somebody brought."""
    given, head, key = (call.field(name).strip() for name in ("proof", "ledger_head", "key"))
    body = body_of(proofs.ProofText, proof=given, ledger_head=head or None, key=key or None)
    try:
        outcome = proofs.verify(call.app, call.ask(body=body))
    except NoteError as error:
        return {**_proof_page(call, None, None), "error": str(error), "given": given}
    proof = decode_proof(given.encode("utf-8", "surrogatepass")) if outcome.holds else None
    return {**_proof_page(call, None, None), "p": outcome, "proof": proof, "given": given}


def show_identifiers(call: PageRequest) -> Mapping[str, Any]:
    """What a DID resolves to, and where an operation stands."""
    did, operation = call.query.get("did"), call.query.get("operation")
    page: dict[str, Any] = {"did": did, "operation": operation, "resolution": None, "row": None, "error": None}
    try:
        registry = identifiers.registry_of(call.app)
        page["counts"] = registry.store.counts()
        if did:
            page["resolution"] = identifiers.resolve(call.app, call.ask(identifiers.DidQuery)).resolution
        if operation:
            page["row"] = identifiers.operation(call.app, call.ask(identifiers.OperationQuery, id=operation))
    except MillstreamError as error:
        page["error"] = str(error)
    return {"counts": {}, **page}


def rates(samples: Sequence[Sample]) -> Sequence[float]:
    """Messages a second between *samples*."""
    return [
        max(0, after.messages - before.messages) / max((after.at - before.at) / MICROSECONDS, 0.001)
        for before, after in pairwise(samples)
    ]


def parsed(text: str | None) -> Any:
    """*text* as a JSON value; None where it is none, or nothing but a word."""
    try:
        value = msgspec.json.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def read_time(text: str) -> int:
    """Microseconds of a time in UTC as people write it, or of a number of microseconds. Raises :class:`FormError`."""
    plain = text.strip().replace("T", " ").removesuffix("Z")
    if plain.isdecimal() and len(plain) > 8:
        return int(plain)
    for form in _TIMES:
        try:
            moment = dt.datetime.strptime(plain, form).replace(tzinfo=dt.UTC)
        except ValueError:
            continue
        return round((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
    raise FormError(f"invalid time {text[:40]!r}: write 2026-11-22 03:04:05 (UTC), or microseconds since 1970")


def _proof_page(call: PageRequest, log: str | None, number: str | None) -> dict[str, Any]:
    names = [row.log for row in call.app.poller.snapshot.logs if row.kind in DATA_KINDS]
    return {"log": log, "id": number, "logs": names[:200], "p": None, "proof": None, "error": None, "given": None}
