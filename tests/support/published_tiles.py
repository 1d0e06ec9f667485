"""Reading a published tree as a client of tiles does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.transparency import PublishedFiles, tile_path


def check_tiles(files: PublishedFiles, lines: Sequence[bytes], size: int) -> None:
    """The tree of the first *size* of *lines* can be read from full tiles, and partial ones where those are missing."""
    entries = list[bytes]()
    for data in _level(files, "entries", size):
        at = 0
        while at < len(data):
            end = at + 2 + int.from_bytes(data[at : at + 2])
            entries.append(data[at + 2 : end])
            at = end
    assert entries[:size] == list(lines[:size])
    hashes = [leaf_hash(line) for line in lines[:size]]
    level = 0
    while hashes:
        joined = b"".join(_level(files, level, len(hashes)))
        assert joined[: 32 * len(hashes)] == b"".join(hashes)
        full = len(hashes) - len(hashes) % 256
        hashes = [merkle_root(hashes[at : at + 256]) for at in range(0, full, 256)]
        level += 1


def _level(files: PublishedFiles, level: int | str, count: int) -> Iterator[bytes]:
    for number in range(-(-count // 256)):
        width = min(256, count - 256 * number)
        data = files.read(tile_path(level, number))
        data = data if data is not None or width == 256 else files.read(tile_path(level, number, width))
        assert data is not None, (level, number, width)
        yield data
