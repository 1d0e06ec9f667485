"""The tree of a ledger as static files, by the specification `tlog-tiles` of C2SP (version 1)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from millstream.anchoring.errors import NODE_LOGS, LedgerError, NoteError
from millstream.anchoring.transparency.checkpoint import parse_checkpoint
from millstream.anchoring.transparency.published_files import PublishedFiles
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.anchoring.transparency.tree import HASH_BYTES, TILE_HEIGHT, TILE_WIDTH, MerkleTree
from millstream.anchoring.transparency.tree_tables import SignedCheckpoint

CHECKPOINT = "checkpoint"
COSIGNED_CHECKPOINT = "checkpoint.cosigned"
"""The newest checkpoint with the quorum of witnesses; that is no file of the specification."""
CHECKPOINT_MEDIA = "text/plain; charset=utf-8"
TILE_MEDIA = "application/octet-stream"

_GROUP = 1000
_MAX_ENTRY_BYTES = 0xFFFF
_PATH = re.compile(
    r"tile/(?:entries|[0-9]|[1-5][0-9]|6[0-3])/(?!x000/)(?:x[0-9]{3}/){0,6}[0-9]{3}(?:\.p/([1-9][0-9]{0,2}))?"
)

ReadLines = Callable[[int], Iterator[bytes]]
"""The entries of the ledger, as lines without their newline, from the one at an index (from 0) on."""


def tile_path(level: int | str, number: int, width: int = TILE_WIDTH) -> str:
    """The path of a tile of *width* hashes at *level*, or of a bundle of entries (level ``entries``)."""
    groups = f"{number % _GROUP:03}"
    while number := number // _GROUP:
        groups = f"x{number % _GROUP:03}/{groups}"
    part = "" if width == TILE_WIDTH else f".p/{width}"
    return f"tile/{level}/{groups}{part}"


def is_tile_path(path: str) -> bool:
    """Whether *path* has the form of a tile's or a bundle's."""
    found = _PATH.fullmatch(path)
    return found is not None and (found[1] is None or int(found[1]) < TILE_WIDTH)


def bundle_of(lines: Iterable[bytes], first: int = 1) -> bytes:
    """Entries, from number *first* on, as a bundle has them: each after its length, a big-endian integer of two bytes.

    Raises :class:`LedgerError` for an entry that is too long.
    """
    return b"".join(map(_sized, lines, itertools.count(first)))


def _sized(line: bytes, number: int) -> bytes:
    if len(line) > _MAX_ENTRY_BYTES:
        raise LedgerError(
            f"ledger entry {number:,} has {len(line):,} bytes, but the limit of a published entry is "
            f"{_MAX_ENTRY_BYTES:,} bytes: this ledger cannot be published as tiles (anchoring.tiles)"
        )
    return len(line).to_bytes(2) + line


def _size_of(checkpoint: bytes | None) -> int:
    """The size in *checkpoint*; 0 where there is none, or none that can be read."""
    try:
        return parse_checkpoint(parse_note(checkpoint)).size if checkpoint else 0
    except NoteError:
        return 0


def _is_signed_as(checkpoint: bytes, other: bytes) -> bool:
    """Whether *checkpoint* is *other*, perhaps with more signatures."""
    if checkpoint == other:
        return True
    try:
        note, less = parse_note(checkpoint), parse_note(other)
    except NoteError:
        return False
    return note.text == less.text and set(less.signatures) <= set(note.signatures)


class TilePublisher:
    """Publishes the tree of one ledger as *files*: first tiles and bundles, then the checkpoint over them.

    What is published already is what the published checkpoint says, so publishing resumes where a killed process or
    another one stopped. Not thread-safe.
    """

    def __init__(self, files: PublishedFiles) -> None:
        self.files = files
        self._published: SignedCheckpoint | None = None
        self._bundle, self._width = bytearray(), 0
        """The bundle after the last full one of what is published, and its entries, if this process wrote them."""

    @property
    def is_known(self) -> bool:
        """Whether this process knows what is published: it was read, or published by this object."""
        return self._published is not None

    def publish(
        self, checkpoint: SignedCheckpoint, tree: MerkleTree, lines: ReadLines, found: SignedCheckpoint | None = None
    ) -> None:
        """Publish *checkpoint* and what is missing below it. The same again changes nothing.

        A larger published checkpoint stays: this process may have been stopped for long, and another one published.
        *found* is what is published, where this object does not know it: the caller has checked that its tree is the
        beginning of *tree*. Raises :class:`LedgerUnavailableError`.
        """
        self._published = self._published or found
        if self._published is not None and _is_signed_as(self._published.data, checkpoint.data):
            return
        old = self._published.size if self._published else 0
        try:
            if checkpoint.size != old:
                self._put_bundles(old, checkpoint.size, lines)
                self._put_tiles(old, checkpoint.size, tree)
            if _size_of(self.files.read(CHECKPOINT)) > checkpoint.size:
                self._published, self._width = None, 0  # the next time it is read and checked
                return
            self.files.put(CHECKPOINT, checkpoint.data, CHECKPOINT_MEDIA)
        except BaseException:
            self._published, self._width = None, 0
            raise
        self._published = checkpoint

    def publish_cosigned(self, data: bytes) -> None:
        """Publish the cosigned checkpoint *data* unless a larger one is there, and in place of the same without them.

        The caller keeps others from publishing. Raises :class:`LedgerUnavailableError`.
        """
        before, newest = self.files.read(COSIGNED_CHECKPOINT), self.files.read(CHECKPOINT)
        if before != data and _size_of(before) <= _size_of(data):
            self.files.put(COSIGNED_CHECKPOINT, data, CHECKPOINT_MEDIA)
        if newest is not None and newest != data and _is_signed_as(data, newest):
            self.files.put(CHECKPOINT, data, CHECKPOINT_MEDIA)

    def _put_bundles(self, old: int, new: int, lines: ReadLines) -> None:
        is_known = self._width == old % TILE_WIDTH
        if not is_known or not self._width:
            self._bundle, self._width = bytearray(), 0
        coming = lines(old if is_known else old - old % TILE_WIDTH)
        for number in range(old // TILE_WIDTH, -(-new // TILE_WIDTH)):
            width = min(TILE_WIDTH, new - number * TILE_WIDTH)
            added = list(itertools.islice(coming, width - self._width))
            if len(added) < width - self._width:
                raise LedgerError(
                    f"the ledger ends before entry {new:,} of its signed tree: restore {NODE_LOGS} from a backup"
                )
            self._bundle += bundle_of(added, number * TILE_WIDTH + self._width + 1)
            self._put("entries", number, width, bytes(self._bundle))
            self._width = width
            if width == TILE_WIDTH:
                self._bundle, self._width = bytearray(), 0

    def _put_tiles(self, old: int, new: int, tree: MerkleTree) -> None:
        level = 0
        while new:
            if new != old:
                for number in range(old // TILE_WIDTH, -(-new // TILE_WIDTH)):
                    width = min(TILE_WIDTH, new - number * TILE_WIDTH)
                    self._put(str(level), number, width, tree.tile(level, number)[: width * HASH_BYTES])
                self._drop_partials(str(level), old, new)
                if not level:
                    self._drop_partials("entries", old, new)
            level, old, new = level + 1, old >> TILE_HEIGHT, new >> TILE_HEIGHT

    def _put(self, level: str, number: int, width: int, data: bytes) -> None:
        self.files.put(tile_path(level, number, width), data, TILE_MEDIA)

    def _drop_partials(self, level: str, old: int, new: int) -> None:
        """Remove the partial tiles of the tile that was the last one and is full now."""
        if old % TILE_WIDTH and old // TILE_WIDTH < new // TILE_WIDTH:
            self.files.delete_below(f"{tile_path(level, old // TILE_WIDTH)}.p")
