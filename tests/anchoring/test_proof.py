from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from millstream.anchoring import (
    AnchoringError,
    CutLimits,
    LocalCas,
    NotAnchoredError,
    ProofError,
    Replica,
    prove,
    verify_proof,
)
from millstream.anchoring.batch_files import split_batches
from millstream.anchoring.errors import LedgerReplacedError
from millstream.anchoring.proof import Trust, decode_proof, encode_proof
from millstream.batching import Reject
from millstream.core.canonical import canonical_json, parse_canonical
from millstream.testing.batches import CONFIG, make_batch, make_batches, make_message


@pytest.fixture
def anchored(make_parts: Any) -> Any:
    """Anchoring with five anchors; anchor 3 is of another log."""
    parts = make_parts(limits=CutLimits(batches=12, file_bytes=3000))
    batches = list(make_batches(40))
    for start in (0, 12):
        parts.writer.add("weather", batches[start : start + 12], config=CONFIG)
        parts.writer.cut(force=True)
    parts.writer.add("flights", [make_batch([1, 2])], config=CONFIG)
    parts.writer.cut(force=True)
    parts.writer.add("weather", batches[24:], [Reject(900, "late")], config=CONFIG)
    parts.writer.cut(force=True)
    parts.ids = [number for batch in batches for number in batch.ids]
    return parts


def test_each_of_a_thousand_random_messages_has_a_proof_that_verifies(make_parts: Any) -> None:
    parts, draw = make_parts(limits=CutLimits(batches=100, file_bytes=20_000)), random.Random(11)
    batches = list(make_batches(600, seed=2))
    parts.writer.add("weather", batches, config=CONFIG)
    parts.writer.cut(force=True)
    head = parts.ledger.head().hash
    places = {number: (batch, at) for batch in batches for at, number in enumerate(batch.ids)}
    for number in draw.sample(sorted(places), 1000):
        verified = verify_proof(parts.prove(number) + b"\n", parts.cas, Trust(ledger_head=head))
        batch, at = places[number]
        assert (verified.log, verified.id, verified.batch, verified.pinned) == ("weather", number, batch.batch, True)
        hour = (batch.header.start - batches[0].header.start) // 3_600_000_000
        assert verified.message == make_message(number, batch.header.source, hour, at)


def test_a_proof_reads_as_documented(anchored: Any) -> None:
    replicas = [Replica("primary", "cas", "x", None, 5, "SUCCESS")]
    data = prove(
        "weather",
        anchored.ids[0],
        index=anchored.index,
        cas=anchored.cas,
        ledger=anchored.ledger,
        replicas=lambda cid: [msgspec.structs.replace(replicas[0], content_id=cid)],
    )
    proof = parse_canonical(data)
    assert sorted(proof) == [
        "batch_file",
        "batch_header",
        "batch_index",
        "batch_path",
        "digest",
        "id",
        "ledger",
        "log",
        "manifest",
        "message",
        "message_index",
        "message_path",
        "replicas",
        "version",
    ]
    assert [entry["number"] for entry in proof["ledger"]] == [1, 2, 3, 4, 5]
    stored = list(split_batches(anchored.cas.get(proof["batch_file"], 10**6)))[proof["batch_index"]]
    assert canonical_json(proof["message"]) == stored.lines[proof["message_index"]]
    assert proof["replicas"] == [
        {
            "content_id": proof["batch_file"],
            "outcome": "SUCCESS",
            "sha256": None,
            "space": "cas",
            "store": "primary",
            "verified_at": 5,
        }
    ]
    assert verify_proof(data, anchored.cas).replicas[0].verified_at == 5


def test_flipping_any_byte_of_a_proof_makes_it_fail(anchored: Any) -> None:
    draw = random.Random(1)
    head = anchored.ledger.head().hash
    for number in draw.sample(anchored.ids, 3):
        data = anchored.prove(number) + b"\n"
        verify_proof(data, anchored.cas, Trust(ledger_head=head))
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= 1 << draw.randrange(8) if place % 2 else draw.randrange(1, 256)
            with pytest.raises(ProofError):
                verify_proof(bytes(changed), anchored.cas, Trust(ledger_head=head))


@pytest.mark.parametrize("which", ["batch_file", "manifest"])
def test_flipping_any_byte_of_a_file_that_a_proof_names_makes_it_fail(anchored: Any, which: str) -> None:
    data = anchored.prove(anchored.ids[-1])
    path = anchored.cas.root / getattr(decode_proof(data), which)
    whole = path.read_bytes()
    draw = random.Random(2)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
        with pytest.raises(ProofError, match=r"a file that the proof names is missing or damaged: .* is damaged"):
            verify_proof(data, anchored.cas)
    for other in (None, whole[:-1], whole + b"\n", b""):
        path.unlink() if other is None else path.write_bytes(other)
        with pytest.raises(ProofError):
            verify_proof(data, anchored.cas)
    path.write_bytes(whole)
    verify_proof(data, anchored.cas)


