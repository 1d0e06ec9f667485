"""Proofs of single messages: made, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from millstream.anchoring.errors import ProofError
from millstream.anchoring.proof import Replica, VerifiedProof, verify_proof
from millstream.core.message import encode_line
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, FileDownload, Listing, Name
from millstream.settings.console import Role

endpoints = EndpointRegistry()

MOST_PROOF_BYTES = 8 << 20


class ProofQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message ``id`` of ``log``."""

    log: Name
    id: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]


class ProofText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proof as `millstream prove` writes it; ``ledger_head`` is the hash of a ledger entry that you trust."""

    proof: Annotated[str, msgspec.Meta(max_length=MOST_PROOF_BYTES)]
    ledger_head: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None


class ProofOutcome(msgspec.Struct, frozen=True):
    """Whether a proof holds, and if not the first step that does not; ``message`` is the line of the message.

    ``pinned`` says that the ledger head you named is in its chain; ``is_our_head`` that its chain leads to entries that
    this node's ledger has.
    """

    holds: bool
    reason: str | None = None
    log: str | None = None
    id: int | None = None
    message: str | None = None
    batch: str | None = None
    batch_file: str | None = None
    manifest: str | None = None
    anchor: int | None = None
    anchored_at: int | None = None
    ledger_head: str | None = None
    pinned: bool = False
    is_our_head: bool = False
    replicas: Sequence[Replica] = ()


@endpoints.get("/proofs/{log}/{id}", ProofQuery)
def proof(app: AppContext, request: ApiRequest[ProofQuery, Any]) -> FileDownload:
    """The proof of one message, as a file."""
    data = app.node.proofs.prove(request.query.log, request.query.id) + b"\n"
    return FileDownload(f"proof-{request.query.log}-{request.query.id}.json", data, "application/json")


@endpoints.get("/proofs/{log}/{id}/copies", ProofQuery)
def proof_copies(app: AppContext, request: ApiRequest[ProofQuery, Any]) -> Listing[Replica]:
    """List the copies of the batch file that the proof of a message names."""
    rows = check_proof(app, proof(app, request).data).replicas
    return Listing(rows, total=len(rows))


@endpoints.post("/proofs/verify", body=ProofText, role=Role.VIEWER)
def verify(app: AppContext, request: ApiRequest[Any, ProofText]) -> ProofOutcome:
    """Check a proof against the files of this node."""
    return check_proof(app, request.body.proof.encode("utf-8", "surrogatepass"), request.body.ledger_head)


def check_proof(app: AppContext, data: bytes, ledger_head: str | None = None) -> ProofOutcome:
    """What the check of the proof *data* comes to."""
    try:
        found = verify_proof(data, app.node.anchoring.cas, ledger_head.lower() if ledger_head else None)
    except ProofError as error:
        return ProofOutcome(holds=False, reason=str(error))
    return _outcome(app, found)


def _outcome(app: AppContext, found: VerifiedProof) -> ProofOutcome:
    ours = any(entry.hash == found.ledger_head for entry in app.node.anchoring.ledger.entries(found.anchor))
    return ProofOutcome(
        holds=True,
        log=found.log,
        id=found.id,
        message=encode_line(found.message).decode("utf-8"),
        batch=found.batch,
        batch_file=found.batch_file,
        manifest=found.manifest,
        anchor=found.anchor,
        anchored_at=found.anchored_at,
        ledger_head=found.ledger_head,
        pinned=found.pinned,
        is_our_head=ours,
        replicas=found.replicas,
    )
