"""A ``.tlog-proof`` that a node writes is verified by torchwood with a policy, and one of torchwood by us."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from transparency.interop.program import GoProgram, RefusedError

from millstream.anchoring.errors import ProofError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import inclusion_path, leaf_hash, merkle_root
from millstream.anchoring.proof import Proof, decode_proof
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.policy import parse_policy
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from millstream.anchoring.transparency.tlog_proof import (
    TlogProof,
    decode_tlog_proof,
    encode_tlog_proof,
    verify_tlog_proof,
)
from millstream.node import Node
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batch
from suite.sizes import sized
from support.commands import run_command
from support.witnesses import TestWitness

pytestmark = pytest.mark.clients

ANCHORS = sized(quick=3, ci=20, long=300)
ONE, TWO = TestWitness("witness.example/one"), TestWitness("witness.example/two")


def test_a_proof_file_of_a_node_is_verified_by_torchwood(torchwood: GoProgram, tmp_path: Path) -> None:
    data = tmp_path / "node"
    with Node.open(Settings(data=str(data)), create=True) as node:
        for number in range(1, ANCHORS + 1):
            node.anchoring.batch_writer.add("weather", [make_batch([number])], config=CONFIG)
            node.anchoring.batch_writer.cut(force=True)
    key = run_command("anchor", "key", "show", "--data", str(data)).out.strip()
    policy = _written(tmp_path / "policy", f"log {key}\nquorum none\n".encode())
    path, entry = tmp_path / "x.tlog-proof", tmp_path / "entry"
    for message in {1, 2, ANCHORS}:
        code, out, err = run_command("prove", "weather", str(message), "--tlog", str(path), "--data", str(data))
        assert (code, err) == (0, "")
        proof = decode_proof(out.encode())
        assert isinstance(proof, Proof)
        entry.write_bytes(encode_entry(proof.entry))
        assert torchwood("verify", policy, path, entry) is True
        whole = path.read_bytes()
        for changed in (whole.replace(b"index ", b"index 1"), whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
            with pytest.raises(RefusedError):
                torchwood("verify", policy, _written(tmp_path / "changed", changed), entry)
        entry.write_bytes(encode_entry(proof.entry) + b"\n")
        with pytest.raises(RefusedError):
            torchwood("verify", policy, path, entry)


def test_torchwood_counts_the_witnesses_of_a_policy_as_we_do(torchwood: GoProgram, tmp_path: Path) -> None:
    key, leaves = SigningKey("example.org/log", bytes(range(32))), [leaf_hash(b"%d" % at) for at in range(300)]
    plain = sign_note(Checkpoint(key.name, 300, merkle_root(leaves)).text, [key])
    path, entry = tuple(inclusion_path(leaves, 257)), _written(tmp_path / "entry", b"257")
    lines = f"log {key.verifier_key}\nwitness one {ONE.key}\nwitness two {TWO.key}\ngroup both all one two\n"
    notes = [plain, ONE.cosign(plain), TWO.cosign(plain), TWO.cosign(ONE.cosign(plain))]
    for quorum, enough in {"none": notes, "one": [notes[1], notes[3]], "both": [notes[3]]}.items():
        policy = _written(tmp_path / "policy", f"{lines}quorum {quorum}\n".encode())
        for note in notes:
            data, trusted = encode_tlog_proof(TlogProof(257, path, encode_note(note))), note in enough
            assert _verified_by_us(data, policy.read_bytes()) is trusted
            if trusted:
                assert torchwood("verify", policy, _written(tmp_path / "proof", data), entry) is True
                answer = torchwood("checkpoint", policy, _written(tmp_path / "checkpoint", encode_note(note)))
                assert answer == {"origin": key.name, "size": 300}
            else:
                with pytest.raises(RefusedError):
                    torchwood("verify", policy, _written(tmp_path / "proof", data), entry)


def test_a_proof_file_of_torchwood_is_verified_by_us(torchwood: GoProgram, tmp_path: Path) -> None:
    key, leaves = SigningKey("example.org/log", bytes(range(32))), [leaf_hash(b"%d" % at) for at in range(70)]
    checkpoint = encode_note(sign_note(Checkpoint(key.name, 70, merkle_root(leaves)).text, [key]))
    path = inclusion_path(leaves, 69)
    hashes = ",".join(b64encode(step).decode() for step in path)
    policy = f"log {key.verifier_key}\nquorum none\n".encode()
    for extra in ("", "more data"):
        made = torchwood("format", _written(tmp_path / "checkpoint", checkpoint), 69, extra, hashes).encode()
        assert decode_tlog_proof(made) == TlogProof(69, tuple(path), checkpoint, extra.encode() or None)
        assert encode_tlog_proof(decode_tlog_proof(made)) == made
        verify_tlog_proof(made, leaves[69], parse_policy(policy))


def _verified_by_us(data: bytes, policy: bytes) -> bool:
    try:
        verify_tlog_proof(data, leaf_hash(b"257"), parse_policy(policy))
    except ProofError:
        return False
    return True


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
