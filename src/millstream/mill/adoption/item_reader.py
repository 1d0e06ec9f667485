"""Reading one item of a source so that it is certain which version the bytes belong to."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import BinaryIO, NamedTuple, cast

from millstream.core.errors import NotFoundError
from millstream.mill.adoption.catalog import FindingKind
from millstream.mill.adoption.sources import SourceEntry, SourceItem, item_of
from millstream.stores.folder.properties import MTIME, format_time
from millstream.stores.hashing import Digests, hash_stream
from millstream.stores.protocol import Store, StoreError
from millstream.stores.provider_schemes import provider_scheme

ATTEMPTS = 2
"""How often an item is read that changes meanwhile, or whose bytes are not what they were."""

CRC32 = "crc32"


class ReadResult(NamedTuple):
    """The result of reading an item: the item with its checksums, or the reason why it could not be read. Both are None
    if it vanished."""

    item: SourceItem | None = None
    digests: Digests | None = None
    problem: tuple[FindingKind, str] | None = None


class ItemReader:
    """Reads items of *space* of *source*. Thread-safe."""

    def __init__(self, source: Store, space: str) -> None:
        self._source, self._space = source, space
        self._algorithms = provider_scheme(source.url).recorded_checksums

    def read(self, entry: SourceEntry, algorithms: Collection[str] = (), expected: str | None = None) -> ReadResult:
        """The item under the id of *entry*, with its SHA-256 and checksums by *algorithms*.

        It is read again where it changed since it was listed, or where it hashes to anything but *expected*.
        """
        result = ReadResult()
        listed = (entry.size, entry.version)
        for _ in range(ATTEMPTS):
            result = self._read_once(entry.content_id, listed, algorithms)
            if result.item is None:
                return result
            if result.digests is not None and expected in (None, result.digests.sha256):
                return result
            listed = (result.item.size, result.item.version)
        return result

    def _read_once(self, content_id: str, listed: tuple[int, str], algorithms: Collection[str]) -> ReadResult:
        """The result of reading, without checksums if it is not the *listed* version."""
        wanted = ["sha256", *sorted({*algorithms, *self._algorithms} - {"sha256"})]
        try:
            with self._source.open(self._space, content_id) as file:
                digests = _hash(file, wanted)
            item = item_of(self._source, self._space, content_id)
        except NotFoundError:
            return ReadResult()
        except (StoreError, OSError) as error:
            return ReadResult(problem=(FindingKind.UNREADABLE, str(error)))
        if item is None:
            return ReadResult()
        if (item.size, item.version) != listed or digests.size != item.size:
            return ReadResult(
                item, None, (FindingKind.UNSTABLE, "another program writes to it: the next run tries it again")
            )
        return ReadResult(item, digests)


def plain_file(entry: SourceEntry, sha256: str) -> ReadResult:
    """The result of reading the plain file of a folder that is listed as *entry*."""
    item = SourceItem(entry.size, entry.version, properties={MTIME: format_time(int(entry.version))})
    return ReadResult(item, Digests(entry.size, {"sha256": sha256}))


def _hash(file: BinaryIO, algorithms: Collection[str]) -> Digests:
    """The checksums of all bytes of *file*; beside those of :mod:`hashlib` there is CRC-32."""
    if CRC32 not in algorithms:
        return hash_stream(file, algorithms)
    reader = _Crc32Reader(file)
    digests = hash_stream(cast(BinaryIO, reader), [name for name in algorithms if name != CRC32])
    return Digests(digests.size, {**digests.sums, CRC32: f"{reader.crc32:08x}"})


class _Crc32Reader:
    """Reads *file* and knows the CRC-32 of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.crc32 = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.crc32 = zlib.crc32(data, self.crc32)
        return data
