"""What the format documents say is what the readers do, also with bytes that nobody ever wrote on purpose."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring import MemoryCas
from millstream.anchoring.batch_files import (
    BatchFilePart,
    message_ids,
    pack_batches,
    pack_rejects,
    read_rejects,
    split_batches,
)
from millstream.anchoring.batch_records import PROTOCOL
from millstream.anchoring.content import read_anchor
from millstream.anchoring.cut_manifest import (
    BatchFile,
    CutManifest,
    RejectList,
    anchor_string,
    decode_manifest,
    encode_manifest,
)
from millstream.anchoring.errors import BatchFormatError, LedgerError, ProofError
from millstream.anchoring.ledger import decode_entry
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.proof import decode_proof
from millstream.core.cid import cid_of
from millstream.testing.batches import make_batches
from support.altered import altered

DOCS = Path(__file__).parents[2] / "docs" / "formats"
BATCHES = list(make_batches(6))
PARTS = [BatchFilePart(batch.header_line, batch.lines, batch.header.count) for batch in BATCHES]
(FILE,) = pack_batches(PARTS)
MANIFEST = CutManifest(
    config={"window": 1800},
    count=6,
    files=(BatchFile(6, len(FILE.data), FILE.messages, cid_of(FILE.data)),),
    log="weather",
    messages=FILE.messages,
    protocol=PROTOCOL,
    rejects=RejectList(),
    root=merkle_root([leaf_hash(batch.header_line) for batch in BATCHES]).hex(),
)


@given(altered(st.just(FILE.data)))
def test_a_batch_file_with_any_bytes_is_read_or_refused_with_a_reason(data: bytes) -> None:
    try:
        stored = list(split_batches(data))
        ids = [message_ids(batch) for batch in stored]
    except BatchFormatError as error:
        assert str(error)
    else:
        assert sum(batch.size for batch in stored) == len(data)
        assert [len(own) for own in ids] == [batch.header.count for batch in stored]


@given(altered(st.just(encode_manifest(MANIFEST))))
def test_a_manifest_with_any_bytes_is_read_back_exactly_or_refused(data: bytes) -> None:
    try:
        manifest = decode_manifest(data)
    except BatchFormatError as error:
        assert str(error)
    else:
        assert encode_manifest(manifest) == data


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_bytes_that_are_nothing_are_refused_everywhere(data: bytes) -> None:
    for read, error in (
        (lambda: list(split_batches(data)), BatchFormatError),
        (lambda: list(read_rejects(data)), BatchFormatError),
        (lambda: decode_manifest(data), BatchFormatError),
        (lambda: decode_entry(data), LedgerError),
        (lambda: decode_proof(data), ProofError),
    ):
        with pytest.raises(error):
            read()


@given(st.integers(600, 4000))
def test_files_hold_whole_batches_in_order_below_the_limit(limit: int) -> None:
    limit = max(limit, *(part.size for part in PARTS))
    files = list(pack_batches(PARTS, limit))
    assert b"".join(file.data for file in files) == FILE.data
    assert all(len(file.data) <= limit for file in files)
    assert [file.entries for file in files] == [len(list(split_batches(file.data))) for file in files]
    again = max(len(file.data) for file in files)
    assert list(pack_batches(PARTS, again)) == files


@given(st.dictionaries(st.integers(1, 2**53 - 1), st.sampled_from(["late", "future", "duplicate"]), min_size=1))
def test_rejects_are_read_back_as_they_were_packed(rejects: dict[int, str]) -> None:
    files = list(pack_rejects(sorted(rejects.items()), limit=200))
    assert all(len(file.data) <= 200 for file in files)
    found = [(line.rejected, line.reason) for file in files for line in read_rejects(file.data)]
    assert found == sorted(rejects.items())


def test_an_anchor_can_be_checked_with_nothing_but_a_hash_function_and_json() -> None:
    """The format document, followed step by step, without any of our own readers."""
    cas = MemoryCas()
    cas.put(FILE.data)
    cid = cas.put(encode_manifest(MANIFEST))
    assert len(read_anchor(cas, anchor_string(6, cid)).batches.names) == 6
    manifest = json.loads(cas.get(cid, 10**6))
    lines = cas.get(manifest["files"][0]["uri"], 10**7).decode().split("\n")
    assert lines.pop() == ""
    leaves = []
    while lines:
        header = json.loads(lines[0])
        own, line = lines[1 : 1 + header["count"]], lines[0]
        assert _root([hashlib.sha256(b"\0" + text.encode()).digest() for text in own]).hex() == header["root"]
        leaves.append(hashlib.sha256(b"\0" + line.encode()).digest())
        lines = lines[1 + header["count"] :]
    assert _root(leaves).hex() == manifest["root"]


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + _root(leaves[:k]) + _root(leaves[k:])).digest()


def test_the_documents_name_every_member() -> None:
    records, proof = (DOCS / "records.md").read_text(), (DOCS / "proof.md").read_text()
    for name in (*CutManifest.__struct_fields__, *BATCHES[0].header.__struct_fields__):
        assert f"`{name}`" in records
    from millstream.anchoring.proof import ChainProof, Replica, StampedProof
    from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp, TimestampRenewal

    for name in (*StampedProof.__struct_fields__, *ChainProof.__struct_fields__):
        assert re.search(rf"`{name}`", proof), name
    timestamp = (DOCS / "timestamp.md").read_text()
    for name in (*EntryTimestamp.__struct_fields__, *TimestampRenewal.__struct_fields__):
        assert f"`{name}`" in timestamp, name
    for name in Replica.__struct_fields__:
        assert f'"{name}"' in proof
