"""A Merkle tree by RFC 6962 §2.1 that grows at its end and is read by tiles, so that it never has to be in memory.

The hashes of the tree at the heights 0, 8, 16 … (*levels* 0, 1, 2 …) are kept in *tiles* of 256, as `tlog-tiles` has
them. All other nodes are computed from one tile each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from millstream.anchoring.errors import MerklePathError
from millstream.anchoring.merkle import EMPTY_ROOT, level_above, missing_leaf, node_hash

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
"""The hashes of a full tile."""
HASH_BYTES = 32

_FEW = 64
"""Up to this many leaves are added one by one to the complete subtrees; for more, the subtrees are computed again."""


class ReadableTiles(Protocol):
    """The tiles of one tree: the hashes (32 bytes each) at level *level*, 256 a tile, fewer in the last."""

    def tile(self, level: int, number: int) -> bytes:
        """The hashes of the tile, at least those that the tree has. Raises :class:`LedgerError` where it is absent."""
        ...


class TileStore(ReadableTiles, Protocol):
    """The storage of the tiles of one tree."""

    def put(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        """Keep tiles by level and number; one that was kept before got longer."""
        ...


class MemoryTiles:
    """The tiles of a tree that ends with the process."""

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int], bytes] = {}

    def tile(self, level: int, number: int) -> bytes:
        return self._tiles[level, number]

    def put(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        self._tiles.update(tiles)


class MerkleTree:
    """The tree of *size* leaves (leaf hashes of 32 bytes) whose tiles are in *tiles*. Not thread-safe."""

    def __init__(self, tiles: ReadableTiles, size: int) -> None:
        self._tiles = tiles
        self._size = size
        self._peaks: list[bytes] | None = None
        """The roots of the complete subtrees that the tree consists of, the largest first."""
        self._root: bytes | None = None

    @property
    def size(self) -> int:
        """How many leaves the tree has."""
        return self._size

    def root(self, size: int | None = None) -> bytes:
        """The root (32 bytes) of the tree, or of its first *size* leaves. Raises :class:`MerklePathError`."""
        if size is None or size == self._size:
            if self._root is None:
                self._root = _folded(self._own_peaks())
            return self._root
        self._require(size)
        return self._hash_of(0, size)

    def leaf(self, index: int) -> bytes:
        """The leaf hash at *index* (from 0). Raises :class:`MerklePathError`."""
        if not 0 <= index < self._size:
            raise missing_leaf(index, self._size)
        return self._subtree(0, index)

    def tile(self, level: int, number: int) -> bytes:
        """The hashes of a tile, at least those of this tree."""
        return self._tiles.tile(level, number)

    def inclusion_path(self, index: int, size: int | None = None) -> list[bytes]:
        """The siblings, from the leaf up, from the leaf at *index* to the root of the first *size* leaves (of all).

        Raises :class:`MerklePathError` where the tree has no such leaf, or fewer than *size* of them.
        """
        end = self._size if size is None else size
        self._require(end)
        if not 0 <= index < end:
            raise missing_leaf(index, end)
        start, path = 0, list[bytes]()
        while end - start > 1:
            middle = start + _largest_power_below(end - start)
            if index < middle:
                path.append(self._hash_of(middle, end))
                end = middle
            else:
                path.append(self._hash_of(start, middle))
                start = middle
        return path[::-1]

    def consistency_path(self, old: int, new: int | None = None) -> list[bytes]:
        """The proof that the first *old* leaves are the beginning of the first *new* (RFC 6962 §2.1.2).

        It is empty where the sizes are the same, and where *old* is 0. Raises :class:`MerklePathError`.
        """
        end = self._size if new is None else new
        self._require(end)
        if not 0 <= old <= end:
            raise MerklePathError(
                f"invalid old tree size {old:,}: it must be between 0 and {end:,}, the size of the tree"
            )
        if old in (0, end):
            return []
        start, path = 0, list[bytes]()
        while old != end:
            middle = start + _largest_power_below(end - start)
            if old <= middle:
                path.append(self._hash_of(middle, end))
                end = middle
            else:
                path.append(self._hash_of(start, middle))
                start = middle
        if start:  # else the old tree is a complete subtree, whose root is known
            path.append(self._hash_of(start, end))
        return path[::-1]

    def _require(self, size: int) -> None:
        if not 0 <= size <= self._size:
            raise MerklePathError(f"a tree of {size:,} leaves was asked for, but the tree has {self._size:,} leaves")

    def _own_peaks(self) -> list[bytes]:
        if self._peaks is None:
            self._peaks = list(self._peaks_of(0, self._size))
        return self._peaks

    def _hash_of(self, start: int, end: int) -> bytes:
        """The hash of the subtree over the leaves from *start* to before *end*."""
        return _folded(list(self._peaks_of(start, end)))

    def _peaks_of(self, start: int, end: int) -> Iterator[bytes]:
        """The complete subtrees, the largest first, of the subtree over the leaves from *start* to before *end*."""
        while start < end:
            height = (end - start).bit_length() - 1
            yield self._subtree(height, start >> height)
            start += 1 << height

    def _subtree(self, height: int, index: int) -> bytes:
        """The root of the complete subtree number *index* of those of *height*."""
        level, above = divmod(height, TILE_HEIGHT)
        number, first = divmod(index << above, TILE_WIDTH)
        tile = self._tiles.tile(level, number)
        return _reduced(tile[first * HASH_BYTES : (first + (1 << above)) * HASH_BYTES], above)


class GrowingTree(MerkleTree):
    """The tree of *size* leaves in *tiles* (in memory where there are none), to which leaves are added."""

    def __init__(self, tiles: TileStore | None = None, size: int = 0) -> None:
        self._store = MemoryTiles() if tiles is None else tiles
        super().__init__(self._store, size)
        self._edge: dict[int, bytearray] = {}
        """The unfinished tile of each level, as far as it was read."""

    def tile(self, level: int, number: int) -> bytes:
        """The hashes of a tile, at least those of this tree."""
        edge = self._edge.get(level)
        if edge is not None and number == self._size >> TILE_HEIGHT * (level + 1):
            return bytes(edge)
        return super().tile(level, number)

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add *leaves* (leaf hashes of 32 bytes each) at the end, and put the changed tiles into the tile store."""
        if not leaves:
            return
        if len(leaves) > _FEW:
            self._peaks = None
        else:
            peaks = self._own_peaks()
            for size, leaf in enumerate(leaves, self._size):
                _add_peak(peaks, size, leaf)
        changed: dict[tuple[int, int], bytes] = {}
        self._append(0, self._size, leaves, changed)
        self._size += len(leaves)
        self._root = None
        self._store.put(changed)

    def _append(self, level: int, count: int, hashes: Sequence[bytes], changed: dict[tuple[int, int], bytes]) -> None:
        """Add *hashes* at *level*, which has *count* of them, and what they complete at the levels above."""
        above, done = list[bytes](), 0
        while done < len(hashes):
            number, width = divmod(count + done, TILE_WIDTH)
            tile = self._edge.get(level)
            if tile is None:
                tile = self._edge[level] = bytearray(
                    self._tiles.tile(level, number)[: width * HASH_BYTES] if width else b""
                )
            tile += b"".join(hashes[done : done + TILE_WIDTH - width])
            done += TILE_WIDTH - width
            changed[level, number] = bytes(tile)
            if len(tile) == TILE_WIDTH * HASH_BYTES:
                above.append(_reduced(bytes(tile), TILE_HEIGHT))
                del self._edge[level]
        if above:
            self._append(level + 1, count // TILE_WIDTH, above, changed)


class TreeFrontier:
    """A tree of *size* leaves that only grows, as the roots of its complete subtrees (*peaks*, the largest first).

    It has at most 63 hashes of 32 bytes. Not thread-safe.
    """

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        self.size = size
        self.peaks = list(peaks)

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add *leaves* (leaf hashes of 32 bytes each) at the end."""
        for leaf in leaves:
            _add_peak(self.peaks, self.size, leaf)
            self.size += 1

    def root(self) -> bytes:
        """The root (32 bytes) of the tree."""
        return _folded(self.peaks)


def _reduced(hashes: bytes, levels: int) -> bytes:
    """The node so many *levels* above *hashes*, of which there are two to the power of that."""
    nodes: Sequence[bytes] = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    for _ in range(levels):
        nodes = level_above(nodes)
    (node,) = nodes
    return node


def _folded(peaks: Sequence[bytes]) -> bytes:
    """The root of a tree that consists of these complete subtrees."""
    if not peaks:
        return EMPTY_ROOT
    node = peaks[-1]
    for peak in reversed(peaks[:-1]):
        node = node_hash(peak, node)
    return node


def _add_peak(peaks: list[bytes], size: int, leaf: bytes) -> None:
    """Add *leaf* to the complete subtrees *peaks* of a tree of *size* leaves."""
    node = leaf
    while size & 1:
        node, size = node_hash(peaks.pop(), node), size >> 1
    peaks.append(node)


def _largest_power_below(count: int) -> int:
    return 1 << (count - 1).bit_length() - 1