def test_any_other_spelling_of_a_proof_is_refused(anchored: Any) -> None:
    data = anchored.prove(anchored.ids[5])
    verify_proof(data, anchored.cas)
    verify_proof(data + b"\n", anchored.cas)
    for other in (
        data + b"\n\n",
        data + b" ",
        data + b"\r\n",
        b" " + data,
        b"\xef\xbb\xbf" + data,
        data.replace(b",", b", ", 1),
        data[:-1] + b',"x":1}',
        data + data,
        data[:-1],
        b"",
        b"\n",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        data.decode().encode("utf-16"),
    ):
        with pytest.raises(ProofError):
            verify_proof(other, anchored.cas)


def forged(data: bytes, change: Any) -> bytes:
    """The proof with a change, and the digest that fits it: only what is really checked can find it out."""
    members = parse_canonical(data)
    change(members)
    del members["digest"]
    return encode_proof(members)


def set_to(*path: Any) -> Any:
    *steps, last, value = path

    def change(members: Any) -> None:
        for step in steps:
            members = members[step]
        members[last] = value(members[last]) if callable(value) else value

    return change


FORGERIES = {
    "another body": set_to("message", "body", "forged"),
    "another time": set_to("message", "event_time", 5),
    "another id in the message": set_to("message", "id", 7),
    "another id": set_to("id", 1_000_000),
    "another log": set_to("log", "flights"),
    "message moved": set_to("message_index", lambda at: at + 1),
    "message far away": set_to("message_index", 10**6),
    "message before the first": set_to("message_index", -1),
    "batch moved": set_to("batch_index", lambda at: at + 1),
    "batch before the first": set_to("batch_index", -1),
    "short batch path": set_to("batch_path", lambda path: path[:-1]),
    "long batch path": set_to("batch_path", lambda path: [*path, "0" * 64]),
    "batch path in capitals": set_to("batch_path", lambda path: ["A" * 64, *path[1:]]),
    "short message path": set_to("message_path", lambda path: path[:-1] if path else ["0" * 64]),
    "a path that is not a hash": set_to("message_path", ["zz"]),
    "another batch id": set_to("batch_header", "batch", "forged"),
    "another count": set_to("batch_header", "count", lambda count: count + 1),
    "no count": set_to("batch_header", "count", 0),
    "another root": set_to("batch_header", "root", "0" * 64),
    "another closing time": set_to("batch_header", "closed_at", None),
    "a member too many": set_to("x", 1),
    "a member too many in the header": set_to("batch_header", "x", 1),
    "a member too many in the message": set_to("message", "x", 1),
    "another manifest": set_to("manifest", "b" + "a" * 58),
    "another file": set_to("batch_file", "b" + "a" * 58),
    "another anchor": set_to("ledger", lambda chain: chain[1:]),
    "no anchor": set_to("ledger", []),
    "a gap in the chain": set_to("ledger", lambda chain: [chain[0], *chain[2:]]),
    "chain turned round": set_to("ledger", lambda chain: chain[::-1]),
    "another entry time": set_to("ledger", 0, "time", 1),
    "another entry hash": set_to("ledger", 0, "hash", "0" * 64),
    "another version": set_to("version", 2),
    "version as text": set_to("version", "1"),
    "replicas that are none": set_to("replicas", [{"store": "x"}]),
    "message that is none": set_to("message", {"x": 1}),
    "message as text": set_to("message", "x"),
}


def test_a_forged_proof_with_the_digest_that_fits_it_fails(anchored: Any) -> None:
    data = anchored.prove(anchored.ids[2])
    assert forged(data, lambda members: None) == data
    assert [name for name, change in FORGERIES.items() if _holds(forged(data, change), anchored.cas)] == []


def _holds(data: bytes, cas: LocalCas) -> bool:
    try:
        verify_proof(data, cas)
    except ProofError:
        return False
    return True


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member and element inside *value*."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_any_member_replaced_by_anything_else_is_refused_with_a_reason(anchored: Any) -> None:
    """Also where the digest fits, no value anywhere makes the check fail in another way than by its own error."""
    data = anchored.prove(anchored.ids[2])
    members = parse_canonical(data)
    for path in places(members):
        for value in (None, -1, 0, 2**53 - 1, 1.5, True, "", "x", "0" * 64, [], {}, [None], {"": 0}):
            was = members
            for key in path:
                was = was[key]
            if path[0] != "digest" and (value != was or type(value) is not type(was)):
                assert not _holds(forged(data, set_to(*path, value)), anchored.cas), (path, value)


