"""The proof of one message: its form, and the check that needs nothing but the proof and the files it names.

The format is laid down in ``docs/formats/proof.md``. Making a proof is :mod:`millstream.anchoring.prover`'s work.
Version 2 ends with a signed checkpoint of the ledger's tree, version 1 with all ledger entries up to the head; version
3 is version 2 with time stamps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from millstream.anchoring.batch_files import BatchFileEntry, split_batches
from millstream.anchoring.batch_records import BatchHeader, decode_message, encode_header
from millstream.anchoring.cas import Cas
from millstream.anchoring.content import read_file, read_manifest
from millstream.anchoring.cut_manifest import BatchFile, CutManifest
from millstream.anchoring.errors import (
    BatchFormatError,
    CasDamagedError,
    CasError,
    CasNotFoundError,
    CasUnavailableError,
    LedgerError,
    MerklePathError,
    NoteError,
    ProofError,
)
from millstream.anchoring.ledger import LedgerEntry, check_seal, check_tail, encode_entry
from millstream.anchoring.merkle import leaf_hash, root_of_path
from millstream.anchoring.timestamps.authorities import TrustedAuthorities
from millstream.anchoring.timestamps.entry_timestamp import (
    CheckedTimestamp,
    DatedLeaf,
    EntryTimestamp,
    check_timestamps,
)
from millstream.anchoring.transparency.cosignatures import Cosignature
from millstream.anchoring.transparency.policy import TrustPolicy, check_checkpoint
from millstream.anchoring.transparency.signed_note import is_key_name
from millstream.anchoring.transparency.tlog_proof import TlogProof, checkpoint_of, require_inclusion
from millstream.core.canonical import CanonicalError, canonical_json, parse_canonical
from millstream.core.clock import SystemClock
from millstream.core.decoding import prepared
from millstream.core.message import Message
from millstream.core.plain_reasons import field_reason

CHAIN_VERSION = 1
"""The version of proofs that end with the entries of the ledger."""

VERSION = 2
"""The version of proofs that end with a signed checkpoint."""

STAMPED_VERSION = 3
"""The version of proofs that also have time stamps: earlier releases refuse them with an error."""

MAX_PROOF_BYTES = 64 << 20
"""The most bytes of a proof: nearly all of them are ledger entries (version 1), about 300 each, or the message."""

_HASH = re.compile(r"[0-9a-f]{64}")


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of the batch file: its location, and the result of the last integrity check (None without one).

    ``verified_at`` is the time at which its bytes last matched ``sha256``, in microseconds since the epoch, UTC.
    """

    store: str
    space: str
    content_id: str
    sha256: str | None = None
    verified_at: int | None = None
    outcome: str | None = None


class MessageProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The members of all proofs (docs/formats/proof.md); ``message`` is the object of the message's line."""

    batch_file: str
    batch_header: BatchHeader
    batch_index: int
    batch_path: tuple[str, ...]
    digest: str
    id: int
    log: str
    manifest: str
    message: dict[str, Any]
    message_index: int
    message_path: tuple[str, ...]
    replicas: tuple[Replica, ...]
    version: int


class ChainProof(MessageProof, frozen=True, kw_only=True):
    """A proof of version 1: the entries of the ``ledger`` from the anchor's to the head."""

    ledger: tuple[LedgerEntry, ...]


class Proof(MessageProof, frozen=True, kw_only=True):
    """A proof of version 2: the ``entry`` of the anchor, the ``checkpoint`` (a signed note), the path to its root."""

    checkpoint: str
    entry: LedgerEntry
    entry_path: tuple[str, ...]


class StampedProof(Proof, frozen=True, kw_only=True):
    """A proof of version 3: that of version 2, with the ``timestamps`` of checkpoints that have the entry."""

    timestamps: tuple[EntryTimestamp, ...]


class ProvenCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint of a proof: the ledger's name (``origin``), the number of entries in its tree, and its root (hex).

    ``signed_by`` lists the verifier keys among those you trust that signed it, ``witnesses`` the names of the policy's
    witnesses that signed it. ``cosignatures`` says when each of them did, the earliest first.
    """

    origin: str
    size: int
    root: str
    signed_by: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    cosignatures: tuple[Cosignature, ...] = ()


class VerifiedProof(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of a proof, after every step was verified.

    ``anchored_at`` is the time of the anchor's ledger entry (microseconds since the epoch, UTC), ``entry_hash`` its
    hash. ``ledger_head`` is the hash of the last entry of a proof of version 1, ``checkpoint`` is that of
    version 2, and None where only a ledger head was trusted, as no signature then confirms the
    checkpoint. If ``pinned`` is False nothing confirms them: the author of the proof may have invented the ledger.
    ``timestamps`` says which time stamps of the proof hold; all are unchecked where no authority is trusted.
    ``replicas`` is what the prover knew of copies; it is part of the proof, not of what is proven.
    """

    version: int
    log: str
    id: int
    message: Message
    batch: str
    anchor: int
    anchored_at: int
    entry_hash: str
    manifest: str
    batch_file: str
    ledger_head: str | None
    checkpoint: ProvenCheckpoint | None
    pinned: bool
    timestamps: tuple[CheckedTimestamp, ...]
    replicas: tuple[Replica, ...]


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """What a verifier trusts: the hash of a ledger entry (``ledger_head``), the signers of a ``policy``, or nothing.

    ``authorities`` date the entry, and one of them must. ``now`` is the time at which their certificates must hold, in
    microseconds since the epoch; None: the present.
    """

    ledger_head: str | None = None
    policy: TrustPolicy | None = None
    authorities: TrustedAuthorities | None = None
    now: int | None = None

    @property
    def pins_ledger(self) -> bool:
        """Whether a trusted key or head confirms the ledger."""
        return self.ledger_head is not None or self.policy is not None


NOBODY = Trust()


def encode_proof(members: dict[str, Any]) -> bytes:
    """The canonical bytes of a proof with *members* (all but ``digest``, as builtin types).

    Raises :class:`ProofError` where that is more than :func:`verify_proof` reads.
    """
    digest = sha256(canonical_json(members)).hexdigest()
    data = canonical_json({**members, "digest": digest})
    if len(data) > MAX_PROOF_BYTES:
        todo = ": make the proof without --chain" if "ledger" in members else ""
        raise ProofError(f"the proof would have {len(data):,} bytes; the limit is {MAX_PROOF_BYTES:,} bytes{todo}")
    return data


def decode_proof(data: bytes) -> Proof | ChainProof:
    """The proof in *data*: canonical JSON with at most one newline after it, and the digest that belongs to it.

    Raises :class:`ProofError`.
    """
    if len(data) > MAX_PROOF_BYTES + 1:
        raise ProofError(f"the proof has more than {MAX_PROOF_BYTES:,} bytes, the limit: give the file of one proof")
    try:
        members = parse_canonical(data.removesuffix(b"\n"))
        proof = msgspec.convert(members, prepared(_form_of(members)))
    except (CanonicalError, msgspec.ValidationError) as error:
        raise ProofError(
            f"the file is not a proof in canonical form: {field_reason(error, None)}; give the output of `millstream "
            "prove` unchanged"
        ) from error
    if canonical_json(members["batch_header"]) != encode_header(proof.batch_header):
        raise ProofError(
            "the file is not a proof in canonical form: its batch_header has a member with the default value, which is "
            "left out; give the output of `millstream prove` unchanged"
        )
    del members["digest"]
    if sha256(canonical_json(members)).hexdigest() != proof.digest:
        raise ProofError("the proof was changed: its digest does not match; get the proof again from the node")
    return proof


def _form_of(members: Any) -> type[Proof | ChainProof]:
    version = members.get("version") if isinstance(members, dict) else None
    if type(version) is int and version not in (CHAIN_VERSION, VERSION, STAMPED_VERSION):
        raise ProofError(
            f"the proof has version {version}, but this release reads versions {CHAIN_VERSION} to {STAMPED_VERSION}: "
            "use a matching release"
        )
    if version == STAMPED_VERSION:
        return StampedProof
    return ChainProof if version == CHAIN_VERSION else Proof


