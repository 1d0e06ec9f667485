"""A cut that is packed before the batch writer sees it: by tasks that work side by side on what was encoded before.

Such a cut has the files, and so the anchor, that the batch writer would have made of the same batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.content import AnchoredBatch, read_batches
from millstream.anchoring.cut_manifest import BatchFile
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.files import BatchFilePart, PackedFile, check_size, pack_batches
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.records import BatchHeader, EncodedBatch


class PackedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the journal keeps of a batch, and what its file was found to hold of it when it was ``read`` back."""

    source: str
    start: int
    end: int
    ended: str
    root: str
    read: AnchoredBatch


class PackedCut(msgspec.Struct, frozen=True, array_like=True):
    """The batches of a cut in the order of a manifest, and the ``files`` that hold them, which lie in storage durably.

    Every file was read back from there after it was written, and checked as readers do. ``line_bytes`` are the bytes
    of all message lines.
    """

    files: tuple[BatchFile, ...]
    batches: tuple[PackedBatch, ...]
    line_bytes: int

    @property
    def content(self) -> Mapping[str, Sequence[AnchoredBatch]]:
        """What each of the files holds, by its CID."""
        rest = iter(self.batches)
        return {file.uri: [batch.read for batch in itertools.islice(rest, file.batches)] for file in self.files}


def pack_cut(cas: Cas, batches: Sequence[EncodedBatch], limit: int) -> PackedCut:
    """Write *batches*, in the order of a manifest, to *cas* in files of at most *limit* bytes, and read them back.

    To do it again changes nothing. Raises :class:`BatchFormatError` for a batch that fits in no file, and where a file
    does not hold what was written; :class:`CasError`.
    """
    parts = [BatchFilePart(batch.header_line, batch.lines, len(batch.ids)) for batch in batches]
    for part in parts:
        check_size(part.size, limit)
    files = _write(cas, pack_batches(parts, limit))
    found = list(itertools.chain.from_iterable(read_batches(cas, file) for file in files))
    wanted = [(leaf_hash(part.header_line), tuple(batch.ids)) for part, batch in zip(parts, batches, strict=True)]
    if [(read.leaf, tuple(read.ids)) for read in found] != wanted:
        raise BatchFormatError("a batch file does not contain the batches written to it: please report this")
    packed = tuple(_packed(batch.header, read) for batch, read in zip(batches, found, strict=True))
    return PackedCut(files, packed, sum(len(part.lines) for part in parts))


def _write(cas: Cas, packed: Iterable[PackedFile]) -> tuple[BatchFile, ...]:
    """*packed* as a manifest lists them, in storage; some files are in memory at a time."""
    counts = list[tuple[int, int, int]]()

    def noted() -> Iterator[bytes]:
        for file in packed:
            counts.append((file.entries, len(file.data), file.messages))
            yield file.data

    cids = cas.put_many(noted())
    return tuple(BatchFile(*count, uri) for count, uri in zip(counts, cids, strict=True))


def _packed(header: BatchHeader, read: AnchoredBatch) -> PackedBatch:
    return PackedBatch(header.source, header.start, header.end, header.cut, header.root, read)
