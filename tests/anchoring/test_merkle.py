from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import MerklePathError
from millstream.anchoring.merkle import (
    inclusion_path,
    leaf_hash,
    merkle_root,
    node_hash,
    root_of_path,
    verify_consistency,
)


def tree_hash(entries: list[bytes]) -> bytes:
    """MTH as RFC 9162 §2.1.1 writes it down: recursive, split at the largest power of two."""
    if len(entries) <= 1:
        return leaf_hash(entries[0]) if entries else sha256(b"").digest()
    k = 1 << (len(entries) - 1).bit_length() - 1
    return node_hash(tree_hash(entries[:k]), tree_hash(entries[k:]))


def test_hashes_are_domain_separated_as_in_rfc_9162() -> None:
    assert leaf_hash(b"abc") == sha256(b"\x00abc").digest()
    assert node_hash(b"l" * 32, b"r" * 32) == sha256(b"\x01" + b"l" * 32 + b"r" * 32).digest()


def test_certificate_transparency_vectors_hold() -> None:
    entries = [bytes.fromhex(h) for h in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
    entries.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))
    leaves = [leaf_hash(entry) for entry in entries]
    assert merkle_root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert merkle_root(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert merkle_root(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@given(st.lists(st.binary(max_size=8), max_size=70))
def test_the_root_is_that_of_the_recursive_definition(entries: list[bytes]) -> None:
    assert merkle_root([leaf_hash(entry) for entry in entries]) == tree_hash(entries)


@pytest.mark.parametrize("size", range(1, 40))
def test_every_leaf_has_a_path_to_the_root(size: int) -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(size)]
    root = merkle_root(leaves)
    for index, leaf in enumerate(leaves):
        assert root_of_path(leaf, index, size, inclusion_path(leaves, index)) == root


@given(st.integers(2, 40), st.data())
def test_a_path_proves_only_its_own_leaf_and_place(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(size)]
    index = data.draw(st.integers(0, size - 1))
    path, root = inclusion_path(leaves, index), merkle_root(leaves)
    elsewhere = data.draw(st.integers(0, size - 1).filter(lambda n: n != index))
    assert _leads_to(leaves[elsewhere], index, size, path) != root
    assert _leads_to(leaves[index], elsewhere, size, path) != root
    for changed in (path[:-1], [*path, root], [leaf_hash(b"other"), *path[1:]]):
        assert _leads_to(leaves[index], index, size, changed) != root


@pytest.mark.parametrize(
    ("index", "size", "leaves"), [(-1, 3, "has leaves 0 to 2"), (3, 3, "has leaves 0 to 2"), (0, 0, "is empty")]
)
def test_a_place_outside_the_tree_is_refused(index: int, size: int, leaves: str) -> None:
    told = f"leaf {index} does not exist: the tree {leaves}"
    with pytest.raises(MerklePathError, match=told):
        root_of_path(b"x" * 32, index, size, [])
    with pytest.raises(MerklePathError, match=told):
        inclusion_path([b"x" * 32] * size, index)


def _leads_to(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes | None:
    try:
        return root_of_path(leaf, index, size, path)
    except MerklePathError:
        return None


@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_path_of_the_wrong_length_is_named_with_both_lengths(length: int) -> None:
    path = [sha256(b"x").digest()] * length
    with pytest.raises(MerklePathError, match=f"path of leaf 3 in a tree of 5 leaves has {length} hashes, but needs 3"):
        root_of_path(path[0] if path else b"", 3, 5, path)
    for old, needed in ((3, 4), (4, 1), (7, 0)):
        told = f"consistency path from {old} to 7 leaves has {length} hashes, but needs {needed}"
        if length != needed:
            with pytest.raises(MerklePathError, match=told):
                verify_consistency(old, b"old", 7, b"new", path)