def verify_proof(data: bytes, cas: Cas, trust: Trust = NOBODY) -> VerifiedProof:
    """Check the proof *data*, from the message down to the ledger, against the files it names in *cas*, and *trust*.

    Raises :class:`ProofError` with the first step that does not hold; :class:`CasUnavailableError` where *cas* does not
    answer, so that it is not known whether the proof holds.
    """
    proof = decode_proof(data)
    checkpoint = None
    if isinstance(proof, ChainProof):
        head = _check_chain(proof, trust)
        entry = proof.ledger[0]
    else:
        entry, head = proof.entry, None
        checkpoint = _check_entry(proof, trust)
    timestamps = _check_timestamps(proof, trust)
    message = _check_message(proof)
    try:
        _check_files(proof, entry, cas)
    except CasUnavailableError:
        raise
    except (CasNotFoundError, CasDamagedError) as error:
        raise ProofError(f"a file that the proof names is missing or damaged: {error}") from error
    except (CasError, BatchFormatError) as error:
        raise ProofError(
            f"a file that the proof names is invalid: {error}; get the proof and its files again from the node"
        ) from error
    return VerifiedProof(
        version=proof.version,
        log=proof.log,
        id=proof.id,
        message=message,
        batch=proof.batch_header.batch,
        anchor=entry.number,
        anchored_at=entry.time,
        entry_hash=entry.hash,
        manifest=proof.manifest,
        batch_file=proof.batch_file,
        ledger_head=head,
        checkpoint=checkpoint if trust.policy or not trust.pins_ledger else None,
        pinned=trust.pins_ledger,
        timestamps=timestamps,
        replicas=proof.replicas,
    )


def tlog_proof(proof: Proof) -> TlogProof:
    """The part of *proof* that is about the ledger, as other verifiers read it."""
    return TlogProof(proof.entry.number - 1, tuple(_hashes(proof.entry_path)), proof.checkpoint.encode())


def _check_chain(proof: ChainProof, trust: Trust) -> str:
    """From the anchor's entry to the head, and through the pin where there is one. Returns the head's hash."""
    if trust.policy is not None:
        raise ProofError(
            "the proof has version 1 and no checkpoint that a key or policy could verify: use --ledger-head, or make "
            "the proof again on the node (millstream prove)"
        )
    try:
        check_tail(proof.ledger)
    except LedgerError as error:
        raise ProofError(
            f"the ledger entries of the proof are invalid: {error}; get the proof again from the node"
        ) from error
    first, head, pin = proof.ledger[0], proof.ledger[-1], trust.ledger_head
    if pin is not None and pin not in {entry.hash for entry in proof.ledger}:
        raise ProofError(
            f"the pinned ledger head {pin[:80]} is not among the proof's entries {first.number} to "
            f"{head.number}: the proof is from another ledger, or older than the pin; export the proof "
            "again"
        )
    return head.hash


def _check_entry(proof: Proof, trust: Trust) -> ProvenCheckpoint:
    """The anchor's entry is in the tree of the checkpoint, and those who are trusted signed it."""
    try:
        check_seal(proof.entry)
        trusted = check_checkpoint(proof.checkpoint.encode(), trust.policy) if trust.policy else None
    except LedgerError as error:
        raise ProofError(
            f"the ledger entry of the proof is invalid: {error}; get the proof again from the node"
        ) from error
    except NoteError as error:
        raise ProofError(f"the checkpoint of the proof is not trusted: {error}") from error
    found = trusted.checkpoint if trusted else checkpoint_of(proof.checkpoint.encode())
    if not is_key_name(found.origin):
        raise ProofError(
            f"invalid origin {found.origin[:80]!r} of the checkpoint: a ledger's name has no "
            "spaces, control characters or '+'; get the proof again"
        )
    require_inclusion(leaf_hash(encode_entry(proof.entry)), proof.entry.number - 1, _hashes(proof.entry_path), found)
    if trust.ledger_head not in (None, proof.entry.hash):
        raise ProofError(
            f"the pinned ledger head {trust.ledger_head[:80]} is not the hash of the proof's entry "
            f"{proof.entry.number}, and a proof of version 2 has no other entries to compare: verify it with --key, or "
            "make it with `millstream prove --chain`"
        )
    proven = ProvenCheckpoint(found.origin, found.size, found.root.hex())
    if trusted is None:
        return proven
    return msgspec.structs.replace(
        proven, signed_by=trusted.signed_by, witnesses=trusted.witnesses, cosignatures=trusted.cosignatures
    )


