"""The five files: written with their limits, read by every rule of a reader."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring import MemoryCas
from millstream.anchoring.errors import CasNotFoundError
from millstream.anchoring.sidetree import (
    ORB,
    SIDETREE,
    BatchFileError,
    BatchTooLargeError,
    Operation,
    OperationBatch,
    OperationType,
    Profile,
    WrittenBatch,
    one_per_suffix,
    read_batch,
    read_written,
    write_batch,
)
from millstream.anchoring.sidetree.batch_files import parse_anchor
from millstream.core.cid import cid_of
from millstream.testing.dids import DidOwner

Json = dict[str, Any]
Change = Callable[[Json], object]

STRICT = msgspec.structs.replace(SIDETREE, name="strict", reference=False)
"""The same rules, judged by the reader of networks that do not follow the reference implementation to the letter."""


def mixed_batch() -> list[Operation]:
    people = [DidOwner(f"p{n}") for n in range(6)]
    changes = [people[2].recover(), people[3].deactivate(), people[4].update(), people[5].update()]
    return [people[0].create, changes[2], changes[1], people[1].create, changes[0], changes[3]]


class Files:
    """A written batch whose files can be changed before it is read again."""

    def __init__(self, written: WrittenBatch, profile: Profile = SIDETREE) -> None:
        self.profile = profile
        self.anchor = written.anchor
        self.data = {file.kind.removesuffix(" file"): file.data for file in written.files}

    def change(self, kind: str, change: Change) -> Files:
        """Change the content of one file, and the URIs of all that name it."""
        content = json.loads(gzip.decompress(self.data[kind]))
        change(content)
        return self.replace(kind, gzip.compress(json.dumps(content).encode()))

    def replace(self, kind: str, data: bytes) -> Files:
        old, self.data[kind] = cid_of(self.data[kind]), data
        new = cid_of(data)
        if kind == "core index":
            self.anchor = self.anchor.replace(old, new)
            return self
        owner = {"core proof": "core index", "provisional index": "core index"}.get(kind, "provisional index")
        text = gzip.decompress(self.data[owner]).decode().replace(old, new)
        return self.replace(owner, gzip.compress(text.encode()))

    def read(self) -> OperationBatch:
        files = {cid_of(data): data for data in self.data.values()}
        return read_batch(self.anchor, lambda uri, limit: files[uri], self.profile)


def files_of(operations: list[Operation], profile: Profile = SIDETREE) -> Files:
    return Files(write_batch(operations, profile), profile)


@pytest.fixture(params=[SIDETREE, STRICT], ids=lambda profile: profile.name)
def files(request: pytest.FixtureRequest) -> Files:
    return files_of(mixed_batch(), request.param)


def repeat(items: list[Any]) -> None:
    items.append(items[0])


def provisional_fault(files: Files) -> str:
    """The reason why only the core operations were kept, without their deltas."""
    batch = files.read()
    assert batch.fault is not None
    kinds = {operation.type for operation in batch.operations}
    passed_over = {OperationType.CREATE, OperationType.UPDATE} if files.profile.reference else {OperationType.UPDATE}
    assert kinds == set(OperationType) - passed_over
    assert all(operation.delta is None for operation in batch.operations)
    return batch.fault


@pytest.mark.parametrize("profile", [SIDETREE, ORB], ids=lambda p: p.name)
def test_what_was_written_is_read_back_in_anchored_order(profile: Profile) -> None:
    written = write_batch(mixed_batch(), profile)
    batch = Files(written, profile).read()
    assert batch == OperationBatch(6, written.operations)
    assert [o.type.value for o in batch.operations] == ["create", "create", "recover", "deactivate", "update", "update"]


def test_the_same_operations_give_the_same_bytes() -> None:
    assert write_batch(mixed_batch(), SIDETREE) == write_batch(mixed_batch(), SIDETREE)


def test_files_have_the_same_header_in_all_versions_of_python() -> None:
    for file in write_batch(mixed_batch(), SIDETREE).files:
        assert file.data[:10] == bytes.fromhex("1f8b0800000000000203")  # Python 3.13 would end it with ff
        assert gzip.decompress(file.data).startswith(b"{")


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda p: p.create, ["chunk", "provisional index", "core index"]),
        (lambda p: p.update(), ["chunk", "provisional proof", "provisional index", "core index"]),
        (lambda p: p.recover(), ["chunk", "provisional index", "core proof", "core index"]),
        (lambda p: p.deactivate(), ["core proof", "core index"]),
    ],
    ids=["create", "update", "recover", "deactivate"],
)
def test_a_batch_of_one_kind_has_only_the_files_it_needs(
    make: Callable[[DidOwner], Operation], kinds: list[str]
) -> None:
    files = files_of([make(DidOwner("single"))])
    assert list(files.data) == kinds
    assert len(files.read().operations) == 1


def test_a_second_operation_for_a_did_waits_for_the_next_batch() -> None:
    person, other = DidOwner("twice"), DidOwner("once")
    first, second = person.update(), person.update()
    assert one_per_suffix([first, other.create, second]) == ([first, other.create], [second])
    with pytest.raises(BatchFileError, match="the batch has two operations on the DID with the suffix"):
        write_batch([first, second], SIDETREE)


def test_an_empty_batch_is_no_batch() -> None:
    with pytest.raises(BatchFileError, match="at least one"):
        write_batch([], SIDETREE)


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        ({"max_operations": 5}, "batch"),
        ({"max_core_index_bytes": 300}, "core index file"),
        ({"max_provisional_index_bytes": 200}, "provisional index file"),
        ({"max_chunk_bytes": 200}, "chunk file"),
        ({"max_proof_bytes": 300}, "provisional proof file"),
    ],
)
def test_a_file_that_would_be_too_large_is_not_written(limit: Mapping[str, int], file: str) -> None:
    with pytest.raises(BatchTooLargeError) as caught:
        write_batch(mixed_batch(), msgspec.structs.replace(SIDETREE, **limit))
    assert caught.value.file == file


@pytest.mark.parametrize(
    "anchor", ["0.x", "01.x", "-1.x", "1", "1.", "1.a.b", ".a", "10001.a", "1.a b", "1." + "a" * 101]
)
def test_an_anchor_string_has_a_count_and_one_uri(anchor: str) -> None:
    with pytest.raises(BatchFileError):
        parse_anchor(anchor, SIDETREE)


CORE_CHANGES: dict[str, tuple[str, Change, str]] = {
    "unknown member": ("core index", lambda f: f.update(more=1), "unknown members: more"),
    "unknown kind": ("core index", lambda f: f["operations"].update(update=[]), "unknown members: update"),
    "lists": ("core index", lambda f: f["operations"].update(create={}), "must be (lists|a list)"),
    "operations": ("core index", lambda f: f.update(operations=None), "must be an object"),
    "long lock": ("core index", lambda f: f.update(writerLockId="é" * 101), "writerLockId"),
    "no proof file": ("core index", lambda f: f.pop("coreProofFileUri"), "must be a URI"),
    "null proof file": ("core index", lambda f: f.update(coreProofFileUri=None), "must be a URI"),
    "no provisional file": ("core index", lambda f: f.pop("provisionalIndexFileUri"), "must be a URI|no member"),
    "long uri": ("core index", lambda f: f.update(coreProofFileUri="b" * 101), "100 characters"),
    "bad suffix data": ("core index", lambda f: f["operations"]["create"][0].update(suffixData={}), "suffixData"),
    "no suffix data": ("core index", lambda f: f["operations"]["create"][0].clear(), "suffixData"),
    "unknown in create": ("core index", lambda f: f["operations"]["create"][0].update(more=1), "unknown members"),
    "bad reference": ("core index", lambda f: f["operations"]["recover"][0].pop("revealValue"), "(?i)reveal|reference"),
    "unknown in reference": ("core index", lambda f: f["operations"]["recover"][0].update(more=1), "unknown members"),
    "twice in core": ("core index", lambda f: repeat(f["operations"]["create"]), "the batch has two operations"),
    "more than the anchor counts": (
        "core index",
        lambda f: f["operations"]["deactivate"].extend(
            {**f["operations"]["deactivate"][0], "didSuffix": DidOwner(f"x{n}").suffix} for n in range(3)
        ),
        "has [0-9]+ operations or more .*, but the anchor string states 6",
    ),
    "missing proof": ("core proof", lambda f: f["operations"]["recover"].pop(), "[0-9] proofs for [0-9]"),
    "another proof": ("core proof", lambda f: repeat(f["operations"]["recover"]), "[0-9] proofs for [0-9]"),
    "unknown in proofs": ("core proof", lambda f: f["operations"].update(more=[]), "unknown members"),
    "bare proof": ("core proof", lambda f: f["operations"].update(recover=["a.b.c"]), "'signedData'|must be an object"),
    "unknown in proof": ("core proof", lambda f: f["operations"]["recover"][0].update(more=1), "unknown members"),
    "broken proof": ("core proof", lambda f: f["operations"]["recover"][0].update(signedData="a.b"), "compact JWS"),
    "proof of another": (
        "core proof",
        lambda f: f["operations"]["deactivate"][0].update(signedData=DidOwner("x").deactivate().request["signedData"]),
        "differs from the didSuffix",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORE_CHANGES)
def test_a_core_file_that_breaks_a_rule_drops_the_whole_batch(files: Files, name: str) -> None:
    kind, change, text = CORE_CHANGES[name]
    with pytest.raises(BatchFileError, match=text):
        files.change(kind, change).read()


PROVISIONAL_CHANGES: dict[str, tuple[str, Change, str]] = {
    "unknown member": ("provisional index", lambda f: f.update(more=1), "unknown members"),
    "two chunks": ("provisional index", lambda f: f["chunks"].append(f["chunks"][0]), "exactly one"),
    "no chunk": ("provisional index", lambda f: f.pop("chunks"), "exactly one"),
    "unknown in chunk": ("provisional index", lambda f: f["chunks"][0].update(more=1), "unknown members|exactly the"),
    "chunk without uri": ("provisional index", lambda f: f["chunks"][0].update(chunkFileUri=7), "must be a URI"),
    "no proof file": ("provisional index", lambda f: f.pop("provisionalProofFileUri"), "must be a URI"),
    "superfluous proof file": ("provisional index", lambda f: f.pop("operations"), "no operation that needs it"),
    "twice": ("provisional index", lambda f: repeat(f["operations"]["update"]), "two operations"),
    "also in core": (
        "provisional index",
        lambda f: f["operations"]["update"][0].update(didSuffix=DidOwner("p0").suffix),
        "two operations",
    ),
    "missing proof": ("provisional proof", lambda f: f["operations"]["update"].pop(), "1 proofs for 2"),
    "broken proof": ("provisional proof", lambda f: f["operations"]["update"][0].update(signedData=7),
        r"operations\.update\[0\] of the provisional proof file is not valid: .*compact JWS"),
    "missing delta": ("chunk", lambda f: f["deltas"].pop(), "one delta for each of 5"),
    "bad delta": ("chunk", lambda f: f["deltas"].__setitem__(1, None), r"deltas\[1\] of the chunk file is not valid"),
    "long delta": ("chunk", lambda f: f["deltas"][0].update(updateCommitment="x" * 1000), "limit (of|is) 1,000"),
    "unknown in chunk file": ("chunk", lambda f: f.update(more=1), "unknown members"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVISIONAL_CHANGES)
def test_a_bad_provisional_part_leaves_the_core_operations_without_deltas(files: Files, name: str) -> None:
    kind, change, text = PROVISIONAL_CHANGES[name]
    assert re.search(text, provisional_fault(files.change(kind, change)))


def test_a_proof_file_that_nobody_needs_is_refused() -> None:
    for profile in (SIDETREE, STRICT):
        files = files_of([DidOwner("lonely").create], profile)
        with pytest.raises(BatchFileError, match=r"no operation that needs it"):
            files.change("core index", lambda f: f.update(coreProofFileUri="bafy")).read()


def test_an_index_that_names_no_operation_holds_none() -> None:
    files = files_of([DidOwner("gone").deactivate()], STRICT)
    files.change("core index", lambda f: (f.pop("operations"), f.pop("coreProofFileUri")))
    with pytest.raises(BatchFileError, match="contains no operation"):
        files.read()
    files.profile = SIDETREE
    assert files.read() == OperationBatch(1, ())


REFERENCE_TAKES: dict[str, tuple[str, Change]] = {
    "more in proofs": ("core proof", lambda f: f.update(more=1)),
    "another hash length": ("chunk", lambda f: f["deltas"][0].update(updateCommitment="EgEA")),
    "no patches": ("chunk", lambda f: f["deltas"][0].update(patches=[])),
    "a proof for both kinds": (
        "core proof",
        lambda f: f.update(operations={"recover": [*f["operations"]["recover"], *f["operations"]["recover"]]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE_TAKES)
def test_what_the_reference_takes_is_taken(name: str) -> None:
    kind, change = REFERENCE_TAKES[name]
    files = files_of(mixed_batch()).change(kind, change)
    assert files.read().fault is None


INHERITED: dict[str, tuple[str, Change]] = {
    "operations": ("core index", lambda f: f.update(__proto__={"operations": f.pop("operations")})),
    "proof": ("core proof", lambda f: f["operations"].update(recover=[{"__proto__": f["operations"]["recover"][0]}])),
    "chunk": ("provisional index", lambda f: f.update(chunks=[{"x": 1, "__proto__": f["chunks"][0]}])),
    "proofs": ("core proof", lambda f: f.update(__proto__={"operations": f.pop("operations")})),
    "deltas": ("chunk", lambda f: f.update(deltas={"__proto__": f["deltas"]})),
    "one delta": ("chunk", lambda f: f.update(deltas={"__proto__": [None, *f["deltas"][1:]], "0": f["deltas"][0]})),
}  # fmt: skip


@pytest.mark.parametrize("name", INHERITED)
def test_what_a_file_inherits_from_a_prototype_is_read_as_the_reference_reads_it(name: str) -> None:
    kind, change = INHERITED[name]
    written = write_batch(mixed_batch(), SIDETREE)
    assert Files(written).change(kind, change).read() == OperationBatch(6, written.operations)


@pytest.mark.parametrize("length", [4, 6, 10**15, 5.5, -5, "5", True, None])
def test_deltas_that_inherit_from_a_list_must_have_its_length(length: object) -> None:
    files = files_of(mixed_batch())
    files.change("chunk", lambda f: f.update(deltas={"__proto__": f["deltas"], "length": length}))
    assert re.search("must be a list|one delta for each|delta must be an object", provisional_fault(files))


def test_deltas_that_hide_the_method_slice_drop_the_whole_batch() -> None:
    files = files_of(mixed_batch()).change("chunk", lambda f: f.update(deltas={"__proto__": f["deltas"], "slice": 1}))
    with pytest.raises(BatchFileError, match="must not have a member 'slice'"):
        files.read()


def test_an_operation_has_only_the_members_that_it_does_not_inherit() -> None:
    """The reference writes an operation as JSON before it applies it, and finds less in it then."""
    files = files_of(mixed_batch())
    files.change("chunk", lambda f: f["deltas"].__setitem__(slice(2, 4), [{"__proto__": d} for d in f["deltas"][2:4]]))
    batch = files.read()
    assert [(o.type.value, o.delta is None) for o in batch.operations] == [
        ("create", False), ("create", False), ("recover", True), ("deactivate", True), ("update", False),
    ]  # fmt: skip


def test_a_create_whose_suffix_data_inherits_what_it_needs_is_passed_over() -> None:
    files = files_of(mixed_batch())

    def inherit(index: Json) -> None:
        data = index["operations"]["create"][0]["suffixData"]
        data["__proto__"] = {"recoveryCommitment": data.pop("recoveryCommitment")}

    batch = files.change("core index", inherit).read()
    assert batch.fault is None
    assert [operation.type.value for operation in batch.operations].count("create") == 1


def _packed(data: bytes) -> bytes:
    """*data* under gzip, the same bytes whenever it is made: tests are named for them."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "truncated"),
        (b"not gzip", "cannot decompress the core index file as GZIP"),
        (_packed(b"{}")[:-5] + bytes(5), "cannot decompress the core index file as GZIP"),
        (_packed(b"{}")[:-3], "truncated"),
        (_packed(b"{}") + b"x", "goes on|truncated"),
        (_packed(b"{"), "not (valid )?JSON"),
        (_packed(b"\xff"), "not (valid )?JSON"),
        (_packed(b"[" * 100_000), "not (valid )?JSON|limit of 3600 levels"),
        (_packed(b"1"), "must be a JSON object"),
        (_packed(b"[]" + b" " * 3_000_000), "more than [0-9,]+ bytes after decompression"),
        (bytes(1_000_001), "limit of 1,000,000 bytes|more than 1,000,000 bytes"),
    ],
)
def test_a_file_that_is_not_json_under_gzip_within_its_limits_is_refused(files: Files, data: bytes, text: str) -> None:
    with pytest.raises(BatchFileError, match=text):
        files.replace("core index", data).read()


