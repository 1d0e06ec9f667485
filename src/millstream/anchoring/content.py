"""The content of an anchor, read from content-addressed storage and checked against every rule of the format."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from millstream.anchoring.batch_files import RejectLine, message_ids, read_rejects, split_batches
from millstream.anchoring.cas import CasReader
from millstream.anchoring.cut_manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    BatchFile,
    CutManifest,
    RejectFile,
    decode_manifest,
    parse_anchor_string,
)
from millstream.anchoring.duplicate_check import BatchMembers
from millstream.anchoring.errors import BatchFormatError, CasTooLargeError
from millstream.anchoring.merkle import leaf_hash, merkle_root

_LEAF_BYTES = 32


class AnchoredBatches(msgspec.Struct, frozen=True, array_like=True):
    """Batches that were read, in the order of their files: ids, and of each its offset and size in its file in bytes
    and how many messages it has (little-endian uint32), and its leaf hash (32 bytes); ``messages`` are the ids of all
    their messages, batch by batch (uint64)."""

    names: list[str]
    offsets: bytes
    sizes: bytes
    counts: bytes
    leaves: bytes
    messages: bytes

    @classmethod
    def joined(cls, parts: Iterable[AnchoredBatches]) -> AnchoredBatches:
        """All of *parts*, one after the other."""
        names, *plain = zip(*map(msgspec.structs.astuple, parts), strict=True)
        return cls(list(itertools.chain.from_iterable(names)), *map(b"".join, plain))

    @property
    def members(self) -> BatchMembers:
        """The batches and their messages, to be checked against what is anchored."""
        return BatchMembers(self.names, np.frombuffer(self.messages, "<u8"), np.frombuffer(self.counts, "<u4"))

    @property
    def leaf_hashes(self) -> list[bytes]:
        """The leaf hash of each batch."""
        return [self.leaves[at : at + _LEAF_BYTES] for at in range(0, len(self.leaves), _LEAF_BYTES)]


class AnchorContent(msgspec.Struct, frozen=True):
    """Everything under one anchor, in the order of the files."""

    manifest_cid: str
    manifest: CutManifest
    batches: AnchoredBatches
    rejects: Sequence[RejectLine]


def read_manifest(cas: CasReader, anchor: str) -> tuple[str, CutManifest]:
    """The CID and the manifest that the anchor string *anchor* names.

    Raises :class:`BatchFormatError` where a rule is broken, other :class:`CasError` where the storage is at fault.
    """
    count, cid = parse_anchor_string(anchor)
    data = _get(cas, cid, MAX_MANIFEST_BYTES)
    with naming_file(cid):
        manifest = decode_manifest(data)
    if manifest.count != count:
        raise BatchFormatError(
            f"the anchor string {anchor[:100]!r} states {count:,} batches, but its manifest states {manifest.count:,}"
        )
    return cid, manifest


def read_anchor(cas: CasReader, anchor: str, read: Mapping[str, AnchoredBatches] = {}) -> AnchorContent:
    """All that the anchor string *anchor* stands for, with one file in memory at a time. Errors: `read_manifest`.

    *read* is what :func:`read_batches` gave of some files already, by their CIDs: these are not read again.
    """
    cid, manifest = read_manifest(cas, anchor)
    batches = AnchoredBatches.joined(read.get(file.uri) or read_batches(cas, file) for file in manifest.files)
    if merkle_root(batches.leaf_hashes).hex() != manifest.root:
        raise BatchFormatError(f"the batches do not match the Merkle root in the manifest {cid}")
    rejects = [reject for rejected in manifest.rejects.files for reject in _read_rejects(cas, rejected)]
    if any(left.rejected >= right.rejected for left, right in itertools.pairwise(rejects)):
        raise BatchFormatError(f"the rejected messages of the manifest {cid} are not in ascending order of their ids")
    return AnchorContent(cid, manifest, batches, rejects)


@contextlib.contextmanager
def naming_file(cid: str) -> Iterator[None]:
    """Prefix each :class:`BatchFormatError` with the name *cid* of the file that is read."""
    try:
        yield
    except BatchFormatError as error:
        raise BatchFormatError(f"file {cid}: {error}") from error


def read_file(cas: CasReader, file: BatchFile | RejectFile) -> bytes:
    """The bytes of *file*, whose number must match the manifest. Errors: see :func:`read_manifest`."""
    data = _get(cas, file.uri, MAX_FILE_BYTES)
    if len(data) != file.bytes:
        raise BatchFormatError(f"file {file.uri} has {len(data):,} bytes, but its manifest states {file.bytes:,} bytes")
    return data


def _get(cas: CasReader, cid: str, limit: int) -> bytes:
    try:
        return cas.get(cid, limit)
    except CasTooLargeError as error:  # whole, and yet too large: that is the anchor's fault, not the storage's
        raise BatchFormatError(str(error)) from error


def read_batches(cas: CasReader, file: BatchFile) -> AnchoredBatches:
    """The batches of *file*, after a check of every line, root and figure. Errors: see :func:`read_manifest`."""
    names, places, leaves, messages = list[str](), list[tuple[int, int, int]](), list[bytes](), list[int]()
    data = read_file(cas, file)
    with naming_file(file.uri):
        for stored in split_batches(data):
            messages += message_ids(stored)
            names.append(stored.header.batch)
            places.append((stored.offset, stored.size, stored.header.count))
            leaves.append(leaf_hash(stored.header_line))
    if (len(names), len(messages)) != (file.batches, file.messages):
        raise BatchFormatError(
            f"file {file.uri} contains {len(names):,} batches and {len(messages):,} messages, but its manifest "
            f"states {file.batches:,} batches and {file.messages:,} messages"
        )
    offsets, sizes, counts = (np.array(column, "<u4").tobytes() for column in zip(*places, strict=True))
    return AnchoredBatches(names, offsets, sizes, counts, b"".join(leaves), np.array(messages, "<u8").tobytes())


def _read_rejects(cas: CasReader, file: RejectFile) -> Sequence[RejectLine]:
    data = read_file(cas, file)
    with naming_file(file.uri):
        rejects = list(read_rejects(data))
    if len(rejects) != file.count:
        found = f"{len(rejects):,} rejected messages"
        raise BatchFormatError(f"file {file.uri} contains {found}, but its manifest states {file.count:,}")
    return rejects
