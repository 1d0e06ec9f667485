"""From batches and rejects to the files of a cut, twice with the same result: once to name them, once to write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from millstream.anchoring.batch_files import BatchFilePart, pack_batches, pack_rejects
from millstream.anchoring.batch_records import PROTOCOL
from millstream.anchoring.cut_manifest import BatchFile, CutManifest, RejectFile, RejectList
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.states import BatchStream
from millstream.core.cid import cid_of


def build_manifest(
    stream: BatchStream, parts: Iterable[BatchFilePart], rejects: Sequence[tuple[int, str]], limit: int
) -> CutManifest:
    """The manifest of *parts* and *rejects* (message id, reason), in files of at most *limit* bytes.

    One file is in memory at a time; none is kept.
    """
    leaves = list[bytes]()
    files = tuple(
        BatchFile(file.entries, len(file.data), file.messages, cid_of(file.data))
        for file in pack_batches(_noting_leaves(parts, leaves), limit)
    )
    return build_manifest_over_files(stream, files, leaves, rejects, limit)


def build_manifest_over_files(
    stream: BatchStream,
    files: tuple[BatchFile, ...],
    leaves: Sequence[bytes],
    rejects: Sequence[tuple[int, str]],
    limit: int,
) -> CutManifest:
    """The manifest of *files*, which hold batches of these *leaves*, and of *rejects* as in :func:`build_manifest`."""
    reject_files = [
        RejectFile(len(file.data), file.entries, cid_of(file.data)) for file in pack_rejects(rejects, limit)
    ]
    return CutManifest(
        config=msgspec.json.decode(stream.config),
        count=len(leaves),
        files=files,
        log=stream.log,
        messages=sum(file.messages for file in files),
        protocol=PROTOCOL,
        rejects=RejectList(len(rejects), tuple(reject_files)),
        root=merkle_root(leaves).hex(),
    )


def build_files(
    manifest: CutManifest, parts: Iterable[BatchFilePart], rejects: Sequence[tuple[int, str]]
) -> Iterator[bytes]:
    """The files that *manifest* names, in its order, from the same parts and rejects.

    The largest file stands in for the limit that was in force when the manifest was made: packing is greedy, so it
    gives the same files.
    """
    limit = max(file.bytes for file in manifest.files)
    reject_limit = max((file.bytes for file in manifest.rejects.files), default=0)
    for file in itertools.chain(pack_batches(parts, limit), pack_rejects(rejects, reject_limit)):
        yield file.data


def _noting_leaves(parts: Iterable[BatchFilePart], leaves: list[bytes]) -> Iterator[BatchFilePart]:
    for part in parts:
        leaves.append(leaf_hash(part.header_line))
        yield part
