"""Proof files (``.tlog-proof``, c2sp.org/tlog-proof@v1): that an entry is in a ledger, as a text for any verifier."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from millstream.anchoring.errors import MerklePathError, NoteError, ProofError
from millstream.anchoring.merkle import verify_inclusion
from millstream.anchoring.transparency.checkpoint import Checkpoint, parse_checkpoint
from millstream.anchoring.transparency.policy import TrustedCheckpoint, TrustPolicy, check_checkpoint
from millstream.anchoring.transparency.signed_note import MAX_NOTE_BYTES, decode_base64, encode_base64, parse_note

MAX_PATH = 63
"""The most hashes of a path: a tree has at most 2^63 - 1 entries."""

MAX_TLOG_PROOF_BYTES = MAX_NOTE_BYTES + (1 << 20)
"""The most bytes of a proof file that are read."""

_HEADER = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,18})")


class TlogProof(msgspec.Struct, frozen=True):
    """A proof file: the entry at ``index`` (from 0) is in the tree of ``checkpoint`` (a signed note).

    ``path`` are the hashes (32 bytes each) from the leaf up. ``extra`` is unsigned data; we write none.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None


def encode_tlog_proof(proof: TlogProof) -> bytes:
    """The bytes of the file of *proof*."""
    extra = [] if proof.extra is None else [f"extra {encode_base64(proof.extra)}"]
    lines = [_HEADER, *extra, f"index {proof.index}", *map(encode_base64, proof.path), "", ""]
    return "\n".join(lines).encode() + proof.checkpoint


def decode_tlog_proof(data: bytes) -> TlogProof:
    """The proof in *data*, its form checked and nothing else. Raises :class:`ProofError`."""
    if len(data) > MAX_TLOG_PROOF_BYTES:
        raise ProofError(f"the proof file has more than {MAX_TLOG_PROOF_BYTES:,} bytes, the limit: give one proof")
    head, blank, checkpoint = data.partition(b"\n\n")
    try:
        first, *lines = head.decode().split("\n")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "), "the extra data of the proof file")
        index = _INDEX.fullmatch(lines[0]) if lines else None
        if first != _HEADER or index is None or not blank:
            raise ProofError(
                f"the file is not a .tlog-proof file: expected the line {_HEADER}, a line `index NUMBER`, hashes, an "
                "empty line and a checkpoint"
            )
        path = tuple(decode_base64(line, "a hash of the proof file") for line in lines[1:])
        parse_note(checkpoint)
    except (NoteError, UnicodeDecodeError) as error:
        raise ProofError(f"the proof file is damaged: {error}; get the proof again") from error
    if len(path) > MAX_PATH or any(len(step) != 32 for step in path):
        raise ProofError(
            f"the proof file is damaged: expected at most {MAX_PATH} hashes of 32 bytes each; get the proof again"
        )
    return TlogProof(int(index[1]), path, checkpoint, extra)


def verify_tlog_proof(data: bytes, leaf: bytes, policy: TrustPolicy) -> TrustedCheckpoint:
    """The checkpoint of the proof file *data*, which *policy* trusts, after a check that the entry is in its tree.

    *leaf* is the leaf hash (32 bytes) of the entry. Raises :class:`ProofError`.
    """
    proof = decode_tlog_proof(data)
    try:
        trusted = check_checkpoint(proof.checkpoint, policy)
    except NoteError as error:
        raise ProofError(f"the checkpoint is not trusted: {error}") from error
    require_inclusion(leaf, proof.index, proof.path, trusted.checkpoint)
    return trusted


def checkpoint_of(data: bytes) -> Checkpoint:
    """The checkpoint in *data* (a note); signatures are not checked. Raises :class:`ProofError`."""
    try:
        return parse_checkpoint(parse_note(data))
    except NoteError as error:
        raise ProofError(f"the checkpoint is damaged: {error}") from error


def require_inclusion(leaf: bytes, index: int, path: Sequence[bytes], checkpoint: Checkpoint) -> None:
    """Check that *leaf* (a hash) is at *index* (from 0) in the tree of *checkpoint*. Raises :class:`ProofError`."""
    try:
        verify_inclusion(leaf, index, checkpoint.size, path, checkpoint.root)
    except MerklePathError as error:
        raise ProofError(f"ledger entry {index + 1:,} is not in the tree of the checkpoint: {error}") from error
