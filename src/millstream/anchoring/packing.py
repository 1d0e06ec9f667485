"""A cut that is packed before the batch writer sees it: by tasks that work side by side on what was encoded before.

Such a cut has the files, and so the anchor, that the batch writer would have made of the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.anchoring.batch_files import BatchFilePart, PackedFile, check_size, pack_batches
from millstream.anchoring.batch_records import BatchHeader, EncodedBatch
from millstream.anchoring.cas import Cas
from millstream.anchoring.content import AnchoredBatches, read_batches
from millstream.anchoring.cut_manifest import BatchFile
from millstream.anchoring.duplicate_check import BatchMembers
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.merkle import leaf_hash

_ROOT_BYTES = 32


class PackedMembers(msgspec.Struct, frozen=True, array_like=True):
    """The batches of a packed cut in order: names, sources and reasons of their ends by number, and of each batch the
    numbers (little-endian uint32), times (int64), bytes in a file (uint32) and Merkle root."""

    names: list[str]
    sources: list[str]
    ends: list[str]
    source_of: bytes
    end_of: bytes
    start: bytes
    end: bytes
    size: bytes
    root: bytes

    @classmethod
    def of(cls, headers: Sequence[BatchHeader], size: bytes) -> PackedMembers:
        """The members with *headers*, and the bytes of each in a file."""
        sources, source_of = _numbered([header.source for header in headers])
        ends, end_of = _numbered([header.cut for header in headers])
        return cls(
            [header.batch for header in headers],
            sources,
            ends,
            source_of,
            end_of,
            np.array([header.start for header in headers], "<i8").tobytes(),
            np.array([header.end for header in headers], "<i8").tobytes(),
            size,
            bytes.fromhex("".join(header.root for header in headers)),
        )

    def root_of(self, place: int) -> str:
        """The Merkle root (hex) of the batch at *place* from 0 on."""
        return self.root[place * _ROOT_BYTES : (place + 1) * _ROOT_BYTES].hex()

    def starts(self) -> npt.NDArray[np.int64]:
        """The start time of each batch, in microseconds."""
        return np.frombuffer(self.start, "<i8")

    def end_numbers(self) -> npt.NDArray[np.uint32]:
        """Why each batch ended, as a number in ``ends``."""
        return np.frombuffer(self.end_of, "<u4")

    def row(self, place: int) -> dict[str, Any]:
        """The batch at *place* from 0 on, as columns of ``anchor_batches``."""
        return {
            "batch": self.names[place],
            "source": self.sources[int(np.frombuffer(self.source_of, "<u4")[place])],
            "start": int(self.starts()[place]),
            "size": int(np.frombuffer(self.size, "<u4")[place]),
            "root": self.root_of(place),
            "end": int(np.frombuffer(self.end, "<i8")[place]),
            "ended": self.ends[int(self.end_numbers()[place])],
        }


class PackedCut(msgspec.Struct, frozen=True, array_like=True):
    """The batches of a cut in the order of a manifest, and the ``files`` that hold them, which lie in storage durably.

    Every file was ``read`` back from there after it was written, and checked as readers do. ``members`` are what the
    journal keeps of the batches, and ``line_bytes`` the bytes of all message lines.
    """

    files: tuple[BatchFile, ...]
    members: PackedMembers
    read: tuple[AnchoredBatches, ...]
    line_bytes: int

    @property
    def batches(self) -> AnchoredBatches:
        """All batches, as they were read."""
        return AnchoredBatches.joined(self.read)

    @property
    def content(self) -> Mapping[str, AnchoredBatches]:
        """The content of each file, by its CID."""
        return {file.uri: read for file, read in zip(self.files, self.read, strict=True)}


def pack_cut(cas: Cas, batches: Sequence[EncodedBatch], limit: int) -> PackedCut:
    """Write *batches*, in the order of a manifest, to *cas* in files of at most *limit* bytes, and read them back.

    To do it again changes nothing. Raises :class:`BatchFormatError` for a batch that fits in no file, and where a file
    does not hold what was written; :class:`CasError`.
    """
    parts = [BatchFilePart(batch.header_line, batch.lines, len(batch.ids)) for batch in batches]
    for part in parts:
        check_size(part.size, limit)
    files = _write(cas, pack_batches(parts, limit))
    read = tuple(read_batches(cas, file) for file in files)
    found, written = AnchoredBatches.joined(read), BatchMembers.of([], [batch.ids for batch in batches])
    leaves = b"".join(leaf_hash(part.header_line) for part in parts)
    wanted = leaves, written.counts.tobytes(), written.ids.tobytes()
    if (found.leaves, found.counts, found.messages) != wanted:
        raise BatchFormatError(
            "internal error: a batch file does not contain the batches that were written to it; please report this"
        )
    members = PackedMembers.of([batch.header for batch in batches], found.sizes)
    return PackedCut(files, members, read, sum(len(part.lines) for part in parts))


def _write(cas: Cas, packed: Iterable[PackedFile]) -> tuple[BatchFile, ...]:
    """*packed* as a manifest lists them, in storage; some files are in memory at a time."""
    counts = list[tuple[int, int, int]]()

    def noted() -> Iterator[bytes]:
        for file in packed:
            counts.append((file.entries, len(file.data), file.messages))
            yield file.data

    cids = cas.put_many(noted())
    return tuple(BatchFile(*count, uri) for count, uri in zip(counts, cids, strict=True))


def _numbered(values: Sequence[str]) -> tuple[list[str], bytes]:
    """The different *values*, and the number of each of them among those."""
    encoded = pa.array(values, pa.string()).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype("<u4").tobytes()
