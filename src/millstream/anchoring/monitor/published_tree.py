"""The published tree of a ledger (tlog-tiles), read over HTTP or from a folder. Nothing that is read is believed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from millstream.anchoring.errors import HttpError, LedgerUnavailableError, MerklePathError, PublishedFileError
from millstream.anchoring.http_reader import HttpReader, check_url, redacted_url
from millstream.anchoring.merkle import EMPTY_ROOT, verify_consistency
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.published_files import MAX_FILE_BYTES, FolderFiles
from millstream.anchoring.transparency.tiles import tile_path
from millstream.anchoring.transparency.tree import HASH_BYTES, TILE_HEIGHT, TILE_WIDTH, MerkleTree

_KEPT_TILES = 128
_ABSENT = frozenset({404, 410})


class ReadableFiles(Protocol):
    """Files of a ledger by their relative path; its text is their location, as it may be printed."""

    def read(self, path: str) -> bytes | None:
        """The bytes of the file, None where there is none. Raises :class:`LedgerUnavailableError`."""
        ...


class HttpFiles:
    """Files below *url*. Raises :class:`~millstream.anchoring.http_reader.UrlError` for another URL than of http(s)."""

    def __init__(self, url: str, reader: HttpReader | None = None) -> None:
        check_url(url)
        self._url = url.rstrip("/")
        self._reader = reader or HttpReader()

    def __str__(self) -> str:
        return redacted_url(self._url)

    def read(self, path: str) -> bytes | None:
        try:
            with self._reader.open(f"{self._url}/{path}") as answer:
                if answer.status in _ABSENT:
                    return None
                if answer.status != 200:
                    raise HttpError(f"{self}/{path}", f"the server answered with status {answer.status}")
                return answer.read(MAX_FILE_BYTES)
        except HttpError as error:
            raise LedgerUnavailableError(f"cannot read the ledger: {error}") from error


def open_published(text: str) -> ReadableFiles:
    """The published files at *text*: an ``http`` or ``https`` URL, or a folder."""
    return HttpFiles(text) if "://" in text else FolderFiles(Path(text), "")


class PublishedTree:
    """The tree that *checkpoint* signs, as far as *files* have its tiles and entries. Not thread-safe."""

    def __init__(self, files: ReadableFiles, checkpoint: Checkpoint) -> None:
        self._files = files
        self._head = checkpoint
        self._tree = MerkleTree(_PublishedTiles(files, checkpoint.size), checkpoint.size)

    def prefix_root(self, size: int) -> bytes:
        """The root (32 bytes) of the first *size* leaves, proven by tiles that lead to the root of the checkpoint.

        Raises :class:`PublishedFileError` where a tile is missing, or where the tiles do not lead there.
        """
        if size in (0, self._head.size):
            return self._head.root if size else EMPTY_ROOT
        try:
            root = self._tree.root(size)
            path = self._tree.consistency_path(size)
            verify_consistency(size, root, self._head.size, self._head.root, path)
        except MerklePathError as error:
            raise PublishedFileError(
                f"the tiles in {self._files} do not hash to the root of the checkpoint of {self._head.size:,} entries"
            ) from error
        return root

    def leaf(self, index: int) -> bytes:
        """The leaf hash at *index* (from 0), as a tile of the lowest level has it. Errors: see :meth:`prefix_root`."""
        return self._tree.leaf(index)

    def entries(self, number: int) -> Sequence[bytes]:
        """The entries of bundle *number*, as far as they are in the tree. They are not compared with it.

        Raises :class:`PublishedFileError` where the bundle is missing or damaged.
        """
        width = min(TILE_WIDTH, self._head.size - number * TILE_WIDTH)
        path, data = _read_wide(self._files, "entries", number, width)
        entries, at = list[bytes](), 0
        while at < len(data) and len(entries) < width:
            end = at + 2 + int.from_bytes(data[at : at + 2])
            entries.append(data[at + 2 : end])
            at = end
        if len(entries) < width or at > len(data):
            raise PublishedFileError(
                f"{path} in {self._files} has fewer than the {width} entries that the checkpoint covers"
            )
        return entries


class _PublishedTiles:
    """The tiles of a tree of *size* leaves; the last ones that were read are kept."""

    def __init__(self, files: ReadableFiles, size: int) -> None:
        self._files = files
        self._size = size
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def tile(self, level: int, number: int) -> bytes:
        if (level, number) not in self._kept:
            width = min(TILE_WIDTH, (self._size >> TILE_HEIGHT * level) - number * TILE_WIDTH)
            path, data = _read_wide(self._files, level, number, width)
            if len(data) < width * HASH_BYTES:
                raise PublishedFileError(
                    f"{path} in {self._files} has fewer than the {width} hashes that the checkpoint covers"
                )
            self._kept[level, number] = data[: width * HASH_BYTES]
            if len(self._kept) > _KEPT_TILES:
                self._kept.popitem(last=False)
        self._kept.move_to_end((level, number))
        return self._kept[level, number]


def _read_wide(files: ReadableFiles, level: int | str, number: int, width: int) -> tuple[str, bytes]:
    """Path and bytes of the tile or bundle with *width* members; a partial one may have been replaced by the full."""
    path = tile_path(level, number, width)
    data = files.read(path)
    if data is None and width < TILE_WIDTH:
        data = files.read(tile_path(level, number))
    if data is None:
        raise PublishedFileError(f"{path} is missing in {files}, but the checkpoint needs it")
    return path, data