def test_a_file_of_two_members_or_with_zeros_behind_it_is_read_as_the_reference_reads_it() -> None:
    files = files_of([DidOwner("lonely").create])
    text = gzip.decompress(files.data["core index"])
    for data in (_packed(text[:40]) + _packed(text[40:]), _packed(text) + bytes(5)):
        assert len(files.replace("core index", data).read().operations) == 1
        files.profile = STRICT
        with pytest.raises(BatchFileError, match="data after"):
            files.read()
        files.profile = SIDETREE


def test_a_gzip_bomb_is_unpacked_no_further_than_its_limit(files: Files) -> None:
    bomb = gzip.compress(bytes(200_000_000), compresslevel=6)
    assert len(bomb) < SIDETREE.max_core_index_bytes
    with pytest.raises(BatchFileError, match="more than 3,000,000 bytes after decompression"):
        files.replace("core index", bomb).read()


def test_a_file_that_cannot_be_had_is_no_verdict() -> None:
    written, cas = write_batch(mixed_batch(), SIDETREE), MemoryCas()
    for file in written.files:
        assert cas.put(file.data) == file.uri
    assert read_batch(written.anchor, cas.get, SIDETREE).fault is None
    for file in written.files:
        cas.overwrite(file.uri, None)
        with pytest.raises(CasNotFoundError):
            read_batch(written.anchor, cas.get, SIDETREE)
        cas.put(file.data)


