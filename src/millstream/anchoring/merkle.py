"""Merkle trees as Certificate Transparency has them (RFC 9162 §2.1): root, inclusion path, check of a path."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from millstream.anchoring.errors import MerklePathError
from millstream.core.digests import sha256_after

leaf_hash = sha256_after(b"\x00")
"""The hash (32 bytes) of a leaf that holds the data it is called with."""

_node = sha256_after(b"\x01")


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash (32 bytes) of the node above *left* and *right* (32 bytes each)."""
    return _node(left + right)


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The root over *leaves* (leaf hashes, in order); of no leaves, the hash of nothing."""
    level = leaves
    while len(level) > 1:
        level = _level_above(level)
    return level[0] if level else sha256().digest()


def inclusion_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The siblings, from the leaf up, that lead from the leaf at *index* (from 0) to the root."""
    if not 0 <= index < len(leaves):
        raise MerklePathError(f"leaf {index} does not exist: the tree has {len(leaves)} leaves")
    path, level = [], leaves
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        level, index = _level_above(level), index >> 1
    return path


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root that *path* leads to from *leaf* (a leaf hash) at *index* of a tree of *size* leaves.

    Raises :class:`MerklePathError` where the path is too long or too short for that place (RFC 9162 §2.1.3.2).
    """
    if not 0 <= index < size:
        raise MerklePathError(f"leaf {index} does not exist: the tree has {size} leaves")
    last, node, rest = size - 1, leaf, list(reversed(path))
    while last:
        if index == last and not index & 1:  # a node without a sibling moves up as it is
            index, last = index >> 1, last >> 1
            continue
        if not rest:
            raise MerklePathError("the Merkle path is too short")
        sibling = rest.pop()
        node = node_hash(sibling, node) if index & 1 else node_hash(node, sibling)
        index, last = index >> 1, last >> 1
    if rest:
        raise MerklePathError("the Merkle path is too long")
    return node


def _level_above(level: Sequence[bytes]) -> list[bytes]:
    # An odd node at the end moves up unchanged: the same tree as RFC 9162's split at the largest power of two.
    pairs = zip(level[::2], level[1::2], strict=False)
    above = [_node(left + right) for left, right in pairs]  # node_hash, without a call a node
    if len(level) % 2:
        above.append(level[-1])
    return above
