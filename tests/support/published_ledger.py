"""A ledger that is published as tiles by somebody who holds its key, and may publish whatever they like."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from millstream.anchoring.ledger import LedgerEntry, encode_entry, entry_hash, next_entry
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency import FolderFiles, GrowingTree, TilePublisher
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from millstream.anchoring.transparency.tree_tables import SignedCheckpoint
from millstream.core.clock import VirtualClock
from millstream.testing.ledgers import some_anchor


class PublishedLedger:
    """The ledger *origin* with its tiles in *folder*; ``lines`` are its entries, in order."""

    def __init__(self, folder: Path, origin: str = "example.org/anchors", clock: VirtualClock | None = None) -> None:
        self.folder = folder
        self.key = SigningKey(origin, sha256(origin.encode()).digest())
        self.clock = clock or VirtualClock()
        self.lines: list[bytes] = []
        self._head: LedgerEntry | None = None

    def append(self, *anchors: str) -> None:
        """Append an entry for each of *anchors*, at the time of the clock."""
        for anchor in anchors:
            self._head = next_entry(self._head, anchor, self.clock.now())
            self.lines.append(encode_entry(self._head))

    def grow(self, count: int, salt: int = 0) -> None:
        """Append *count* entries; other ones for another *salt*."""
        self.append(*(some_anchor(salt * 1_000_000 + len(self.lines) + at) for at in range(count)))

    def rewrite(self, lines: Sequence[LedgerEntry]) -> None:
        """Let the ledger consist of *lines*, whatever they are."""
        self.lines, self._head = list(map(encode_entry, lines)), lines[-1] if lines else None

    @property
    def tree(self) -> GrowingTree:
        """The tree over all entries."""
        tree = GrowingTree()
        tree.extend(list(map(leaf_hash, self.lines)))
        return tree

    def signed(self, key: SigningKey | None = None) -> SignedCheckpoint:
        """The checkpoint of all entries, signed with *key* (the ledger's own)."""
        root = self.tree.root()
        text = Checkpoint(self.key.name, len(self.lines), root).text
        return SignedCheckpoint(encode_note(sign_note(text, [key or self.key])), len(self.lines), root)

    def publish(
        self, key: SigningKey | None = None, *, cosigned: bytes | None = None, anew: bool = True
    ) -> SignedCheckpoint:
        """Publish everything, with *anew* in place of what was there; *cosigned* is the checkpoint with the quorum."""
        if anew:
            shutil.rmtree(self.folder, ignore_errors=True)
        signed = self.signed(key)
        publisher = TilePublisher(FolderFiles(self.folder, "", create=True))
        publisher.publish(signed, self.tree, lambda first: iter(self.lines[first:]))
        if cosigned is not None:
            publisher.publish_cosigned(cosigned)
        return signed


def sealed(anchor: str, number: int, previous: str, time: int) -> LedgerEntry:
    """An entry with any members, whose hash fits them."""
    return LedgerEntry(anchor, entry_hash(anchor, number, previous, time), number, previous, time)


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a static web server for *folder*, while the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
