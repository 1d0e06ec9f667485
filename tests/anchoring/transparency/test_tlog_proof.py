from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import ProofError
from millstream.anchoring.merkle import inclusion_path, leaf_hash, merkle_root
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.policy import trusting
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from millstream.anchoring.transparency.tlog_proof import (
    TlogProof,
    decode_tlog_proof,
    encode_tlog_proof,
    verify_tlog_proof,
)
from suite.sizes import examples, sized

KEY = SigningKey("example.org/log", bytes(range(32)))
TRUST = trusting([KEY.verifier_key])
LEAVES = [leaf_hash(b"entry %d" % number) for number in range(21)]
CHECKPOINT = encode_note(sign_note(Checkpoint("example.org/log", 21, merkle_root(LEAVES)).text, [KEY]))


def proof_of(index: int) -> bytes:
    return encode_tlog_proof(TlogProof(index, tuple(inclusion_path(LEAVES, index)), CHECKPOINT))


def test_a_proof_file_has_the_documented_lines_and_holds_for_its_entry_alone() -> None:
    lines = proof_of(4).decode().split("\n")
    assert lines[:2] == ["c2sp.org/tlog-proof@v1", "index 4"]
    assert lines[7:10] == ["", "example.org/log", "21"]
    assert verify_tlog_proof(proof_of(4), LEAVES[4], TRUST).checkpoint.size == 21
    with pytest.raises(ProofError, match="entry 5 is not in the tree"):
        verify_tlog_proof(proof_of(4), LEAVES[5], TRUST)
    with pytest.raises(ProofError, match="is not trusted"):
        verify_tlog_proof(proof_of(4), LEAVES[4], trusting([SigningKey("example.org/log", bytes(32)).verifier_key]))


def test_the_proof_of_the_only_entry_has_no_hashes() -> None:
    checkpoint = encode_note(sign_note(Checkpoint("example.org/log", 1, LEAVES[0]).text, [KEY]))
    data = encode_tlog_proof(TlogProof(0, (), checkpoint))
    assert data.startswith(b"c2sp.org/tlog-proof@v1\nindex 0\n\nexample.org/log\n1\n")
    assert verify_tlog_proof(data, LEAVES[0], TRUST).checkpoint.size == 1


def test_flipping_any_byte_of_ten_proof_files_makes_them_fail() -> None:
    draw = random.Random(3)
    for index in sized(quick=[20], ci=[0, 13, 20], long=range(10)):
        data = proof_of(index)
        for place in range(len(data)):
            changed = data[:place] + bytes([data[place] ^ draw.randrange(1, 256)]) + data[place + 1 :]
            with pytest.raises(ProofError):
                verify_tlog_proof(changed, LEAVES[index], TRUST)


@given(
    st.integers(0, 2**62),
    st.lists(st.binary(min_size=32, max_size=32), max_size=63),
    st.none() | st.binary(max_size=99),
)
@examples(ci=50, long=1000)
def test_a_proof_file_reads_back_as_it_was_written(index: int, path: list[bytes], extra: bytes | None) -> None:
    proof = TlogProof(index, tuple(path), CHECKPOINT, extra)
    assert decode_tlog_proof(encode_tlog_proof(proof)) == proof


@given(st.binary(max_size=200))
@examples(ci=100, long=5000)
def test_any_other_bytes_are_refused_with_a_proof_error(data: bytes) -> None:
    whole = proof_of(3)
    for given_bytes in (data, whole[:60] + data + whole[60:], whole + data, data + whole):
        try:
            proof = decode_tlog_proof(given_bytes)
        except ProofError:
            continue
        assert encode_tlog_proof(proof) == given_bytes


@pytest.mark.parametrize(
    "data",
    [
        proof_of(3).replace(b"@v1", b"@v2"),
        proof_of(3).replace(b"index 3", b"index 03"),
        proof_of(3).replace(b"index 3", b"index -1"),
        proof_of(3).replace(b"index 3", b"index 21"),
        proof_of(3).replace(b"index 3\n", b""),
        proof_of(3).replace(b"index 3", b"index 99999999999999999999"),
        proof_of(3).replace(b"\n\n", b"\nAAAA\n\n", 1),
        encode_tlog_proof(TlogProof(3, (bytes(32),) * 64, CHECKPOINT)),
        proof_of(3) + b"\n",
        proof_of(3).replace(b"\n", b"\r\n"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ProofError):
        verify_tlog_proof(data, LEAVES[3], TRUST)
