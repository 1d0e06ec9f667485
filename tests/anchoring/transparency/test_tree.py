"""The growing tree against the recursive definitions of RFC 6962 §2.1, written down once more without our code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256

import pytest

from millstream.anchoring.errors import MerklePathError
from millstream.anchoring.merkle import leaf_hash, verify_consistency, verify_inclusion
from millstream.anchoring.transparency import GrowingTree
from suite.sizes import sized

EMPTY = sha256(b"").digest()
LEAVES = [sha256(b"\x00%d" % number).digest() for number in range(2_000)]
CACHE: dict[tuple[int, int], bytes] = {}


def mth(start: int, end: int) -> bytes:
    """MTH(D[start:end]) of RFC 6962 §2.1."""
    if (start, end) not in CACHE:
        if end - start == 0:
            return EMPTY
        if end - start == 1:
            return LEAVES[start]
        k = split(end - start)
        CACHE[start, end] = sha256(b"\x01" + mth(start, start + k) + mth(start + k, end)).digest()
    return CACHE[start, end]


def path(m: int, start: int, end: int) -> list[bytes]:
    """PATH(m, D[start:end]) of RFC 6962 §2.1.1."""
    if end - start == 1:
        return []
    k = split(end - start)
    if m < k:
        return [*path(m, start, start + k), mth(start + k, end)]
    return [*path(m - k, start + k, end), mth(start, start + k)]


def subproof(m: int, start: int, end: int, b: bool) -> list[bytes]:
    """SUBPROOF(m, D[start:end], b) of RFC 6962 §2.1.2."""
    if m == end - start:
        return [] if b else [mth(start, end)]
    k = split(end - start)
    if m <= k:
        return [*subproof(m, start, start + k, b), mth(start + k, end)]
    return [*subproof(m - k, start + k, end, False), mth(start, start + k)]


def split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def grown(sizes: Sequence[int]) -> GrowingTree:
    """A tree that grew to each of *sizes* in turn."""
    tree = GrowingTree()
    for size in sizes:
        tree.extend(LEAVES[tree.size : size])
    return tree


def some(upto: int, draw: random.Random) -> list[int]:
    """Some of the numbers below *upto*: both ends, the borders of tiles, others drawn."""
    borders = {0, 1, 255, 256, 257, 511, 512, upto - 2, upto - 1, *(draw.randrange(upto) for _ in range(3))}
    return sorted(number for number in borders if 0 <= number < upto)


def test_roots_and_paths_of_every_size_are_those_of_the_definition() -> None:
    draw, tree = random.Random(6962), GrowingTree()
    step = sized(quick=23, ci=3, long=1)
    assert tree.root() == EMPTY
    for size in range(1, len(LEAVES) + 1):
        tree.extend([LEAVES[size - 1]])
        if size > 300 and size % step:
            continue
        root = tree.root()
        assert root == mth(0, size)
        for index in some(size, draw):
            inclusion = tree.inclusion_path(index)
            assert inclusion == path(index, 0, size)
            verify_inclusion(LEAVES[index], index, size, inclusion, root)
        for old in [number + 1 for number in some(size, draw)]:
            consistency = tree.consistency_path(old)
            assert consistency == subproof(old, 0, size, True)
            verify_consistency(old, tree.root(old), size, root, consistency)


@pytest.mark.parametrize("seed", range(sized(quick=5, ci=20, long=400)))
def test_a_tree_that_grows_by_any_steps_has_the_same_tiles_roots_and_paths(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randrange(1, len(LEAVES))
    tree = grown([*sorted(draw.randrange(size) for _ in range(draw.randrange(6))), size])
    assert (tree.size, tree.root()) == (size, mth(0, size))
    for smaller in some(size, draw):
        assert tree.root(smaller) == mth(0, smaller)
        assert tree.consistency_path(smaller, size) == (subproof(smaller, 0, size, True) if smaller else [])
        if smaller:
            index = draw.randrange(smaller)
            assert tree.leaf(index) == LEAVES[index]
            assert tree.inclusion_path(index, smaller) == path(index, 0, smaller)


@pytest.mark.long
def test_proofs_of_large_trees_are_valid() -> None:
    draw, tree = random.Random(10**7), GrowingTree()
    roots: dict[int, bytes] = {0: EMPTY}
    for size in sorted(draw.randrange(1, sized(quick=20_000, ci=100_000, long=10**7)) for _ in range(8)):
        while tree.size < size:
            end = min(size, tree.size + 65_536)
            tree.extend([leaf_hash(b"%d" % number) for number in range(tree.size, end)])
        roots[size] = tree.root()
    for size, root in roots.items():
        assert tree.root(size) == root
        for index in [draw.randrange(size) for _ in range(20)] if size else []:
            verify_inclusion(leaf_hash(b"%d" % index), index, size, tree.inclusion_path(index, size), root)
        for old, old_root in roots.items():
            if old <= size:
                verify_consistency(old, old_root, size, root, tree.consistency_path(old, size))


def test_a_proof_with_a_changed_bit_a_step_less_or_a_step_more_is_refused() -> None:
    tree, draw = grown([700]), random.Random(1)
    root, inclusion, consistency = tree.root(), tree.inclusion_path(300), tree.consistency_path(300)
    for proof in (inclusion, consistency):
        for at in range(len(proof)):
            bit = 1 << draw.randrange(256)
            changed = (int.from_bytes(proof[at]) ^ bit).to_bytes(32)
            for wrong in ([*proof[:at], changed, *proof[at + 1 :]], proof[:at], [*proof, EMPTY]):
                with pytest.raises(MerklePathError):
                    verify_inclusion(LEAVES[300], 300, 700, wrong, root)
                with pytest.raises(MerklePathError):
                    verify_consistency(300, tree.root(300), 700, root, wrong)


def test_trees_of_one_size_are_consistent_only_if_they_are_the_same() -> None:
    verify_consistency(0, EMPTY, 3, mth(0, 3), [])
    verify_consistency(3, mth(0, 3), 3, mth(0, 3), [])
    for old, old_root, new, proof in [
        (3, EMPTY, 3, []),
        (0, mth(0, 3), 3, []),
        (0, EMPTY, 3, [EMPTY]),
        (4, EMPTY, 3, []),
        (2, EMPTY, 3, subproof(2, 0, 3, True)),
        (2, mth(0, 2), 3, []),
    ]:
        with pytest.raises(MerklePathError):
            verify_consistency(old, old_root, new, mth(0, 3), proof)


def test_places_outside_the_tree_are_refused() -> None:
    tree = grown([10])
    for ask in (
        lambda: tree.root(11),
        lambda: tree.leaf(10),
        lambda: tree.leaf(-1),
        lambda: tree.inclusion_path(10),
        lambda: tree.inclusion_path(5, 5),
        lambda: tree.inclusion_path(0, 11),
        lambda: tree.consistency_path(11),
        lambda: tree.consistency_path(6, 5),
    ):
        with pytest.raises(MerklePathError):
            ask()
