"""Making the proof of one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.anchoring.batch_files import BatchFileEntry, split_batches
from millstream.anchoring.batch_records import decode_message
from millstream.anchoring.cas import Cas
from millstream.anchoring.content import read_manifest
from millstream.anchoring.cut_manifest import MAX_FILE_BYTES
from millstream.anchoring.errors import (
    INDEX_AHEAD,
    RESTORE_LEDGER,
    AnchoringError,
    BatchFormatError,
    LedgerReplacedError,
    NotAnchoredError,
    NotBatchedError,
    ProofError,
)
from millstream.anchoring.index import AnchorIndex, MessageLocation, require_observed
from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.ledger import Ledger, LedgerEntry, check_tail, encode_entry
from millstream.anchoring.merkle import inclusion_path, leaf_hash
from millstream.anchoring.proof import (
    CHAIN_VERSION,
    MAX_PROOF_BYTES,
    STAMPED_VERSION,
    VERSION,
    Replica,
    encode_proof,
)
from millstream.anchoring.transparency.entry_proof import EntryProof

ProveEntry = Callable[[int], EntryProof]
"""The proof that the ledger entry of this number is in the signed ledger."""

FindReplicas = Callable[[str], Sequence[Replica]]
"""Which copies of the file of this CID there are, and when each was last verified."""


def prove(
    log: str,
    message_id: int,
    *,
    index: AnchorIndex,
    cas: Cas,
    ledger: Ledger,
    journal: BatchJournal | None = None,
    replicas: FindReplicas | None = None,
    prove_entry: ProveEntry | None = None,
) -> bytes:
    """The proof that message *message_id* of *log* is anchored, as canonical JSON without a newline.

    *prove_entry* proves that the anchor's entry is in the signed ledger (version 2, with time stamps version 3);
    without it the proof has all entries up to the head (version 1).

    Raises :class:`NotAnchoredError` that says why there is none (with *journal* also for what is not anchored yet; it
    is a :class:`NotBatchedError` where nothing is known of the message), :class:`CasError` where the batch file cannot
    be read, :class:`LedgerError`, :class:`ProofError` where the proof is too large to be verified.
    """
    location = index.locate(log, message_id)
    if location is None:
        raise _why_not(log, message_id, index, journal)
    part = _chain(ledger, location.number) if prove_entry is None else _signed_entry(prove_entry(location.number))
    require_observed(index.anchor(location.number), part.entry)
    manifest_cid, _ = read_manifest(cas, part.entry.anchor_string)
    stored = _stored_batch(cas, location)
    at = _place_of(stored, message_id, location)
    copies = [] if replicas is None else replicas(location.uri)
    members: dict[str, Any] = {
        "batch_file": location.uri,
        "batch_header": stored.header,
        "batch_index": location.ordinal,
        "batch_path": _hex(inclusion_path(index.leaves(location.number), location.ordinal)),
        "id": message_id,
        "log": log,
        "manifest": manifest_cid,
        "message": msgspec.json.decode(stored.lines[at]),
        "message_index": at,
        "message_path": _hex(inclusion_path([leaf_hash(line) for line in stored.lines], at)),
        "replicas": copies,
        **part.members,
    }
    return encode_proof(msgspec.to_builtins(members))


class _LedgerPart(msgspec.Struct, frozen=True):
    """The part of a proof that is about the ledger: the anchor's entry, and the members of the proof."""

    entry: LedgerEntry
    members: dict[str, Any]


def _signed_entry(proof: EntryProof) -> _LedgerPart:
    members = {"checkpoint": proof.checkpoint.decode(), "entry": proof.entry, "entry_path": _hex(proof.path)}
    if proof.timestamps:
        return _LedgerPart(proof.entry, {**members, "timestamps": proof.timestamps, "version": STAMPED_VERSION})
    return _LedgerPart(proof.entry, {**members, "version": VERSION})


def _chain(ledger: Ledger, number: int) -> _LedgerPart:
    """The entries from *number* to the head."""
    chain, size = list[LedgerEntry](), 0
    for entry in ledger.entries(number):
        chain.append(entry)
        size += len(encode_entry(entry))
        if size > MAX_PROOF_BYTES:
            raise ProofError(
                f"a proof with all ledger entries from {number} on would have more than {MAX_PROOF_BYTES:,} bytes and "
                "could not be verified: make it without --chain"
            )
    if not chain:
        raise LedgerReplacedError(f"the ledger has no entry {number:,}, {INDEX_AHEAD}. {RESTORE_LEDGER}")
    check_tail(chain)
    return _LedgerPart(chain[0], {"ledger": chain, "version": CHAIN_VERSION})


def _stored_batch(cas: Cas, location: MessageLocation) -> BatchFileEntry:
    data = cas.get(location.uri, MAX_FILE_BYTES)[location.offset : location.offset + location.size]
    try:
        stored = next(split_batches(data))
    except BatchFormatError as error:
        raise _misplaced(location) from error
    if stored.header.batch != location.batch:
        raise _misplaced(location)
    return stored


def _place_of(stored: BatchFileEntry, message_id: int, location: MessageLocation) -> int:
    for place, line in enumerate(stored.lines):
        if decode_message(line).id == message_id:
            return place
    raise _misplaced(location)


def _misplaced(location: MessageLocation) -> AnchoringError:
    return AnchoringError(
        f"the index has a wrong location for batch {location.batch!r} of anchor {location.number}: "
        "compare the index with the files by `millstream anchor replay`"
    )


def _why_not(log: str, message_id: int, index: AnchorIndex, journal: BatchJournal | None) -> NotAnchoredError:
    what = f"message {message_id} of log {log!r} is not anchored"
    rejected = index.reject_reason(log, message_id)
    if rejected is not None:
        return NotAnchoredError(f"{what}: it was rejected as {rejected[1]} (anchor {rejected[0]})")
    said = _what_the_journal_says(log, message_id, journal)
    if said is None:
        return NotBatchedError(f"{what}: it is in no batch of this node")
    return NotAnchoredError(f"{what}: {said}")


def _what_the_journal_says(log: str, message_id: int, journal: BatchJournal | None) -> str | None:
    reason = journal and journal.reject_reason(log, message_id)
    batch = journal and journal.batch_of(log, message_id)
    status = journal.status(log, batch) if journal and batch else None
    if reason is not None:
        return f"it was rejected as {reason}"
    if status is None:
        return None
    if status.reason is not None:
        return f"its batch {batch} was rejected: {status.reason}"
    return f"its batch {batch} is {status.state} and waits for the next cut (millstream anchor cut --force)"


def _hex(path: Sequence[bytes]) -> list[str]:
    return [step.hex() for step in path]