@pytest.mark.parametrize("profile", [SIDETREE, STRICT], ids=lambda profile: profile.name)
def test_what_needs_no_provisional_file_counts_while_these_are_unavailable(profile: Profile) -> None:
    written = write_batch(mixed_batch(), profile)
    passed_over = {OperationType.CREATE, OperationType.UPDATE} if profile.reference else {OperationType.UPDATE}
    for gone in written.files:
        cas = MemoryCas()
        for file in written.files:
            if file is not gone:
                cas.put(file.data)
        if gone.kind.startswith("core"):
            with pytest.raises(CasNotFoundError):
                read_batch(written.anchor, cas.get, profile, partial=True)
            continue
        batch = read_batch(written.anchor, cas.get, profile, partial=True)
        assert isinstance(batch.unavailable, CasNotFoundError)
        assert {operation.type for operation in batch.operations} == set(OperationType) - passed_over
        assert all(operation.delta is None for operation in batch.operations)


@pytest.mark.parametrize("profile", [SIDETREE, STRICT, ORB], ids=lambda profile: profile.name)
def test_a_known_batch_is_not_parsed_again_while_all_of_its_files_are_there(profile: Profile) -> None:
    written, cas = write_batch(mixed_batch(), profile), MemoryCas()
    known = read_written(written, profile)
    assert {uri for uri, _ in known.files} == {file.uri for file in written.files}
    for file in written.files:
        cas.put(file.data)
    assert read_batch(written.anchor, cas.get, profile, known=known) is known.batch
    assert read_batch(written.anchor, cas.get, profile) == known.batch
    other = write_batch(mixed_batch()[:1], profile)
    for file in other.files:
        cas.put(file.data)
    assert read_batch(other.anchor, cas.get, profile, known=known).count == 1
    looser = msgspec.structs.replace(profile, max_chunk_bytes=20_000_000)
    assert read_batch(written.anchor, cas.get, looser, known=known) is not known.batch, "other rules"
    chunk = next(file for file in written.files if file.kind == "chunk file")
    cas.overwrite(chunk.uri, None)
    with pytest.raises(CasNotFoundError):
        read_batch(written.anchor, cas.get, profile, known=known)


