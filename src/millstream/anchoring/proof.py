"""The proof of one message: its form, and the check that needs nothing but the proof and the files it names.

The format is laid down in ``docs/formats/proof.md``. Making a proof is :mod:`millstream.anchoring.prover`'s work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.content import read_file, read_manifest
from millstream.anchoring.cut_manifest import BatchFile, CutManifest
from millstream.anchoring.errors import BatchFormatError, CasError, LedgerError, MerklePathError, ProofError
from millstream.anchoring.files import BatchFileEntry, split_batches
from millstream.anchoring.ledger import LedgerEntry, check_tail
from millstream.anchoring.merkle import leaf_hash, root_of_path
from millstream.anchoring.records import BatchHeader, decode_message, encode_header
from millstream.core.canonical import CanonicalError, canonical_json, parse_canonical
from millstream.core.message import Message

VERSION = 1
"""The version of the format that is written and read here."""

MAX_PROOF_BYTES = 64 << 20
"""The most bytes of a proof: nearly all of them are ledger entries, about 300 each."""

_HASH = re.compile(r"[0-9a-f]{64}")


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of the batch file: where it is, and what the last integrity check found (None where there was none).

    ``verified_at`` is when its bytes last matched ``sha256``, in microseconds since the epoch, UTC.
    """

    store: str
    space: str
    content_id: str
    sha256: str | None = None
    verified_at: int | None = None
    outcome: str | None = None


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members of a proof (docs/formats/proof.md); ``message`` is the object of the message's line."""

    batch_file: str
    batch_header: BatchHeader
    batch_index: int
    batch_path: tuple[str, ...]
    digest: str
    id: int
    ledger: tuple[LedgerEntry, ...]
    log: str
    manifest: str
    message: dict[str, Any]
    message_index: int
    message_path: tuple[str, ...]
    replicas: tuple[Replica, ...]
    version: int


class VerifiedProof(msgspec.Struct, frozen=True):
    """What a proof shows, once every step of it was checked.

    ``anchored_at`` is the time of the anchor's ledger entry (microseconds since the epoch, UTC). Where ``pinned`` is
    False nobody vouched for ``ledger_head``: the chain is whole, but whoever made the proof may have made the chain.
    ``replicas`` is what the prover knew of copies; it is part of the proof, not of what is proven.
    """

    log: str
    id: int
    message: Message
    batch: str
    anchor: int
    anchored_at: int
    manifest: str
    batch_file: str
    ledger_head: str
    pinned: bool
    replicas: tuple[Replica, ...]


def encode_proof(members: dict[str, Any]) -> bytes:
    """The canonical bytes of a proof with *members* (all but ``digest``, as builtin types)."""
    digest = sha256(canonical_json(members)).hexdigest()
    return canonical_json({**members, "digest": digest})


def decode_proof(data: bytes) -> Proof:
    """The proof in *data*: canonical JSON with at most one newline after it, and the digest that belongs to it.

    Raises :class:`ProofError`.
    """
    if len(data) > MAX_PROOF_BYTES:
        raise ProofError(f"the proof has more than {MAX_PROOF_BYTES:,} bytes")
    try:
        members = parse_canonical(data.removesuffix(b"\n"))
        proof = msgspec.convert(members, Proof)
    except (CanonicalError, msgspec.ValidationError) as error:
        raise ProofError(f"the file is not a proof in canonical form: {error}") from error
    del members["digest"]
    if sha256(canonical_json(members)).hexdigest() != proof.digest:
        raise ProofError("the proof was changed: its digest does not match; get it again from the node")
    if proof.version != VERSION:
        raise ProofError(
            f"the proof has version {proof.version}, but this release reads version {VERSION}: use a matching release"
        )
    return proof


