"""A witness: it cosigns a checkpoint if the tree extends the one that it cosigned last (c2sp.org/tlog-witness)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from millstream.anchoring.errors import MerklePathError, NoteError
from millstream.anchoring.merkle import EMPTY_ROOT, verify_consistency
from millstream.anchoring.transparency.checkpoint import Checkpoint, parse_checkpoint
from millstream.anchoring.transparency.signed_note import (
    SignedNote,
    VerifierKey,
    encode_signatures,
    parse_note,
    verify_note,
)
from millstream.anchoring.witness.requests import SIZE_MEDIA, AddCheckpoint, parse_request
from millstream.anchoring.witness.state import ForkEvidence, WitnessedHead, WitnessState, WitnessTurn
from millstream.anchoring.witness.witness_key import WitnessKey
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock

_PLAIN = "text/plain; charset=utf-8"
_log = logging.getLogger(__name__)


class WitnessResponse(msgspec.Struct, frozen=True):
    """The answer to ``add-checkpoint``: an HTTP status, a body, and its media type."""

    status: int
    body: bytes
    media: str = _PLAIN


class Witness:
    """Cosigns checkpoints of the ledgers of *logs* (verifier keys; several of one origin are allowed) with *key*.

    Thread-safe. The state is durable before a cosignature exists, and compared and written in one transaction, so two
    cosigned checkpoints of a ledger are always consistent, also after a crash and with several processes.
    """

    def __init__(self, key: WitnessKey, logs: Sequence[VerifierKey], state: WitnessState, clock: Clock) -> None:
        self._key = key
        self._logs: Mapping[str, list[VerifierKey]] = {
            log.name: [each for each in logs if each.name == log.name] for log in logs
        }
        self._state = state
        self._clock = clock

    @property
    def verifier_key(self) -> VerifierKey:
        """The key that verifies the cosignatures."""
        return self._key.verifier_key

    def add_checkpoint(self, body: bytes) -> WitnessResponse:
        """The answer to the request *body*: 200 with a signature line, or the status of the fault with its reason."""
        try:
            request = parse_request(body)
            note = parse_note(request.checkpoint)
            checkpoint = parse_checkpoint(note)
        except NoteError as error:
            return _refused(400, str(error))
        keys = self._logs.get(checkpoint.origin)
        if keys is None:
            return _refused(404, f"this witness does not cosign the ledger {checkpoint.origin[:80]!r}")
        try:
            verify_note(note, keys)
        except NoteError as error:
            return _refused(403, str(error))
        if request.old > checkpoint.size:
            return _refused(
                400, f"the old size is {request.old:,}, larger than the size of the checkpoint, {checkpoint.size:,}"
            )
        with self._state.exclusive() as turn:
            refusal = self._record(turn, request, checkpoint)
        return refusal or self._cosigned(note)

    def _record(self, turn: WitnessTurn, request: AddCheckpoint, checkpoint: Checkpoint) -> WitnessResponse | None:
        """Record *checkpoint* if it extends the recorded one; otherwise the refusal."""
        known = turn.head(checkpoint.origin)
        size, root = (known.size, known.root) if known else (0, EMPTY_ROOT)
        if request.old != size:
            return WitnessResponse(409, f"{size}\n".encode(), SIZE_MEDIA)
        if known and checkpoint.size == size:
            if request.path:
                return _refused(422, "the checkpoint has the old size: give no consistency hashes")
            return None if checkpoint.root == root else self._forked(turn, request, known)
        try:
            verify_consistency(size, root, checkpoint.size, checkpoint.root, request.path)
            if checkpoint.size == 0 and checkpoint.root != EMPTY_ROOT:
                raise MerklePathError(
                    "the root of the empty tree in the checkpoint must be the hash of the empty string"
                )
        except MerklePathError as error:
            _log.warning(
                "refused a checkpoint of the ledger %s with %d entries: %s", checkpoint.origin, checkpoint.size, error
            )
            return _refused(422, str(error))
        turn.record(
            WitnessedHead(checkpoint.origin, checkpoint.size, checkpoint.root, request.checkpoint, self._clock.now())
        )
        return None

    def _forked(self, turn: WitnessTurn, request: AddCheckpoint, known: WitnessedHead) -> WitnessResponse:
        """The key of the ledger signed two trees of one size: both notes are kept, for together they prove it."""
        turn.record_fork(
            ForkEvidence(known.origin, known.size, known.checkpoint, request.checkpoint, self._clock.now())
        )
        _log.error(
            "the ledger %s was forked: its key signed two different trees of %d entries", known.origin, known.size
        )
        return _refused(
            409, f"the ledger was forked: its key signed two different trees of {counted(known.size, 'entry')}"
        )

    def _cosigned(self, note: SignedNote) -> WitnessResponse:
        signature = self._key.cosign(note.text, self._clock.now() // MICROSECONDS)
        return WitnessResponse(200, encode_signatures([signature]).encode())


def _refused(status: int, reason: str) -> WitnessResponse:
    return WitnessResponse(status, f"{reason}\n".encode())
