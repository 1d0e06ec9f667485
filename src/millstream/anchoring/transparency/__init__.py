"""The ledger as a Merkle tree (RFC 6962), for proofs that stay small however long the ledger gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.transparency.signer import CheckpointSigner, TreeHead
    from millstream.anchoring.transparency.tree import MemoryTiles, MerkleTree, TileStore

__all__ = ["CheckpointSigner", "MemoryTiles", "MerkleTree", "TileStore", "TreeHead"]

__getattr__ = lazy_names(__name__)
