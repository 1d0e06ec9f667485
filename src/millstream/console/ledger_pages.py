"""The pages of the ledger: anchors, their files, proofs; and identifiers, whose operations are anchored."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from starlette.routing import BaseRoute, Route

from millstream.anchoring.errors import NoteError
from millstream.anchoring.proof import decode_proof
from millstream.console.page import PageRenderer, PageRequest, body_of, parsed_json
from millstream.core.errors import MillstreamError
from millstream.log import DATA_KINDS
from millstream.rest.views import anchors, identifiers, proofs
from millstream.settings.console import Role

MOST_LINES = 200
"""Lines of a file that a page shows as trees."""


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/anchors", pages.show("anchors.html", list_anchors)),
        Route("/anchors/{number:int}", pages.show("anchor.html", show_anchor)),
        Route("/files/{cid}", pages.show("file.html", show_file)),
        Route("/proof", pages.show("proof.html", show_proof)),
        Route("/proof", pages.act(verify, Role.VIEWER, "proof.html"), methods=["POST"]),
        Route("/identifiers", pages.show("identifiers.html", show_identifiers)),
    ]


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
    shown = [parsed_json(line.decode("utf-8", "replace")) for line in islice(lines, first, first + MOST_LINES)]
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


def _proof_page(call: PageRequest, log: str | None, number: str | None) -> dict[str, Any]:
    names = [row.log for row in call.app.poller.snapshot.logs if row.kind in DATA_KINDS]
    return {"log": log, "id": number, "logs": names[:200], "p": None, "proof": None, "error": None, "given": None}
