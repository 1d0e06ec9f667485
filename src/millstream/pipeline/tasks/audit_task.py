"""Tasks of the job ``audit``: read the content of anchors from content-addressed storage, check it, resolve."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from millstream.anchoring import Cas, LedgerEntry, LocalCas
from millstream.anchoring.content import read_anchor
from millstream.anchoring.cut_manifest import encode_manifest
from millstream.anchoring.errors import BatchFormatError, CasError
from millstream.anchoring.ledger import check_seal
from millstream.anchoring.store_cas import open_store_cas
from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.stores.sources import local_folder

ENTRY_SCHEMA = pa.schema([pa.field("entry", pa.binary(), nullable=False)])
"""One row a ledger entry, as JSON."""

ANCHOR_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("log", pa.string(), nullable=False),
        pa.field("batch", pa.string(), nullable=False),
        pa.field("ids", pa.list_(pa.int64()), nullable=False),
        pa.field("rejects", pa.int64(), nullable=False),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("what", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One row a batch, by its ordinal in the anchor; and one an anchor, with the ordinal -1, its manifest as ``batch``, and
how many rejects, files and bytes it has. ``what`` is ``file`` where the storage is at fault, and ``format`` where the
anchor breaks a rule of readers; then there is nothing else."""

DID_SCHEMA = pa.schema(
    [
        pa.field("suffix", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
        pa.field("request", pa.binary(), nullable=False),
        pa.field("what", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One row an anchored operation on an identifier; one with ``what`` and no suffix is an anchor that cannot be read."""

STATE_SCHEMA = pa.schema(
    [
        pa.field("suffix", pa.string(), nullable=False),
        pa.field("operations", pa.int64(), nullable=False),
        pa.field("state", pa.string()),
    ]
)
"""One row an identifier: how many anchored operations it has, and the digest of what it resolves to (null: nothing)."""


def open_cas(url: str) -> Cas:
    """The content-addressed files at *url*: ``cas:///folder``, or the space ``cas`` of a storage provider."""
    folder = local_folder(url) if urlsplit(url).scheme == "cas" else None
    return open_store_cas(url) if folder is None else LocalCas(folder)


def read_part(parts: Iterable[pa.RecordBatch], cas: str) -> Iterator[pa.RecordBatch]:
    """The content of the ledger entries in *parts* (:data:`ANCHOR_SCHEMA`), read from *cas* and checked."""
    files = open_cas(cas)
    for entry in _entries(parts):
        yield pa.RecordBatch.from_pylist(_anchor_rows(files, entry), ANCHOR_SCHEMA)


def operations_part(parts: Iterable[pa.RecordBatch], cas: str, versions: Any) -> Iterator[pa.RecordBatch]:
    """The operations on identifiers that the ledger entries in *parts* stand for (:data:`DID_SCHEMA`)."""
    files = open_cas(cas)
    for entry in _entries(parts):
        yield pa.RecordBatch.from_pylist(_operation_rows(files, entry, versions), DID_SCHEMA)


def resolve_part(parts: Iterable[pa.RecordBatch], versions: Any) -> Iterator[pa.RecordBatch]:
    """The resolution of identifiers (:data:`STATE_SCHEMA`); the operations on one stand together in *parts*."""
    from millstream.anchoring.sidetree import AnchoredOperation, resolve
    from millstream.anchoring.sidetree.operations import stored_operation

    profile = versions.latest.profile
    rows = itertools.chain.from_iterable(part.to_pylist() for part in parts)
    for suffix, group in itertools.groupby(rows, itemgetter("suffix")):
        anchored = [
            AnchoredOperation(row["number"], row["place"], stored_operation(row["request"], suffix)) for row in group
        ]
        row = {"suffix": suffix, "operations": len(anchored), "state": state_digest(resolve(anchored, profile))}
        yield pa.RecordBatch.from_pylist([row], STATE_SCHEMA)


def state_digest(state: Any) -> str | None:
    """The SHA-256 (hex) of a state of an identifier as canonical JSON; None where there is none."""
    return None if state is None else hashlib.sha256(canonical_json(msgspec.to_builtins(state))).hexdigest()


def _entries(parts: Iterable[pa.RecordBatch]) -> Iterator[LedgerEntry]:
    for part in parts:
        for data in part.column("entry").to_pylist():
            yield check_seal(msgspec.json.decode(data, type=prepared(LedgerEntry)))


def _anchor_rows(cas: Cas, entry: LedgerEntry) -> list[dict[str, Any]]:
    row = dict.fromkeys(ANCHOR_SCHEMA.names) | {
        "number": entry.number,
        "ordinal": -1,
        "log": "",
        "batch": "",
        "ids": [],
    }
    row |= {"rejects": 0, "files": 0, "bytes": 0}
    try:
        content = read_anchor(cas, entry.anchor_string)
    except BatchFormatError as error:
        return [row | {"what": "format", "reason": str(error)}]
    except CasError as error:
        return [row | {"what": "file", "reason": str(error)}]
    sizes = [file.bytes for file in content.manifest.files] + [file.bytes for file in content.manifest.rejects.files]
    sizes.append(len(encode_manifest(content.manifest)))
    row["log"] = content.manifest.log
    whole = {
        "batch": content.manifest_cid,
        "rejects": len(content.rejects),
        "files": len(sizes),
        "bytes": sum(sizes),
    }
    batches = [
        row | {"ordinal": ordinal, "batch": batch, "ids": ids}
        for ordinal, (batch, ids) in enumerate(content.batches.members.each())
    ]
    return [row | whole, *batches]


def _operation_rows(cas: Cas, entry: LedgerEntry, versions: Any) -> list[dict[str, Any]]:
    from millstream.anchoring.sidetree import BatchFileError, read_batch
    from millstream.anchoring.sidetree.encoding import canonical

    row = {"suffix": "", "number": entry.number, "place": -1, "request": b"", "what": None, "reason": None}
    try:
        batch = read_batch(entry.anchor_string, cas.get, versions.at(entry.time).profile, time=entry.time)
    except BatchFileError as error:
        return [row | {"what": "format", "reason": str(error)}]
    except CasError as error:
        return [row | {"what": "file", "reason": str(error)}]
    found = [
        row | {"suffix": operation.suffix, "place": place, "request": canonical(operation.request)}
        for place, operation in enumerate(batch.operations)
    ]
    return found if batch.fault is None else [row | {"what": "format", "reason": batch.fault}, *found]
