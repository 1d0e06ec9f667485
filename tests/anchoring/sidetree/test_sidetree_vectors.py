"""Every vector of the specification: hashes, commitments, signatures, long form, and each state of resolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    Operation,
    OperationType,
    long_form,
    parse_did,
    parse_request,
    read_batch,
    resolution,
    resolve,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import commitment_of, commitment_to, decode, hash_of

ROAD = ("create", "update", "recover", "deactivate")


@pytest.fixture(scope="module")
def operations(vector_bytes: Callable[[str], bytes]) -> dict[str, Operation]:
    return {name: parse_request(vector_bytes(f"operations/{name}Operation"), SIDETREE) for name in ROAD}


def test_the_suffix_is_the_hash_of_the_suffix_data(operations: dict[str, Operation], vector: Any) -> None:
    did = vector("resolution/did")["shortFormDid"]
    assert did == f"did:sidetree:{operations['create'].suffix}"
    assert {operation.suffix for operation in operations.values()} == {operations["create"].suffix}


def test_the_delta_hashes_are_those_of_the_vectors(operations: dict[str, Operation]) -> None:
    create = operations["create"]
    assert create.suffix_data is not None
    assert hash_of(create.delta) == create.suffix_data["deltaHash"]
    for name in ("update", "recover"):
        signed = operations[name].signed
        assert signed is not None
        assert hash_of(operations[name].delta) == signed.payload["deltaHash"]


def test_each_reveal_value_opens_the_commitment_before_it(operations: dict[str, Operation]) -> None:
    create, update, recover, deactivate = (operations[name] for name in ROAD)
    assert create.delta is not None and create.suffix_data is not None and recover.signed is not None
    assert commitment_of(update.reveal_value) == create.delta["updateCommitment"]
    assert commitment_of(recover.reveal_value) == create.suffix_data["recoveryCommitment"]
    assert commitment_of(deactivate.reveal_value) == recover.signed.payload["recoveryCommitment"]
    assert commitment_to(update.key) == create.delta["updateCommitment"]


@pytest.mark.parametrize("name", ROAD[1:])
def test_the_signatures_verify(operations: dict[str, Operation], name: str) -> None:
    signed = operations[name].signed
    assert signed is not None
    assert signed.verifies_with(operations[name].key)


def test_the_deactivate_of_the_specification_has_a_high_s_and_verifies(operations: dict[str, Operation]) -> None:
    signed = operations["deactivate"].signed
    assert signed is not None
    s = int.from_bytes(decode(signed.text.rpartition(".")[2])[32:], "big")
    assert s > 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 // 2
    assert signed.verifies_with(operations["deactivate"].key)


@pytest.mark.parametrize("steps", range(1, 5))
def test_resolution_answers_what_the_specification_says_after_every_step(
    operations: dict[str, Operation], vector: Any, steps: int
) -> None:
    anchored = [AnchoredOperation(number, 0, operations[name]) for number, name in enumerate(ROAD[:steps])]
    did = parse_did(vector("resolution/did")["shortFormDid"], SIDETREE)
    expected = vector(f"resolution/after{ROAD[steps - 1].title()}")
    for order in (anchored, anchored[::-1]):
        assert resolution(did, resolve(order)) == expected


def test_the_long_form_resolves_before_anything_is_anchored(vector: Any) -> None:
    did = parse_did(vector("resolution/did")["longFormDid"], SIDETREE)
    assert resolution(did, None) == vector("resolution/longFormResponseDidDocument")


def test_the_long_form_is_made_from_the_create(operations: dict[str, Operation], vector: Any) -> None:
    assert long_form(operations["create"], SIDETREE) == vector("resolution/did")["longFormDid"]


def test_the_vectors_survive_the_files_of_a_batch(operations: dict[str, Operation], vector: Any) -> None:
    anchored = []
    for number, name in enumerate(ROAD):
        written = write_batch([operations[name]], SIDETREE)
        files = {file.uri: file.data for file in written.files}
        batch = read_batch(written.anchor, lambda uri, limit, files=files: files[uri], SIDETREE)
        assert batch.operations == (operations[name],)
        anchored.append(AnchoredOperation(number, 0, batch.operations[0]))
    did = parse_did(vector("resolution/did")["shortFormDid"], SIDETREE)
    assert resolution(did, resolve(anchored)) == vector("resolution/afterDeactivate")
    assert anchored[3].operation.type == OperationType.DEACTIVATE
