"""A ledger for tests of witnesses: leaves that follow from a name, its tree at any size, and its signed checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency import GrowingTree
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from millstream.anchoring.witness import AddCheckpoint
from millstream.anchoring.witness.requests import encode_request


class WitnessedLog:
    """The ledger *origin* with *size* leaves; from leaf *forked_at* on they differ from those of another *branch*."""

    def __init__(
        self, origin: str = "example.org/log", *, size: int = 300, branch: str = "", forked_at: int = 0
    ) -> None:
        self.key = SigningKey(origin, sha256(origin.encode()).digest())
        self._tree = GrowingTree()
        names = [b"%d" % number + (branch.encode() if number >= forked_at else b"") for number in range(size)]
        self._tree.extend(list(map(leaf_hash, names)))

    def checkpoint(self, size: int, *extensions: str) -> bytes:
        """The signed checkpoint of the first *size* leaves."""
        checkpoint = Checkpoint(self.key.name, size, self._tree.root(size), extensions)
        return encode_note(sign_note(checkpoint.text, [self.key]))

    def path(self, old: int, new: int) -> Sequence[bytes]:
        """The consistency path between two sizes."""
        return self._tree.consistency_path(old, new) if 0 < old < new else []

    def request(self, old: int, new: int) -> bytes:
        """The body that asks for a cosignature of the tree of *new* leaves, after the one of *old*."""
        return encode_request(AddCheckpoint(old, tuple(self.path(old, new)), self.checkpoint(new)))