def test_a_pinned_head_must_be_in_the_chain_at_or_after_the_anchor(anchored: Any) -> None:
    hashes = [entry.hash for entry in anchored.ledger.entries()]
    late = next(number for number in anchored.ids if anchored.index.locate("weather", number).number == 2)
    data = anchored.prove(late)
    for pin in hashes[1:]:
        verified = verify_proof(data, anchored.cas, Trust(ledger_head=pin))
        assert (verified.pinned, verified.anchor, verified.ledger_head) == (True, 2, hashes[-1])
    for pin in (hashes[0], "0" * 64, ""):
        with pytest.raises(ProofError, match="pinned ledger head"):
            verify_proof(data, anchored.cas, Trust(ledger_head=pin))
    assert verify_proof(data, anchored.cas).pinned is False


def test_a_proof_older_than_the_pin_says_so(anchored: Any) -> None:
    data = anchored.prove(anchored.ids[0])
    anchored.writer.add("weather", [make_batch([5000])], config=CONFIG)
    anchored.writer.cut(force=True)
    with pytest.raises(ProofError, match="export the proof again"):
        verify_proof(data, anchored.cas, Trust(ledger_head=anchored.ledger.head().hash))


def test_a_message_without_a_proof_is_told_why(anchored: Any) -> None:
    anchored.writer.add("weather", [make_batch([7000])], [Reject(7001, "future")], config=CONFIG)
    for number, reason in (
        (900, r"rejected as late \(anchor"),
        (7000, "waits for the next cut"),
        (7001, "rejected as future"),
        (99999, "it is in no batch"),
    ):
        with pytest.raises(NotAnchoredError, match=reason):
            anchored.prove(number)
    with pytest.raises(NotAnchoredError):
        anchored.prove(anchored.ids[0], log="elsewhere")
    anchored.writer.add("weather", [make_batch([7000, 7002])], config=CONFIG)
    anchored.writer.cut(force=True)
    with pytest.raises(NotAnchoredError, match="was rejected: message 7000 is in"):
        anchored.prove(7002)


@pytest.mark.parametrize("change", ["offsets", "sizes", "files"])
def test_an_index_that_points_elsewhere_never_leads_to_a_wrong_proof(anchored: Any, change: str) -> None:
    location = anchored.index.locate("weather", anchored.ids[0])
    with anchored.engine.begin() as connection:
        query = "SELECT members FROM anchor_index_anchors WHERE number = 1"
        names, files, offsets, sizes = msgspec.msgpack.decode(connection.exec_driver_sql(query).scalar_one())
        if change == "files":
            files = [[files[-1][0], count] for _, count in files]
        moved = [bytes([data[0] ^ 6, *data[1:]]) if name == change else data
                 for name, data in (("offsets", offsets), ("sizes", sizes))]  # fmt: skip
        data = msgspec.msgpack.encode([names, files, *moved])
        connection.exec_driver_sql("UPDATE anchor_index_anchors SET members = ? WHERE number = 1", (data,))
    assert anchored.index.locate("weather", anchored.ids[0]) != location
    with pytest.raises(AnchoringError, match="anchor replay"):
        anchored.prove(anchored.ids[0])


@pytest.mark.parametrize("others", [0, 4])
def test_a_message_of_an_entry_that_the_ledger_lost_has_no_proof(anchored: Any, others: int) -> None:
    number = anchored.ids[-1]
    anchored.prove(number)
    del anchored.ledger._entries[1:]
    for manifest in range(others):
        anchored.ledger.append(f"1.{anchored.cas.put(b'%d' % manifest)}")
    reason = "entry 5 of the ledger is not the one" if others else "the ledger has no entry 5"
    with pytest.raises(LedgerReplacedError, match=f"{reason}.* `millstream anchor observe --rebuild`"):
        anchored.prove(number)


def test_verifying_needs_neither_a_database_nor_spark() -> None:
    code = "import sys, millstream.anchoring.proof, millstream.anchoring.local_cas; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'sqlalchemy'" not in loaded
    assert "'pyspark'" not in loaded
    assert "'millstream.log'" not in loaded


def test_files_are_found_in_any_folder_they_are_copied_to(anchored: Any, tmp_path: Any) -> None:
    data = anchored.prove(anchored.ids[3])
    proof, elsewhere = decode_proof(data), LocalCas(tmp_path / "elsewhere")
    elsewhere.put_many([anchored.cas.get(cid, 10**7) for cid in (proof.manifest, proof.batch_file)])
    assert verify_proof(data, elsewhere).id == anchored.ids[3]