def test_what_readers_would_refuse_a_part_of_is_no_known_batch() -> None:
    with pytest.raises(BatchFileError):
        read_written(write_batch(mixed_batch(), SIDETREE), msgspec.structs.replace(SIDETREE, max_chunk_bytes=100))


def test_nothing_of_a_batch_of_orb_counts_while_a_file_is_unavailable() -> None:
    written, cas = write_batch(mixed_batch(), ORB), MemoryCas()
    for file in written.files:
        if file.kind != "chunk file":
            cas.put(file.data)
    with pytest.raises(CasNotFoundError):
        read_batch(written.anchor, cas.get, ORB, partial=True)


def test_a_uri_of_no_file_is_a_bad_file() -> None:
    with pytest.raises(BatchFileError, match="invalid URI of the core index file"):
        read_batch("1.nonsense", MemoryCas().get, SIDETREE)


def test_orb_counts_exactly_and_passes_over_unknown_members() -> None:
    files = files_of(mixed_batch(), ORB).change("core index", lambda f: f.update(more=1))
    assert len(files.read().operations) == 6
    files.anchor = files.anchor.replace("6.", "7.", 1)
    with pytest.raises(BatchFileError, match="the anchor string states 7 operations, but the files contain 6"):
        files.read()


def test_a_bad_file_drops_a_batch_of_orb_whole() -> None:
    files = files_of(mixed_batch(), ORB).change("chunk", lambda f: f["deltas"].pop())
    with pytest.raises(BatchFileError, match="one delta for each"):
        files.read()


MIXED = write_batch(mixed_batch(), SIDETREE)


@given(st.sampled_from([file.kind.removesuffix(" file") for file in MIXED.files]), st.data())
def test_no_changed_byte_of_a_file_ever_does_more_than_refuse(kind: str, data: st.DataObject) -> None:
    files = Files(MIXED)
    text = bytearray(gzip.decompress(files.data[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = files.replace(kind, gzip.compress(bytes(text))).read()
    except (BatchFileError, KeyError):  # a changed URI invalid file URI here
        return
    assert len(batch.operations) <= batch.count
