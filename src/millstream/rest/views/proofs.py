"""Proofs of single messages: made, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from millstream.anchoring.errors import NoteError, ProofError, TrustPolicyError
from millstream.anchoring.proof import (
    NOBODY,
    Proof,
    ProvenCheckpoint,
    Replica,
    Trust,
    VerifiedProof,
    decode_proof,
    tlog_proof,
    verify_proof,
)
from millstream.anchoring.timestamps.authorities import MAX_CERTIFICATE_BYTES, parse_authorities
from millstream.anchoring.timestamps.entry_timestamp import CheckedTimestamp
from millstream.anchoring.transparency.cosignatures import Cosignature, cosignatures
from millstream.anchoring.transparency.policy import (
    MAX_POLICY_BYTES,
    TrustPolicy,
    cosignature_times,
    parse_policy,
    trusting,
    with_ledgers,
)
from millstream.anchoring.transparency.signed_note import parse_ledger_key, parse_note
from millstream.anchoring.transparency.tlog_proof import encode_tlog_proof
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
    """A proof, as `millstream prove` prints it, and what you trust: the verifier ``key`` of the ledger, the ledgers and
    witnesses of a ``policy`` (tlog-policy), or the hash of a ledger entry (``ledger_head``); and the certificates (PEM)
    of authorities that time-stamp it (``timestamps``).
    """

    proof: Annotated[str, msgspec.Meta(max_length=MOST_PROOF_BYTES)]
    ledger_head: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    key: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    policy: Annotated[str, msgspec.Meta(max_length=MAX_POLICY_BYTES)] | None = None
    timestamps: Annotated[str, msgspec.Meta(max_length=MAX_CERTIFICATE_BYTES)] | None = None


class CosigningWitnesses(msgspec.Struct, frozen=True, kw_only=True):
    """Which witnesses of a policy cosigned the checkpoint of a proof, and when; ``missing`` more must for its
    ``quorum``, and ``absent`` are those that did not. ``policy`` is the one that was ``given``, or that of this
    ``node`` (anchoring.witness_policy). ``problem`` is why the cosignatures cannot be verified.
    """

    policy: Literal["given", "node"]
    quorum: str
    missing: int
    cosignatures: Sequence[Cosignature] = ()
    absent: Sequence[str] = ()
    problem: str | None = None


class ProofOutcome(msgspec.Struct, frozen=True):
    """The result of verifying a proof, with the first failed step; ``message`` is the line of the message.

    ``pinned`` means that the key you gave signed its ``checkpoint`` (version 2), or that the ledger head you gave is in
    its chain (version 1, where ``ledger_head`` is the last entry). ``is_our_head`` means that the ledger of this node
    has its entries. ``cosigned`` is about the witnesses of the policy you gave, or of this node; None without any.
    ``timestamps`` says which time stamps of the proof hold.
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
    version: int | None = None
    entry_hash: str | None = None
    ledger_head: str | None = None
    checkpoint: ProvenCheckpoint | None = None
    pinned: bool = False
    is_our_head: bool = False
    cosigned: CosigningWitnesses | None = None
    timestamps: Sequence[CheckedTimestamp] = ()
    replicas: Sequence[Replica] = ()


@endpoints.get("/proofs/{log}/{id}", ProofQuery)
def proof(app: AppContext, request: ApiRequest[ProofQuery, Any]) -> FileDownload:
    """Get the proof of one message, as a file."""
    data = app.node.proofs.prove(request.query.log, request.query.id) + b"\n"
    return FileDownload(f"proof-{request.query.log}-{request.query.id}.json", data, "application/json")


@endpoints.get("/proofs/{log}/{id}/tlog", ProofQuery)
def proof_of_entry(app: AppContext, request: ApiRequest[ProofQuery, Any]) -> FileDownload:
    """The part of a proof that is about the ledger, as a .tlog-proof for other verifiers."""
    query = request.query
    made = decode_proof(app.node.proofs.prove(query.log, query.id))
    assert isinstance(made, Proof)
    data = encode_tlog_proof(tlog_proof(made))
    return FileDownload(f"proof-{query.log}-{query.id}.tlog-proof", data, "text/plain; charset=utf-8")


@endpoints.get("/proofs/{log}/{id}/copies", ProofQuery)
def proof_copies(app: AppContext, request: ApiRequest[ProofQuery, Any]) -> Listing[Replica]:
    """List the copies of the batch file that the proof of a message names."""
    outcome = check_proof(app, proof(app, request).data)
    if not outcome.holds:
        raise ProofError(outcome.reason)
    rows = outcome.replicas
    return Listing(rows, total=len(rows))


@endpoints.post("/proofs/verify", body=ProofText, role=Role.VIEWER)
def verify(app: AppContext, request: ApiRequest[Any, ProofText]) -> ProofOutcome:
    """Verify a proof against the files of this node."""
    body = request.body
    keys = [parse_ledger_key(body.key)] if body.key else []
    policy = trusting(keys) if keys else None
    if body.policy is not None:
        policy = with_ledgers(parse_policy(body.policy.encode("utf-8", "surrogatepass")), keys)
    trust = Trust(
        ledger_head=body.ledger_head.lower() if body.ledger_head else None,
        policy=policy,
        authorities=parse_authorities(body.timestamps.encode()) if body.timestamps is not None else None,
        now=app.node.clock.now(),
    )
    return check_proof(app, body.proof.encode("utf-8", "surrogatepass"), trust)


def check_proof(app: AppContext, data: bytes, trust: Trust = NOBODY) -> ProofOutcome:
    """What the check of the proof *data* comes to. Raises :class:`CasUnavailableError` where that is not known."""
    try:
        found = verify_proof(data, app.node.anchoring.cas, trust)
    except ProofError as error:
        return ProofOutcome(holds=False, reason=str(error))
    return msgspec.structs.replace(_outcome(app, found), cosigned=_cosigned(app, data, trust.policy))


def _cosigned(app: AppContext, data: bytes, given: TrustPolicy | None) -> CosigningWitnesses | None:
    """What the witnesses of the policy *given*, or else of the node, did to the checkpoint of the proof *data*."""
    made = decode_proof(data)
    if not isinstance(made, Proof):
        return None
    is_given = given is not None and bool(given.witnesses)
    try:
        policy = given if is_given else app.node.ledgers.cosignatures.policy
    except TrustPolicyError as error:
        return CosigningWitnesses(policy="node", quorum="unknown", missing=0, problem=str(error))
    if policy is None or not policy.witnesses:
        return None
    whose: Literal["given", "node"] = "given" if is_given else "node"
    try:
        times = cosignature_times(parse_note(made.checkpoint.encode()), policy)
    except NoteError as error:
        missing = policy.missing(())
        return CosigningWitnesses(policy=whose, quorum=policy.quorum_text(), missing=missing, problem=str(error))
    return CosigningWitnesses(
        policy=whose,
        quorum=policy.quorum_text(),
        missing=policy.missing(times),
        cosignatures=cosignatures(times),
        absent=[name for name in policy.witnesses if name not in times],
    )


def _outcome(app: AppContext, found: VerifiedProof) -> ProofOutcome:
    last = found.ledger_head or found.entry_hash
    entries = app.node.anchoring.ledger.entries(found.anchor, None if found.ledger_head else found.anchor)
    ours = any(entry.hash == last for entry in entries)
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
        version=found.version,
        entry_hash=found.entry_hash,
        ledger_head=found.ledger_head,
        checkpoint=found.checkpoint,
        pinned=found.pinned,
        timestamps=found.timestamps,
        is_our_head=ours,
        replicas=found.replicas,
    )
