"""A ledger in memory whose tree is signed, for tests of proofs."""

from __future__ import annotations

import msgspec

from millstream.anchoring.ledger import Ledger, encode_entry
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.entry_proof import EntryProof, prove_entry
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, parse_note, sign_note
from millstream.anchoring.transparency.signer import TreeHead
from millstream.anchoring.transparency.tree import GrowingTree


class Head(msgspec.Struct, frozen=True):
    data: bytes
    size: int


class MemorySignedLedger:
    """The tree of *ledger*, and its signer: what the node has in its database and its key folder."""

    def __init__(self, ledger: Ledger, key: SigningKey) -> None:
        self.ledger, self.key, self.tree = ledger, key, GrowingTree()
        self._newest: Head | None = None

    @property
    def origin(self) -> str:
        return self.key.name

    def released(self) -> Head | None:
        return self._newest

    def checkpoint(self) -> Head:
        self.tree.extend([leaf_hash(encode_entry(entry)) for entry in self.ledger.entries(self.tree.size + 1)])
        self._newest = Head(self.sign(self.tree.size, self.tree.root()), self.tree.size)
        return self._newest

    def inclusion_path(self, index: int, size: int | None = None) -> list[bytes]:
        return self.tree.inclusion_path(index, size)

    def sign(self, size: int, root: bytes) -> bytes:
        return encode_note(sign_note(Checkpoint(self.origin, size, root).text, [self.key]))

    def read(self, checkpoint: bytes, place: str = "") -> TreeHead:
        raise NotImplementedError

    def is_current(self, checkpoint: bytes) -> bool:
        return parse_note(checkpoint).signatures[0].key_id == self.key.verifier_key.key_id

    def prove_entry(self, number: int) -> EntryProof:
        return prove_entry(number, self.ledger, self, self)
