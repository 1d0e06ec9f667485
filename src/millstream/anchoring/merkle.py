"""Merkle trees as Certificate Transparency has them (RFC 6962 §2.1, RFC 9162 §2.1): roots, paths and their checks.

These functions hold all leaves. A tree that grows for ever is :class:`millstream.anchoring.transparency.MerkleTree`.
Trees of another digest than SHA-256 have their own *node*: the hash of a node from the two below it, joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from millstream.anchoring.errors import MerklePathError
from millstream.core.digests import sha256_after

leaf_hash = sha256_after(b"\x00")
"""The hash (32 bytes) of a leaf that holds the data it is called with."""

_node = sha256_after(b"\x01")

HashNode = Callable[[bytes], bytes]

EMPTY_ROOT = sha256().digest()
"""The root of a tree without leaves."""


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash (32 bytes) of the node above *left* and *right* (32 bytes each)."""
    return _node(left + right)


def merkle_root(leaves: Sequence[bytes], node: HashNode = _node) -> bytes:
    """The root over *leaves* (leaf hashes, in order); of no leaves, the hash of nothing."""
    level = leaves
    while len(level) > 1:
        level = level_above(level, node)
    return level[0] if level else EMPTY_ROOT


def missing_leaf(index: int, size: int) -> MerklePathError:
    """The error where a tree of *size* leaves has none at *index* (from 0)."""
    known = f"has leaves 0 to {size - 1:,}" if size else "is empty"
    return MerklePathError(f"leaf {index:,} does not exist: the tree {known}")


def inclusion_path(leaves: Sequence[bytes], index: int, node: HashNode = _node) -> list[bytes]:
    """The siblings, from the leaf up, that lead from the leaf at *index* (from 0) to the root."""
    if not 0 <= index < len(leaves):
        raise missing_leaf(index, len(leaves))
    path, level = [], leaves
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        level, index = level_above(level, node), index >> 1
    return path


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes], node: HashNode = _node) -> bytes:
    """The root that *path* leads to from *leaf* (a leaf hash) at *index* of a tree of *size* leaves.

    Raises :class:`MerklePathError` where the path is too long or too short for that place (RFC 9162 §2.1.3.2).
    """
    if not 0 <= index < size:
        raise missing_leaf(index, size)
    last, found, rest = size - 1, leaf, list(reversed(path))
    _check_length(f"inclusion path of leaf {index:,} in a tree of {size:,} leaves", path, _siblings(index, last))
    while last:
        if index == last and not index & 1:  # a node without a sibling moves up as it is
            index, last = index >> 1, last >> 1
            continue
        sibling = rest.pop()
        found = node(sibling + found) if index & 1 else node(found + sibling)
        index, last = index >> 1, last >> 1
    return found


def _siblings(index: int, last: int) -> int:
    """How many nodes, from the one at *index* up to the root, have a sibling; *last* is the last index of the level."""
    count = 0
    while last:
        count += index != last or index & 1
        index, last = index >> 1, last >> 1
    return count


def _check_length(name: str, path: Sequence[bytes], length: int) -> None:
    if len(path) != length:
        raise MerklePathError(f"the {name} has {len(path):,} hashes, but needs {length:,}")


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Check that *leaf* (a leaf hash) stands at *index* (from 0) of the tree of *size* leaves with *root*.

    Raises :class:`MerklePathError` where *path* does not prove it.
    """
    if root_of_path(leaf, index, size, path) != root:
        raise MerklePathError(
            f"the Merkle path does not lead from leaf {index:,} (counted from 0) to the root of the tree of {size:,} "
            "leaves"
        )


def verify_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]) -> None:
    """Check that the tree of *old_size* leaves with *old_root* is the beginning of the new one (RFC 9162 §2.1.4.2).

    Of trees of the same size, and of an empty old tree, *path* is empty. Raises :class:`MerklePathError` where *path*
    does not prove it.
    """
    if not 0 <= old_size <= new_size:
        raise MerklePathError(
            f"invalid old tree size {old_size:,}: it must be between 0 and {new_size:,}, the size of the new tree"
        )
    name = f"consistency path from {old_size:,} to {new_size:,} leaves"
    if old_size in (0, new_size):
        _check_length(name, path, 0)
        if old_root != (new_root if old_size else EMPTY_ROOT):
            raise MerklePathError(
                f"two trees of {old_size:,} leaves have different roots, {old_root.hex()} and {new_root.hex()}"
            )
        return
    old_node, new_node = _roots_of_consistency(old_size, old_root, new_size, path, name)
    if old_node != old_root or new_node != new_root:
        raise MerklePathError(f"the tree of {new_size:,} leaves does not begin with the tree of {old_size:,} leaves")


def _roots_of_consistency(
    old_size: int, old_root: bytes, new_size: int, path: Sequence[bytes], name: str
) -> tuple[bytes, bytes]:
    """The roots of the two trees that *path* leads to; *old_root* counts where the old tree is a complete subtree."""
    index, last, rest = old_size - 1, new_size - 1, list(reversed(path))
    if old_size & index == 0:
        rest.append(old_root)
    while index & 1:
        index, last = index >> 1, last >> 1
    _check_length(name, path, 1 + _siblings(index, last) - (len(rest) - len(path)))
    old_node = new_node = rest.pop()
    while last:
        if index == last and not index & 1:  # a node without a sibling moves up as it is
            index, last = index >> 1, last >> 1
            continue
        sibling = rest.pop()
        if index & 1:
            old_node, new_node = node_hash(sibling, old_node), node_hash(sibling, new_node)
        else:
            new_node = node_hash(new_node, sibling)
        index, last = index >> 1, last >> 1
    return old_node, new_node


def level_above(level: Sequence[bytes], node: HashNode = _node) -> list[bytes]:
    """The nodes above those of *level*, of which an odd one at the end moves up as it is."""
    # This is the same tree as RFC 9162's split at the largest power of two.
    pairs = zip(level[::2], level[1::2], strict=False)
    above = [node(left + right) for left, right in pairs]
    if len(level) % 2:
        above.append(level[-1])
    return above
