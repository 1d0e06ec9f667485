"""Comparing the durable tree of a ledger, its checkpoints and its published tiles with the entries of the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from millstream.anchoring.errors import NODE_DATABASE, NODE_LOGS, RESTORE_DATABASE, LedgerError
from millstream.anchoring.ledger import Ledger, checked_chain, encode_entry
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency.published_files import PublishedFiles
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.anchoring.transparency.tiles import CHECKPOINT, bundle_of, tile_path
from millstream.anchoring.transparency.tree import HASH_BYTES, TILE_WIDTH, GrowingTree, MerkleTree, TileStore
from millstream.anchoring.transparency.tree_tables import (
    DatabaseTiles,
    SignedCheckpoint,
    read_state,
    require_signed_row,
)

CHUNK = 16 * TILE_WIDTH
"""Number of entries that are compared at a time: whole tiles of the lowest level."""


class VerifiedTree(msgspec.Struct, frozen=True):
    """What was compared and fits: ``entries`` of the ledger, ``leaves`` of its tree, sizes of checkpoints.

    These are that in ``node.db`` (``signed``), its copy (``copied``) and the published one; None where there is none.
    """

    entries: int
    leaves: int
    signed: int | None
    copied: int | None
    published: int | None


def verify_tree(
    ledger: Ledger,
    engine: sa.Engine,
    name: str,
    *,
    signer: Callable[[], CheckpointSigner] | None,
    copy: PublishedFiles | None,
    tiles: PublishedFiles | None,
) -> VerifiedTree:
    """Compare the entries of *ledger* with the tree *name* of *engine*, and with what is in *copy* and *tiles*.

    Without *signer* no checkpoint is compared. Raises :class:`LedgerError` that names the first difference,
    :class:`LedgerUnavailableError`.
    """
    outside = {place: place.read(CHECKPOINT) for place in (copy, tiles) if place}  # first: the tree only grows
    with engine.connect() as connection:
        state = read_state(connection, name)
        signed: dict[str, SignedCheckpoint] = {}
        if signer is not None and (state.checkpoint or any(outside.values())):
            found = {str(place): data for place, data in outside.items() if data}
            signed = {place: SignedCheckpoint.read(data, signer(), place) for place, data in found.items()}
            if state.checkpoint is not None:
                require_signed_row(state.checkpoint, signer(), name)
                signed["the node's database"] = state.checkpoint
        copied, published = signed.get(str(copy)), signed.get(str(tiles))
        check = _TreeCheck(ledger, DatabaseTiles(engine, name, connection), state.size, name)
        entries = check.run(signed, _PublishedTree(tiles, published.size, name) if tiles and published else None)
    signed_size, copied_size, published_size = (
        each.size if each else None for each in (state.checkpoint, copied, published)
    )
    return VerifiedTree(entries, state.size, signed_size, copied_size, published_size)


def entry_differs(ledger: str, number: int) -> LedgerError:
    """The error of entry *number*, which is not the leaf of the tree."""
    return LedgerError(
        f"entry {number:,} of the ledger {ledger!r} differs from its leaf in the signed tree: the ledger was changed. "
        f"Restore {NODE_LOGS} from a backup or, if the tree is wrong, {NODE_DATABASE}"
    )


def ledger_is_shorter(ledger: str, entries: int, size: int) -> LedgerError:
    """The error of a ledger that has fewer *entries* than its tree has leaves (*size*)."""
    return LedgerError(
        f"the ledger {ledger!r} has {entries:,} entries, but its signed tree has {size:,}: the ledger was restored "
        f"from an older backup, or truncated. Restore the newest state of {NODE_LOGS}"
    )


class _TreeCheck:
    """Compares the tree of *size* leaves in *tiles* with *ledger*, which is known as *name*."""

    def __init__(self, ledger: Ledger, tiles: TileStore, size: int, name: str) -> None:
        self._ledger = ledger
        self._stored = MerkleTree(tiles, size)
        self._tiles = tiles
        self._size = size
        self._name = name

    def run(self, heads: Mapping[str, SignedCheckpoint], published: _PublishedTree | None) -> int:
        """Compare everything, and return the number of entries of the ledger, of which there may be more than leaves.

        *heads*, by where they are, must be of beginnings of the tree. Raises :class:`LedgerError` that names the first
        difference.
        """
        entries = checked_chain(self._ledger.entries())
        again = GrowingTree(_SameTiles(self._tiles, self._name))
        while lines := [encode_entry(each) for each in itertools.islice(entries, min(CHUNK, self._size - again.size))]:
            first = again.size
            leaves = list(map(leaf_hash, lines))
            self._require_leaves(first, leaves)
            again.extend(leaves)
            if published is not None:
                published.require_entries(first, lines)
        if again.size < self._size:
            raise ledger_is_shorter(self._name, again.size, self._size)
        for where, head in heads.items():
            if head.size > self._size or self._stored.root(head.size) != head.root:
                raise LedgerError(
                    f"the checkpoint in {where} covers {head.size:,} entries, which are not the first of the "
                    f"{self._size:,} entries of the ledger {self._name!r}: the ledger was changed, or restored from "
                    f"an older backup. Restore the newest state of {NODE_LOGS} and of {NODE_DATABASE}"
                )
        if published is not None:
            published.require_tiles(self._stored)
        return self._size + sum(1 for _ in entries)

    def _require_leaves(self, first: int, leaves: Sequence[bytes]) -> None:
        for start in range(0, len(leaves), TILE_WIDTH):
            stored = self._tiles.tile(0, (first + start) // TILE_WIDTH)
            for at, leaf in enumerate(leaves[start : start + TILE_WIDTH]):
                if stored[at * HASH_BYTES : (at + 1) * HASH_BYTES] != leaf:
                    raise entry_differs(self._name, first + start + at + 1)


class _SameTiles:
    """The tiles *tiles*, which must be what is put here."""

    def __init__(self, tiles: TileStore, name: str) -> None:
        self._tiles = tiles
        self._name = name

    def tile(self, level: int, number: int) -> bytes:
        return self._tiles.tile(level, number)

    def put(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        for (level, number), hashes in tiles.items():
            if self._tiles.tile(level, number)[: len(hashes)] != hashes:
                raise LedgerError(
                    f"tile {number} of level {level} in the tree of the ledger {self._name!r} is damaged: its hashes "
                    f"are not those of the entries. {RESTORE_DATABASE}"
                )


class _PublishedTree:
    """The first *size* entries of the ledger *name* as they are published in *files*."""

    def __init__(self, files: PublishedFiles, size: int, name: str) -> None:
        self._files = files
        self._size = size
        self._name = name

    def require_entries(self, first: int, lines: Sequence[bytes]) -> None:
        """Compare *lines*, the entries from index *first* on (a multiple of 256), with the published bundles."""
        for start in range(0, min(len(lines), self._size - first), TILE_WIDTH):
            width = min(TILE_WIDTH, self._size - first - start)
            bundle = bundle_of(lines[start : start + width], first + start + 1)
            self._require("entries", (first + start) // TILE_WIDTH, width, bundle)

    def require_tiles(self, tree: MerkleTree) -> None:
        """Compare the tiles of *tree* with the published ones."""
        level, size = 0, self._size
        while size:
            for number in range(-(-size // TILE_WIDTH)):
                width = min(TILE_WIDTH, size - number * TILE_WIDTH)
                self._require(str(level), number, width, tree.tile(level, number)[: width * HASH_BYTES])
            level, size = level + 1, size // TILE_WIDTH

    def _require(self, level: str, number: int, width: int, data: bytes) -> None:
        """The file has *data*: the partial one where there is one, and the full one where that is."""
        path = tile_path(level, number, width)
        found = self._files.read(path)
        if found is None and width < TILE_WIDTH:
            path = tile_path(level, number)
            found = self._files.read(path)
            found = found[: len(data)] if found is not None else None
        if found != data:
            what = "is missing" if found is None else f"differs from the ledger {self._name!r}"
            raise LedgerError(
                f"{path} in {self._files} {what}: remove all published files of this ledger there, and publish them "
                f"again with `millstream anchor checkpoint --ledger {self._name}`"
            )
