"""What an anchor stands for, read from content-addressed storage and checked against every rule of the format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.cut_manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    BatchFile,
    CutManifest,
    RejectFile,
    decode_manifest,
    parse_anchor_string,
)
from millstream.anchoring.errors import BatchFormatError, CasTooLargeError
from millstream.anchoring.files import RejectLine, message_ids, read_rejects, split_batches
from millstream.anchoring.merkle import leaf_hash, merkle_root


class AnchoredBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that was read: its id, the file it lies in (CID, offset and size in bytes), leaf hash and message ids."""

    batch: str
    uri: str
    offset: int
    size: int
    leaf: bytes
    ids: Sequence[int]


class AnchorContent(msgspec.Struct, frozen=True):
    """Everything under one anchor, in the order of the files."""

    manifest_cid: str
    manifest: CutManifest
    batches: Sequence[AnchoredBatch]
    rejects: Sequence[RejectLine]


def read_manifest(cas: Cas, anchor: str) -> tuple[str, CutManifest]:
    """The CID and the manifest that the anchor string *anchor* names.

    Raises :class:`BatchFormatError` where a rule is broken, other :class:`CasError` where the storage is at fault.
    """
    count, cid = parse_anchor_string(anchor)
    manifest = decode_manifest(_get(cas, cid, MAX_MANIFEST_BYTES))
    if manifest.count != count:
        raise BatchFormatError(f"the anchor counts {count} batches, but its manifest counts {manifest.count}")
    return cid, manifest


def read_anchor(cas: Cas, anchor: str, read: Mapping[str, Sequence[AnchoredBatch]] = {}) -> AnchorContent:
    """All that the anchor string *anchor* stands for, with one file in memory at a time. Errors: `read_manifest`.

    *read* is what :func:`read_batches` gave of some files already, by their CIDs: these are not read again.
    """
    cid, manifest = read_manifest(cas, anchor)
    batches = [batch for file in manifest.files for batch in read.get(file.uri) or read_batches(cas, file)]
    if merkle_root([batch.leaf for batch in batches]).hex() != manifest.root:
        raise BatchFormatError("the batches do not match the manifest's Merkle root")
    rejects = [reject for rejected in manifest.rejects.files for reject in _read_rejects(cas, rejected)]
    if any(left.rejected >= right.rejected for left, right in itertools.pairwise(rejects)):
        raise BatchFormatError("the rejects are not in ascending order of id")
    return AnchorContent(cid, manifest, batches, rejects)


def read_file(cas: Cas, file: BatchFile | RejectFile) -> bytes:
    """The bytes of *file*, which must be as many as the manifest says. Errors: see :func:`read_manifest`."""
    data = _get(cas, file.uri, MAX_FILE_BYTES)
    if len(data) != file.bytes:
        raise BatchFormatError(f"file {file.uri} has {len(data):,} bytes, but its manifest states {file.bytes:,}")
    return data


def _get(cas: Cas, cid: str, limit: int) -> bytes:
    try:
        return cas.get(cid, limit)
    except CasTooLargeError as error:  # whole, and yet too large: that is the anchor's fault, not the storage's
        raise BatchFormatError(str(error)) from error


def read_batches(cas: Cas, file: BatchFile) -> Iterator[AnchoredBatch]:
    """The batches of *file*, after a check of every line, root and figure. Errors: see :func:`read_manifest`."""
    batches = messages = 0
    for stored in split_batches(read_file(cas, file)):
        ids = message_ids(stored)
        batches, messages = batches + 1, messages + len(ids)
        yield AnchoredBatch(
            stored.header.batch, file.uri, stored.offset, stored.size, leaf_hash(stored.header_line), ids
        )
    if (batches, messages) != (file.batches, file.messages):
        raise BatchFormatError(
            f"file {file.uri} contains {batches} batches and {messages} messages, but its manifest "
            f"states {file.batches} and {file.messages}"
        )


def _read_rejects(cas: Cas, file: RejectFile) -> Sequence[RejectLine]:
    rejects = list(read_rejects(read_file(cas, file)))
    if len(rejects) != file.count:
        raise BatchFormatError(f"file {file.uri} contains {len(rejects)} rejects, but its manifest states {file.count}")
    return rejects
