"""Proofs of version 2, which end with a signed checkpoint; those of version 1 are in test_proof.py."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import CutLimits, LocalCas, ProofError, verify_proof
from millstream.anchoring import prover as prover_module
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.proof import Trust, decode_proof, encode_proof, tlog_proof
from millstream.anchoring.transparency.policy import TrustPolicy, WitnessGroup, trusting
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, parse_note
from millstream.anchoring.transparency.tlog_proof import encode_tlog_proof, verify_tlog_proof
from millstream.core.canonical import parse_canonical
from millstream.testing.batches import CONFIG, make_batch, make_batches
from millstream.testing.ledgers import some_anchor
from suite.sizes import sized
from support.commands import run_command
from support.signed_ledger import MemorySignedLedger
from support.witnesses import TestWitness

KEPT = Path(__file__).parent / "kept" / "proof-version-1"
KEY = SigningKey("example.org/anchors", bytes(range(32)))
TRUST = Trust(policy=trusting([KEY.verifier_key]))


@pytest.fixture
def two_anchors(make_parts: Any) -> Any:
    """Anchoring with two anchors, whose ledger is signed."""
    parts = make_parts(limits=CutLimits(batches=12, file_bytes=3000))
    parts.signed = MemorySignedLedger(parts.ledger, KEY)
    batches = list(make_batches(24))
    for start in (0, 12):
        parts.writer.add("weather", batches[start : start + 12], config=CONFIG)
        parts.writer.cut(force=True)
    parts.ids = [number for batch in batches for number in batch.ids]
    return parts


@pytest.fixture
def anchored(two_anchors: Any) -> Any:
    """The same, with many more entries in the ledger."""
    for number in range(sized(quick=30, ci=300, long=3000)):
        two_anchors.ledger.append(some_anchor(number))
    return two_anchors


def test_a_proof_has_the_documented_members_and_stays_small(anchored: Any) -> None:
    data = anchored.prove_signed(anchored.ids[0], anchored.signed)
    proof = parse_canonical(data)
    assert sorted(proof) == [
        "batch_file", "batch_header", "batch_index", "batch_path", "checkpoint", "digest", "entry", "entry_path", "id",
        "log", "manifest", "message", "message_index", "message_path", "replicas", "version",
    ]  # fmt: skip
    assert proof["version"] == 2
    assert proof["entry"] == json.loads(encode_entry(next(iter(anchored.ledger.entries(1)))))
    assert proof["checkpoint"].split("\n")[:2] == ["example.org/anchors", str(anchored.ledger.head().number)]
    assert len(data) < 8000
    verified = verify_proof(data + b"\n", anchored.cas, TRUST)
    assert (verified.version, verified.pinned, verified.anchor, verified.ledger_head) == (2, True, 1, None)
    assert verified.checkpoint is not None
    assert verified.checkpoint.signed_by == (str(KEY.verifier_key),)


def test_a_proof_stays_valid_when_the_ledger_grows_and_the_next_one_is_of_the_larger_tree(two_anchors: Any) -> None:
    before = two_anchors.prove_signed(two_anchors.ids[-1], two_anchors.signed)
    two_anchors.writer.add("weather", [make_batch([5000])], config=CONFIG)
    two_anchors.writer.cut(force=True)
    assert two_anchors.prove_signed(two_anchors.ids[-1], two_anchors.signed) == before  # nothing new has to be signed
    after = two_anchors.prove_signed(5000, two_anchors.signed)
    sizes = [verify_proof(data, two_anchors.cas, TRUST).checkpoint.size for data in (before, after)]
    assert sizes[1] == sizes[0] + 1 == two_anchors.ledger.head().number
    two_anchors.signed.key = SigningKey(KEY.name, bytes(32))  # a new key signs again, also if there is no new entry
    rotated = two_anchors.prove_signed(two_anchors.ids[-1], two_anchors.signed)
    assert verify_proof(rotated, two_anchors.cas, Trust(policy=trusting([two_anchors.signed.key.verifier_key]))).pinned


def test_flipping_any_byte_of_ten_proofs_makes_them_fail(anchored: Any) -> None:
    draw = random.Random(1)
    for number in draw.sample(anchored.ids, 10):
        data = anchored.prove_signed(number, anchored.signed) + b"\n"
        verify_proof(data, anchored.cas, TRUST)
        for place in draw.sample(range(len(data)), sized(quick=60, ci=len(data), long=len(data))):
            changed = bytearray(data)
            changed[place] ^= draw.randrange(1, 256)
            with pytest.raises(ProofError):
                verify_proof(bytes(changed), anchored.cas, TRUST)


def forged(data: bytes, **changes: Any) -> bytes:
    """The proof with members changed by functions, and the digest that fits it."""
    members = parse_canonical(data)
    del members["digest"]
    for name, change in changes.items():
        members[name] = change(members[name])
    return encode_proof(members)


FORGERIES = {
    "another root": {"checkpoint": lambda note: note.replace(note.split("\n")[2], "A" * 43 + "=")},
    "another size": {"checkpoint": lambda note: note.replace("\n", "\n1", 1)},
    "another origin": {"checkpoint": lambda note: "example.net" + note},
    "no signature": {"checkpoint": lambda note: note[: note.index("—")]},
    "not a note": {"checkpoint": lambda _: "x"},
    "a checkpoint that is not text": {"checkpoint": lambda _: 5},
    "a short path": {"entry_path": lambda path: path[1:]},
    "a long path": {"entry_path": lambda path: [*path, path[0]]},
    "a path in capitals": {"entry_path": lambda path: [path[0].upper(), *path[1:]]},
    "another step": {"entry_path": lambda path: ["0" * 64, *path[1:]]},
    "another number": {"entry": lambda entry: entry | {"number": 2}},
    "number zero": {"entry": lambda entry: entry | {"number": 0}},
    "another time": {"entry": lambda entry: entry | {"time": 5}},
    "another hash": {"entry": lambda entry: entry | {"hash": "0" * 64}},
    "a member too many in the entry": {"entry": lambda entry: entry | {"x": 1}},
    "version 1": {"version": lambda _: 1},
    "version 3": {"version": lambda _: 3},
    "a version that is true": {"version": lambda _: True},
    "version as text": {"version": lambda _: "2"},
    "a kind that is left out": {"batch_header": lambda header: header | {"kind": "batch"}},
    "another log": {"log": lambda _: "flights"},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_proof_with_the_digest_that_fits_it_fails(anchored: Any, name: str) -> None:
    data = anchored.prove_signed(anchored.ids[2], anchored.signed)
    assert forged(data) == data
    changed = forged(data, **FORGERIES[name])
    with pytest.raises(ProofError):
        verify_proof(changed, anchored.cas, TRUST)
    if name != "another origin":  # without a key nobody vouches for the name of the ledger
        with pytest.raises(ProofError):
            verify_proof(changed, anchored.cas)


def test_without_a_key_a_proof_is_checked_but_nobody_vouches_for_it(anchored: Any) -> None:
    stranger = MemorySignedLedger(anchored.ledger, SigningKey("example.org/anchors", bytes(32)))
    data = anchored.prove_signed(anchored.ids[0], stranger)
    verified = verify_proof(data, anchored.cas)
    assert (verified.pinned, verified.checkpoint.signed_by) == (False, ())
    with pytest.raises(ProofError, match=r"the checkpoint of the proof is not trusted: .* not by the trusted key"):
        verify_proof(data, anchored.cas, TRUST)
    with pytest.raises(ProofError, match=r"but the keys .* are of example.org/other"):
        verify_proof(
            data, anchored.cas, Trust(policy=trusting([SigningKey("example.org/other", bytes(32)).verifier_key]))
        )


def test_a_policy_asks_for_witnesses(anchored: Any) -> None:
    first, second = TestWitness("w.example/1"), TestWitness("w.example/2")
    group = {"both": WitnessGroup(2, ("one", "two"))}
    policy = TrustPolicy(
        logs=(KEY.verifier_key,), witnesses={"one": first.key, "two": second.key}, groups=group, quorum="both"
    )
    proof = anchored.prove_signed(anchored.ids[0], anchored.signed)
    once = forged(proof, checkpoint=lambda note: encode_note(first.cosign(parse_note(note.encode()))).decode())
    twice = forged(once, checkpoint=lambda note: encode_note(second.cosign(parse_note(note.encode()))).decode())
    for data in (proof, once):
        with pytest.raises(ProofError, match="too few witnesses"):
            verify_proof(data, anchored.cas, Trust(policy=policy))
    assert verify_proof(twice, anchored.cas, Trust(policy=policy)).checkpoint.witnesses == ("one", "two")


def test_the_times_at_which_witnesses_signed_are_printed(anchored: Any, tmp_path: Path) -> None:
    times = {"one": 1_790_000_300, "two": 2**63 - 1, "three": 1_790_000_000}
    witnesses = {name: TestWitness(f"w.example/{name}") for name in times}
    note = parse_note(parse_canonical(anchored.prove_signed(anchored.ids[0], anchored.signed))["checkpoint"].encode())
    for name, time in times.items():
        note = witnesses[name].cosign(note, time)
    proof, policy = tmp_path / "proof.json", tmp_path / "policy"
    data = anchored.prove_signed(anchored.ids[0], anchored.signed)
    proof.write_bytes(forged(data, checkpoint=lambda _: encode_note(note).decode()))
    lines = [f"log {KEY.verifier_key}", *(f"witness {name} {each.key}" for name, each in witnesses.items())]
    policy.write_text("\n".join([*lines, "group some 2 one two three", "quorum some", ""]), "utf-8")
    command = ["verify", str(proof), "--cas", str(anchored.cas.root), "--policy", str(policy), "--data", str(tmp_path)]
    shown = run_command(*command)
    assert (
        "\nThese witnesses signed it: three at 2026-09-21T14:13:20Z, one at 2026-09-21T14:18:20Z, two at an invalid "
        "time.\n"
    ) in shown.out
    checkpoint = json.loads(run_command(*command, "--json").out)["checkpoint"]
    assert checkpoint["witnesses"] == ["one", "three", "two"]
    assert checkpoint["cosignatures"] == [
        {"witness": "three", "time": 1_790_000_000_000_000},
        {"witness": "one", "time": 1_790_000_300_000_000},
        {"witness": "two", "time": None},
    ]


def test_a_pin_is_compared_with_the_entry_of_the_anchor_alone(anchored: Any) -> None:
    hashes = [entry.hash for entry in anchored.ledger.entries()]
    data = anchored.prove_signed(anchored.ids[0], anchored.signed)
    verified = verify_proof(data, anchored.cas, Trust(ledger_head=hashes[0]))
    assert (verified.pinned, verified.checkpoint) == (True, None)  # nobody vouches for the checkpoint
    both = verify_proof(data, anchored.cas, Trust(ledger_head=hashes[0], policy=TRUST.policy))
    assert both.checkpoint is not None and both.checkpoint.signed_by
    for pin in (hashes[1], hashes[-1], "0" * 64, ""):
        with pytest.raises(ProofError, match=r"verify it with --key, or make it with `millstream prove --chain`"):
            verify_proof(data, anchored.cas, Trust(ledger_head=pin))
    with pytest.raises(ProofError):
        verify_proof(data, anchored.cas, Trust(ledger_head=hashes[1], policy=TRUST.policy))


def test_the_part_about_the_ledger_is_a_proof_file(anchored: Any) -> None:
    proof = decode_proof(anchored.prove_signed(anchored.ids[-1], anchored.signed))
    leaf = leaf_hash(encode_entry(proof.entry))
    data = encode_tlog_proof(tlog_proof(proof))
    assert verify_tlog_proof(data, leaf, TRUST.policy).checkpoint.origin == "example.org/anchors"
    assert data.startswith(b"c2sp.org/tlog-proof@v1\nindex 1\n")


def test_a_kept_proof_of_version_1_still_verifies() -> None:
    data, head = (KEPT / "proof.json").read_bytes(), (KEPT / "head.txt").read_text().strip()
    cas = LocalCas(KEPT / "cas")
    verified = verify_proof(data, cas, Trust(ledger_head=head))
    assert (verified.version, verified.pinned, verified.ledger_head, verified.checkpoint) == (1, True, head, None)
    with pytest.raises(ProofError, match=r"has version 1 and no checkpoint .* use --ledger-head"):
        verify_proof(data, cas, TRUST)


def test_a_proof_that_could_not_be_verified_is_not_made(anchored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover_module, "MAX_PROOF_BYTES", 3000)
    with pytest.raises(ProofError, match="make it without --chain"):
        anchored.prove(anchored.ids[0])
    monkeypatch.setattr("millstream.anchoring.proof.MAX_PROOF_BYTES", 3000)
    with pytest.raises(ProofError, match="the limit is 3,000 bytes"):
        encode_proof({"message": "x" * 3000})


def test_verifying_with_a_key_loads_little(anchored: Any, tmp_path: Path) -> None:
    code = "import sys, millstream.anchoring.proof, millstream.anchoring.local_cas; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for module in ("sqlalchemy", "cryptography", "millstream.log", "millstream.anchoring.transparency.ledger_tree"):
        assert f"'{module}'" not in loaded
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(anchored.cas.root, elsewhere)
    data = anchored.prove_signed(anchored.ids[3], anchored.signed)
    assert verify_proof(data, LocalCas(elsewhere), TRUST).id == anchored.ids[3]
