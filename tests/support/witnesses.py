"""A witness for tests: its key, and the cosignatures it makes (c2sp.org/tlog-cosignature)."""

from __future__ import annotations

from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from millstream.anchoring.transparency.signed_note import (
    COSIGNATURE,
    NoteSignature,
    SignedNote,
    VerifierKey,
    cosigned_message,
)


class TestWitness:
    """A witness called *name*; its key follows from its name."""

    __test__ = False

    def __init__(self, name: str) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())
        self.key = VerifierKey(name, COSIGNATURE, self._private.public_key().public_bytes_raw())

    def cosign(self, note: SignedNote, time: int = 1_790_000_000) -> SignedNote:
        """*note* with this witness's cosignature of *time* (seconds since the epoch)."""
        value = time.to_bytes(8) + self._private.sign(cosigned_message(note.text, time))
        return SignedNote(note.text, (*note.signatures, NoteSignature(self.key.name, self.key.key_id, value)))
