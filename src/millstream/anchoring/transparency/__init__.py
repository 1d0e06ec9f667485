"""The ledger as a Merkle tree (RFC 6962), for proofs that stay small however long the ledger gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.transparency.ledger_tree import LedgerTree, TreePlaces, TreeStatus
    from millstream.anchoring.transparency.published_files import FolderFiles, PublishedFiles, StoreFiles, open_files
    from millstream.anchoring.transparency.signer import CheckpointSigner, TreeHead
    from millstream.anchoring.transparency.tiles import TilePublisher, is_tile_path, tile_path
    from millstream.anchoring.transparency.tree import GrowingTree, MemoryTiles, MerkleTree, TileStore, TreeFrontier

__all__ = [
    "CheckpointSigner",
    "FolderFiles",
    "GrowingTree",
    "LedgerTree",
    "MemoryTiles",
    "MerkleTree",
    "PublishedFiles",
    "StoreFiles",
    "TilePublisher",
    "TileStore",
    "TreeFrontier",
    "TreeHead",
    "TreePlaces",
    "TreeStatus",
    "is_tile_path",
    "open_files",
    "tile_path",
]

__getattr__ = lazy_names(__name__)
