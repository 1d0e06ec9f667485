"""The manifest of a cut: the file that an anchor names, and that names all other files (docs/formats/records.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.anchoring.batch_records import PROTOCOL
from millstream.anchoring.errors import BatchFormatError
from millstream.core.canonical import CanonicalError, canonical_json, parse_canonical
from millstream.core.cid import is_cid, is_raw_cid
from millstream.core.decoding import prepared

MAX_BATCHES = 10_000
"""The most batches an anchor may count (Sidetree v1.0, MAX_OPERATION_COUNT)."""

MAX_FILE_BYTES = 4_000_000
"""The most bytes of a batch file or reject file."""

MAX_CONTENT_BYTES = 64 * MAX_FILE_BYTES
"""The most bytes of all batch files of an anchor together; it bounds what a reader holds in memory."""

MAX_REJECTS = 1_000_000
"""The most rejects of an anchor."""

MAX_MANIFEST_BYTES = 1_000_000
"""The most bytes of a manifest (Sidetree v1.0, MAX_CORE_INDEX_FILE_SIZE)."""

_ANCHOR_STRING = re.compile(r"([1-9][0-9]{0,4})\.([A-Za-z0-9]{1,100})")
_ROOT = re.compile(r"[0-9a-f]{64}")


class BatchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch file of a manifest: its number of batches and messages, its size, and its CID."""

    batches: int
    bytes: int
    messages: int
    uri: str


class RejectFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reject file of a manifest: its size, its number of rejects, and its CID."""

    bytes: int
    count: int
    uri: str


class RejectList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rejects of a manifest."""

    count: int = 0
    files: tuple[RejectFile, ...] = ()


class CutManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an anchor: ``count`` batches with ``messages`` messages of ``log``, under one Merkle ``root``."""

    config: dict[str, Any]
    count: int
    files: tuple[BatchFile, ...]
    log: str
    messages: int
    protocol: str
    rejects: RejectList
    root: str

    @property
    def uris(self) -> Sequence[str]:
        """The CIDs of all files that the manifest names, in order."""
        return [file.uri for file in self.files] + [file.uri for file in self.rejects.files]


def anchor_string(count: int, manifest_cid: str) -> str:
    """The anchor string of a ledger entry: ``<count>.<CID of the manifest>``."""
    return f"{count}.{manifest_cid}"


def parse_anchor_string(text: str) -> tuple[int, str]:
    """The count and the manifest's CID. Raises :class:`BatchFormatError` (Sidetree v1.0, "Anchor string")."""
    match = _ANCHOR_STRING.fullmatch(text)
    if match is None or int(match[1]) > MAX_BATCHES or not is_cid(match[2]):
        raise BatchFormatError(
            f"invalid anchor string {text[:100]!r}: expected <number of batches, 1 to {MAX_BATCHES:,}>.<CID of the "
            "manifest>"
        )
    return int(match[1]), match[2]


def encode_manifest(manifest: CutManifest) -> bytes:
    """The canonical bytes of *manifest*. Raises :class:`BatchFormatError` if it breaks a rule of the format."""
    _check(manifest)
    data = canonical_json(msgspec.to_builtins(manifest))
    if len(data) > MAX_MANIFEST_BYTES:
        raise BatchFormatError(f"the manifest has {len(data):,} bytes; the limit is {MAX_MANIFEST_BYTES:,} bytes")
    return data


def decode_manifest(data: bytes) -> CutManifest:
    """The manifest in *data*. Raises :class:`BatchFormatError` that says which rule is broken."""
    try:
        manifest = msgspec.convert(parse_canonical(data), prepared(CutManifest))
    except (CanonicalError, msgspec.ValidationError) as error:
        raise BatchFormatError(f"invalid manifest: {error}") from error
    _check(manifest)
    return manifest


def _check(manifest: CutManifest) -> None:
    """Raise where the manifest contradicts itself or goes beyond a limit."""
    files, rejects = manifest.files, manifest.rejects
    sizes = [file.bytes for file in files] + [file.bytes for file in rejects.files]
    members = [file.batches for file in files] + [file.count for file in rejects.files]
    rules = {
        f"unknown protocol {manifest.protocol[:40]!r}, expected {PROTOCOL!r}": manifest.protocol == PROTOCOL,
        f"'count' is {manifest.count}, not 1 to {MAX_BATCHES:,}": 1 <= manifest.count <= MAX_BATCHES,
        "'count' is not the sum of the batches of its files": sum(file.batches for file in files) == manifest.count,
        "'messages' is not the sum of those of its files": sum(file.messages for file in files) == manifest.messages,
        "'count' of 'rejects' is not the sum of those of its files": sum(f.count for f in rejects.files)
        == rejects.count,
        "one of its files has no batch and no reject": min(members, default=0) >= 1,
        f"one of its files does not have 1 to {MAX_FILE_BYTES:,} bytes": all(1 <= s <= MAX_FILE_BYTES for s in sizes),
        f"its batch files have more than {MAX_CONTENT_BYTES:,} bytes": sum(f.bytes for f in files) <= MAX_CONTENT_BYTES,
        f"it has more than {MAX_REJECTS:,} rejects": rejects.count <= MAX_REJECTS,
        "a 'uri' is not a CID of a raw file": all(map(is_raw_cid, manifest.uris)),
        "'root' is not 64 lower-case hexadecimal digits": _ROOT.fullmatch(manifest.root) is not None,
    }
    for broken, holds in rules.items():
        if not holds:
            raise BatchFormatError(f"invalid manifest: {broken}")
