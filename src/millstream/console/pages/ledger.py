"""The pages of the ledger: anchors, their files, proofs; and identifiers, whose operations are anchored."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from starlette.routing import BaseRoute, Route

from millstream.anchoring.errors import CasUnavailableError
from millstream.anchoring.proof import decode_proof
from millstream.console.page_renderer import FormError, PageRenderer, PageRequest, body_of, parsed_json, sentence
from millstream.console.pages.batch import stored_message
from millstream.core.errors import InputError, MillstreamError
from millstream.log import DATA_KINDS
from millstream.node.ledger_trees import LEDGERS
from millstream.rest.views import anchors, identifiers, ledgers, proofs
from millstream.settings.console import Role

LEDGER_NAMES = {"anchors": "event batches", "reports": "integrity reports", "registry": "identifiers"}
"""The content of the entries of each ledger."""

WITNESS_STATES = {
    "cosigned": ("cosigned", "good"),
    "not-asked": ("not asked yet", "soft"),
    "away": ("does not answer", "warn"),
    "refuses": ("refuses", "warn"),
    "failed": ("did not cosign", "warn"),
    "forked": ("cosigned another history", "bad"),
}
"""How a witness answered last, in words, and how bad that is."""

_GIVEN = ("proof", "key", "policy", "ledger_head", "timestamps")
"""The fields for verifying a proof, as text or as the file ``…_file``."""

MOST_LINES = 200
"""Lines of a file that a page shows as trees."""


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/anchors", pages.show("anchors.html", list_anchors)),
        Route("/anchors/{number:int}", pages.show("anchor.html", show_anchor)),
        Route("/ledgers", pages.show("ledger.html", show_ledger)),
        Route("/ledgers/{ledger}", pages.show("ledger.html", show_ledger)),
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


def show_ledger(call: PageRequest) -> Mapping[str, Any]:
    """How far a ledger is signed, cosigned and published, and how its witnesses answered."""
    begun = [row.ledger for row in ledgers.ledgers(call.app, call.ask()).items]
    name = call.path.get("ledger", LEDGERS[0])
    page = {"ledger": name, "names": LEDGER_NAMES, "states": WITNESS_STATES, "begun": begun, "d": None}
    if name not in begun and name in LEDGERS:
        return page
    stamped = ledgers.ledger_timestamps(call.app, call.ask(ledgers.TimestampsQuery, ledger=name, limit=20))
    authorities = ledgers.timestamp_authorities(call.app, call.ask(ledgers.LedgerQuery, ledger=name)).items
    has_authorities = bool(call.app.node.settings.anchoring.timestamp_authorities or authorities)
    stamps = {"stamps": stamped, "authorities": authorities, "has_authorities": has_authorities}
    return {**page, **stamps, "d": ledgers.ledger(call.app, call.ask(ledgers.LedgerQuery, ledger=name))}


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
        outcome = proofs.check_proof(call.app, data)
    except MillstreamError as error:
        return {**page, "error": sentence(error)}
    return {**page, **_verified(outcome, data)}


def verify(call: PageRequest) -> Mapping[str, Any]:
    """Verify a given proof, as text or as a file; the form keeps its values."""
    given = {name: call.field(name).strip() for name in _GIVEN}
    given |= {name: call.field(f"{name}_file").strip() for name in _GIVEN if call.field(f"{name}_file")}
    given["policy"] = given["policy"].replace("\r\n", "\n")
    page = {**_proof_page(call, call.field("log") or None, call.field("id") or None), "given": given}
    trusted = {name: given[name] or None for name in _GIVEN if name != "proof"}
    try:
        if not given["proof"]:
            raise FormError("the proof is missing: choose a proof file, or paste its text")
        outcome = proofs.verify(call.app, call.ask(body=body_of(proofs.ProofText, proof=given["proof"], **trusted)))
    except (InputError, CasUnavailableError) as error:
        return {**page, "given_error": sentence(error)}
    return {**page, **_verified(outcome, given["proof"].encode("utf-8", "surrogatepass")), "is_given": True}


def _verified(outcome: proofs.ProofOutcome, data: bytes) -> dict[str, Any]:
    """The displayed result of a checked proof."""
    if not outcome.holds or outcome.message is None:
        return {"p": outcome}
    return {"p": outcome, "proof": decode_proof(data), "message": stored_message(outcome.message)}


def show_identifiers(call: PageRequest) -> Mapping[str, Any]:
    """The resolution of a DID, and the status of an operation."""
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
    names = sorted(name for name, kind in call.app.node.logs.store.kinds().items() if kind in DATA_KINDS)
    names = names if log in names or not log else [*names, log]
    page: dict[str, Any] = dict.fromkeys(("p", "proof", "message", "error", "given_error"))
    return {
        **page,
        "log": log,
        "id": number,
        "logs": names,
        "is_given": False,
        "given": dict.fromkeys(_GIVEN, ""),
    }