def verify_proof(data: bytes, cas: Cas, ledger_head: str | None = None) -> VerifiedProof:
    """Check the proof *data*, from the message down to the head of the ledger, against the files it names in *cas*.

    *ledger_head* pins the chain: the hash of the anchor's entry or of a later one, from a source you trust. Raises
    :class:`ProofError` with the first step that does not hold.
    """
    proof = decode_proof(data)
    head = _check_chain(proof, ledger_head)
    message = _check_message(proof)
    try:
        _check_files(proof, cas)
    except (CasError, BatchFormatError) as error:
        raise ProofError(f"a file of the proof is invalid: {error}") from error
    return VerifiedProof(
        log=proof.log,
        id=proof.id,
        message=message,
        batch=proof.batch_header.batch,
        anchor=proof.ledger[0].number,
        anchored_at=proof.ledger[0].time,
        manifest=proof.manifest,
        batch_file=proof.batch_file,
        ledger_head=head,
        pinned=ledger_head is not None,
        replicas=proof.replicas,
    )


def _check_chain(proof: Proof, pin: str | None) -> str:
    """From the anchor's entry to the head, and through the pin where there is one. Returns the head's hash."""
    try:
        check_tail(proof.ledger)
    except LedgerError as error:
        raise ProofError(f"the ledger entries of the proof are invalid: {error}") from error
    first, head = proof.ledger[0], proof.ledger[-1]
    if pin is not None and pin not in {entry.hash for entry in proof.ledger}:
        raise ProofError(
            f"the pinned ledger head {pin[:80]} is not among the proof's entries {first.number} to "
            f"{head.number}: the proof is from another ledger, or older than the pin; export the proof "
            "again"
        )
    return head.hash


def _check_message(proof: Proof) -> Message:
    """The message lies under the root of its batch."""
    try:
        line = canonical_json(proof.message)
        message = decode_message(line)
        root = root_of_path(leaf_hash(line), proof.message_index, proof.batch_header.count, _hashes(proof.message_path))
    except (BatchFormatError, CanonicalError, MerklePathError) as error:
        raise ProofError(f"the message of the proof is invalid: {error}") from error
    if message.id != proof.id:
        raise ProofError(f"the proof is for message {proof.id}, but contains message {message.id}")
    if root.hex() != proof.batch_header.root:
        raise ProofError(f"message {proof.id} does not belong to the Merkle root of batch {proof.batch_header.batch!r}")
    return message


def _check_files(proof: Proof, cas: Cas) -> None:
    """The batch lies under the manifest's root, and both batch and message stand in the file where the proof says."""
    cid, manifest = read_manifest(cas, proof.ledger[0].anchor_string)
    if cid != proof.manifest or manifest.log != proof.log:
        raise ProofError(f"the anchor names manifest {cid} of log {manifest.log!r}, but the proof names another")
    header = encode_header(proof.batch_header)
    try:
        root = root_of_path(leaf_hash(header), proof.batch_index, manifest.count, _hashes(proof.batch_path))
    except MerklePathError as error:
        raise ProofError(f"the batch of the proof is invalid: {error}") from error
    if root.hex() != manifest.root:
        raise ProofError(f"batch {proof.batch_header.batch!r} does not belong to the Merkle root of manifest {cid}")
    file, place = _file_of(manifest, proof.batch_index)
    if file.uri != proof.batch_file:
        raise ProofError(
            f"batch {proof.batch_index} of the manifest is in file {file.uri}, but the proof names another file"
        )
    stored = _batch_at(read_file(cas, file), place)
    if stored is None or stored.header_line != header:
        raise ProofError(
            f"batch {proof.batch_header.batch!r} is not at the position in file {file.uri} that the proof states"
        )
    if stored.lines[proof.message_index] != canonical_json(proof.message):
        raise ProofError(f"message {proof.id} is not at the position in file {file.uri} that the proof states")


def _file_of(manifest: CutManifest, batch_index: int) -> tuple[BatchFile, int]:
    """The file that holds a batch of the manifest, and the batch's place in the file."""
    place = batch_index
    for file in manifest.files:
        if place < file.batches:
            return file, place
        place -= file.batches
    raise ProofError(f"the manifest has no batch {batch_index}")


def _batch_at(data: bytes, place: int) -> BatchFileEntry | None:
    return next((batch for at, batch in enumerate(split_batches(data)) if at == place), None)


def _hashes(path: Sequence[str]) -> list[bytes]:
    if not all(map(_HASH.fullmatch, path)):
        raise ProofError("a step of a Merkle path is not a SHA-256 hash in lower-case hex")
    return list(map(bytes.fromhex, path))