def _check_timestamps(proof: Proof | ChainProof, trust: Trust) -> tuple[CheckedTimestamp, ...]:
    """The time stamps are of checkpoints with the anchor's entry, and those who are trusted made them."""
    stamps = proof.timestamps if isinstance(proof, StampedProof) else ()
    entry = proof.ledger[0] if isinstance(proof, ChainProof) else proof.entry
    leaf = DatedLeaf(leaf_hash(encode_entry(entry)), entry.number - 1)
    now = SystemClock().now() if trust.now is None else trust.now
    return check_timestamps(stamps, leaf, authorities=trust.authorities, now=now)


def _check_message(proof: MessageProof) -> Message:
    """The message lies under the root of its batch."""
    try:
        line = canonical_json(proof.message)
        message = decode_message(line)
        root = root_of_path(leaf_hash(line), proof.message_index, proof.batch_header.count, _hashes(proof.message_path))
    except (BatchFormatError, CanonicalError, MerklePathError) as error:
        raise ProofError(f"the message of the proof is invalid: {error}; get the proof again from the node") from error
    if message.id != proof.id:
        raise ProofError(
            f"the proof is for message {proof.id}, but contains message {message.id}: get the proof again from the node"
        )
    if root.hex() != proof.batch_header.root:
        raise ProofError(
            f"message {proof.id} does not belong to the Merkle root of batch {proof.batch_header.batch!r}: get the "
            "proof again from the node"
        )
    return message


def _check_files(proof: MessageProof, entry: LedgerEntry, cas: Cas) -> None:
    """The batch lies under the manifest's root, and both batch and message stand in the file where the proof says."""
    cid, manifest = read_manifest(cas, entry.anchor_string)
    if cid != proof.manifest or manifest.log != proof.log:
        raise ProofError(
            f"the anchor names manifest {cid} of log {manifest.log[:80]!r}, but the proof names manifest "
            f"{proof.manifest[:80]} of log {proof.log[:80]!r}: get the proof again from the node"
        )
    header = encode_header(proof.batch_header)
    try:
        root = root_of_path(leaf_hash(header), proof.batch_index, manifest.count, _hashes(proof.batch_path))
    except MerklePathError as error:
        raise ProofError(f"the batch of the proof is invalid: {error}; get the proof again from the node") from error
    if root.hex() != manifest.root:
        raise ProofError(
            f"batch {proof.batch_header.batch!r} does not belong to the Merkle root of manifest {cid}: get the proof "
            "again from the node"
        )
    file, place = _file_of(manifest, proof.batch_index)
    if file.uri != proof.batch_file:
        raise ProofError(
            f"batch {proof.batch_index} of manifest {cid} is in file {file.uri}, but the proof names file "
            f"{proof.batch_file[:80]}: get the proof again from the node"
        )
    stored = _batch_at(read_file(cas, file), place)
    if stored is None or stored.header_line != header:
        raise ProofError(
            f"batch {proof.batch_header.batch!r} is not at the position in file {file.uri} that the proof states: get "
            "the proof again from the node"
        )
    if stored.lines[proof.message_index] != canonical_json(proof.message):
        raise ProofError(
            f"message {proof.id} is not at the position in file {file.uri} that the proof states: get the proof again "
            "from the node"
        )


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
    if wrong := next((step for step in path if not _HASH.fullmatch(step)), None):
        raise ProofError(
            f"invalid proof: a Merkle path contains {wrong[:80]!r}, which is not 64 lower-case hexadecimal digits: get "
            "the proof again from the node"
        )
    return list(map(bytes.fromhex, path))
