"""A signer of checkpoints for tests of the tree: its signatures are checksums."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256

from millstream.anchoring.errors import LedgerError
from millstream.anchoring.transparency import TreeHead


class ChecksumSigner:
    """Signs with *keys*, each of which is a word; ``signed`` has what was signed, in order."""

    def __init__(self, origin: str = "example.org/ledger", keys: tuple[str, ...] = ("first",)) -> None:
        self.origin = origin
        self.keys = keys
        self.signed: list[tuple[int, bytes]] = []

    def sign(self, size: int, root: bytes) -> bytes:
        self.signed.append((size, root))
        text = f"{self.origin}\n{size}\n{b64encode(root).decode()}\n"
        return "\n".join([text, *(self._line(text, key) for key in self.keys), ""]).encode()

    def read(self, checkpoint: bytes, place: str = "") -> TreeHead:
        try:
            text, _, lines = checkpoint.decode().partition("\n\n")
            origin, size, root = text.split("\n")
        except ValueError as error:
            raise LedgerError("not a checkpoint") from error
        known = [self._line(f"{text}\n", key) for key in (*self.keys, "first")]
        if origin != self.origin or not set(known) & set(lines.split("\n")):
            raise LedgerError("the checkpoint is not one of this ledger")
        return TreeHead(origin, int(size), b64decode(root))

    def is_current(self, checkpoint: bytes) -> bool:
        text, _, lines = checkpoint.decode().partition("\n\n")
        return {self._line(f"{text}\n", key) for key in self.keys} <= set(lines.split("\n"))

    def _line(self, text: str, key: str) -> str:
        return f"— {self.origin} {sha256((key + text).encode()).hexdigest()}"
