"""What a client may send, rule by rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.sidetree import (
    ORB,
    SIDETREE,
    OperationType,
    PrivateKey,
    Profile,
    RequestError,
    parse_request,
    reference_rules,
)
from millstream.anchoring.sidetree.encoding import canonical, commitment_to, encode, hash_of
from millstream.anchoring.sidetree.keys import check_key, verifier
from millstream.anchoring.sidetree.operations import parse_with_canonical
from millstream.anchoring.sidetree.patches import check_patches
from millstream.anchoring.sidetree.requests import create_request, recover_request
from millstream.anchoring.sidetree.signatures import sign
from millstream.testing.dids import DidOwner, add_service, secret_key

Request = dict[str, Any]
Change = Callable[[Request], object]

CREATE, UPDATE = DidOwner("rules").create.request, DidOwner("rules").update().request
RECOVER, DEACTIVATE = DidOwner("rules").recover().request, DidOwner("rules").deactivate().request


def code_of(request: object, profile: Any = SIDETREE) -> str:
    with pytest.raises(RequestError) as caught:
        parse_request(request if isinstance(request, bytes) else json.dumps(request).encode(), profile)
    return caught.value.code


def changed(request: Any, change: Change) -> Request:
    copy: Request = json.loads(json.dumps(request))
    change(copy)
    return copy


@pytest.mark.parametrize(("curve", "profile"), [("secp256k1", SIDETREE), ("secp256k1", ORB), ("Ed25519", ORB)])
def test_the_four_operations_of_one_person_are_taken(curve: str, profile: Profile) -> None:
    person = DidOwner("four", curve, profile)
    kinds = [o.type for o in (person.create, person.update(), person.recover(), person.deactivate())]
    assert kinds == list(OperationType)


@pytest.mark.parametrize("request_", [CREATE, UPDATE, RECOVER, DEACTIVATE], ids=lambda r: r["type"])
def test_an_operation_gives_back_the_request_it_came_from(request_: Request) -> None:
    assert parse_request(json.dumps(request_).encode(), SIDETREE).request == request_


@pytest.mark.parametrize("text", ["plain", "Zürich", "\U0001f600", '"\\', "a:0,b"])
@pytest.mark.parametrize("profile", [SIDETREE, ORB], ids=lambda profile: profile.name)
def test_a_request_is_parsed_together_with_its_canonical_form(text: str, profile: Profile) -> None:
    endpoint = {"z": text, "a": [text, {"toJ": True, "b": 1 if profile is SIDETREE else text}]}
    patch = {"action": "add-services", "services": [{"id": "s", "type": "t", "serviceEndpoint": endpoint}]}
    person = DidOwner("canonical", profile=profile)
    operations = [person.create, person.update([patch]), person.recover([patch]), person.deactivate()]
    create = create_request([patch], update_key=person.update_key.public, recovery_key=person.recovery_key.public)
    requests = [json.dumps(dict(reversed(operation.request.items()))).encode() for operation in operations]
    if profile is ORB:
        data = {**operations[0].request, "suffixData": {**(operations[0].suffix_data or {}), "anchorOrigin": text}}
        requests.append(json.dumps(data).encode())
    for request in (*requests, create):
        operation, form = parse_with_canonical(request, profile)
        assert operation == parse_request(request, profile)
        assert form == canonical(operation.request) == canonical(json.loads(request))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"{", "not_json"),
        (b"[]", "not_json"),
        (b"\xff", "not_json"),
        (b"[" * 9000, "not_json"),
        (b" " * 10_001, "operation_too_large"),
        ({}, "type"),
        ({"type": "destroy"}, "type"),
        ({"type": ["create"]}, "type"),
        ({"type": "create"}, "members"),
        ({**CREATE, "more": 1}, "members"),
        ({**CREATE, "suffixData": []}, "suffix_data"),
        (changed(CREATE, lambda r: r["suffixData"].update(more=1)), "suffix_data"),
        (changed(CREATE, lambda r: r["suffixData"].update(type="abcde")), "suffix_data"),
        (changed(CREATE, lambda r: r["suffixData"].update(type="a/b")), "suffix_data"),
        (changed(CREATE, lambda r: r["suffixData"].update(anchorOrigin="x")), "suffix_data"),
        (changed(CREATE, lambda r: r["suffixData"].update(deltaHash="short")), "not_multihash"),
        (changed(CREATE, lambda r: r["suffixData"].update(deltaHash=hash_of("other"))), "delta_hash"),
        (changed(CREATE, lambda r: r["delta"].update(more=1)), "delta"),
        (changed(CREATE, lambda r: r["delta"].update(patches=None)), "patch_invalid"),
        (changed(CREATE, lambda r: r["suffixData"].update(type="")), "suffix_data"),
        (changed(CREATE, lambda r: r["delta"].update(updateCommitment=7)), "not_multihash"),
        (changed(UPDATE, lambda r: r.update(didSuffix="é")), "not_multihash"),
        (changed(UPDATE, lambda r: r.update(didSuffix="A" * 101)), "not_multihash"),
        (changed(UPDATE, lambda r: r.update(revealValue=hash_of("a new key"))), "signature"),
        (changed(UPDATE, lambda r: r.update(signedData="a.b")), "signed_data_invalid"),
        (changed(UPDATE, lambda r: r.update(signedData=".." )), "signed_data_invalid"),
        (changed(UPDATE, lambda r: r["delta"].update(patches=[add_service("swapped")])), "delta_hash"),
        (changed(DEACTIVATE, lambda r: r.update(didSuffix=hash_of("another"))), "signed_data_invalid"),
    ],
)  # fmt: skip
def test_a_request_that_breaks_a_rule_is_refused_by_name(request_: object, code: str) -> None:
    assert code_of(request_) == code


def test_a_delta_is_measured_in_its_canonical_form() -> None:
    at_limit = delta_of_size(1000)
    spaced = json.dumps(create_of(at_limit), indent=8).encode()
    assert parse_request(spaced, SIDETREE).delta == at_limit
    assert code_of(create_of(delta_of_size(1001))) == "delta_too_large"
    assert parse_request(json.dumps(create_of(delta_of_size(1001))).encode(), ORB).delta is not None


def test_a_signature_of_another_key_is_refused() -> None:
    person = DidOwner("thief")
    payload = {"updateKey": person.update_key.public, "deltaHash": hash_of(UPDATE["delta"])}
    forged = sign(payload, secret_key("the thief's own"))
    request = {**UPDATE, "revealValue": hash_of(person.update_key.public), "signedData": forged}
    assert code_of(request) == "signature"


def test_a_signature_over_other_bytes_is_refused() -> None:
    head, payload, signature = UPDATE["signedData"].split(".")
    flipped = signature[:10] + ("A" if signature[10] != "A" else "B") + signature[11:]
    assert code_of({**UPDATE, "signedData": f"{head}.{payload}.{flipped}"}) == "signature"


@pytest.mark.parametrize(
    "header", [{"alg": "none"}, {"alg": "ES384"}, {"alg": ["ES256K"]}, {}, {"alg": "ES256K", "kid": "1"}]
)
def test_a_header_other_than_the_algorithm_is_refused(header: dict[str, Any]) -> None:
    _, payload, signature = UPDATE["signedData"].split(".")
    assert (
        code_of({**UPDATE, "signedData": f"{encode(canonical(header))}.{payload}.{signature}"}) == "signed_data_invalid"
    )


def test_an_algorithm_that_does_not_fit_the_key_does_not_verify() -> None:
    _, payload, signature = UPDATE["signedData"].split(".")
    header = encode(canonical({"alg": "EdDSA"}))
    request = {**UPDATE, "signedData": f"{header}.{payload}.{signature}"}
    assert code_of(request) == "signed_data_invalid", "the reference implementation knows ES256K alone"
    with pytest.raises(RequestError) as caught:
        parse_request(json.dumps(request).encode(), ORB)
    assert caught.value.code == "signature"


def test_a_revealed_key_cannot_be_committed_to_again() -> None:
    person = DidOwner("again")
    delta = {"patches": [add_service("x")], "updateCommitment": commitment_to(person.update_key.public)}
    payload = {"updateKey": person.update_key.public, "deltaHash": hash_of(delta)}
    request = {
        "type": "update",
        "didSuffix": person.suffix,
        "revealValue": hash_of(person.update_key.public),
        "delta": delta,
        "signedData": sign(payload, person.update_key),
    }
    assert code_of(request) == "key_reuse"


def test_one_key_for_updates_and_recovery_is_refused() -> None:
    delta = {"patches": [add_service("x")], "updateCommitment": commitment_to(secret_key("one").public)}
    assert code_of(create_of(delta, recovery="one")) == "key_reuse"


@pytest.mark.parametrize(
    ("recovery", "update"),
    [("next", "next"), ("next", "revealed"), ("revealed", "next"), ("revealed", "revealed")],
)
def test_a_recover_must_commit_to_two_new_keys(recovery: str, update: str) -> None:
    person = DidOwner("recovered")
    keys = {"revealed": person.recovery_key, "next": secret_key("next recovered")}
    request = recover_request(
        person.suffix,
        [add_service("x")],
        key=person.recovery_key,
        next_recovery_key=keys[recovery].public,
        next_update_key=keys[update].public,
    )
    for profile in (SIDETREE, ORB):
        with pytest.raises(RequestError) as caught:
            parse_request(request, profile)
        assert caught.value.code == "key_reuse"


def test_a_coordinate_with_padding_is_told_that_it_has_none() -> None:
    jwk = {**secret_key("any").public}
    with pytest.raises(
        RequestError, match="'x' of a public key must be 32 bytes in base64url without padding, 43 char"
    ):
        check_key({**jwk, "x": f"{jwk['x']}="}, SIDETREE)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda k: k.pop("y"), "key_invalid"),
        (lambda k: k.update(d="secret"), "key_invalid"),
        (lambda k: k.update(kty="OKP"), "key_invalid"),
        (lambda k: k.update(crv="P-384"), "key_not_allowed"),
        (lambda k: k.update(crv=["secp256k1"]), "key_not_allowed"),
        (lambda k: k.update(x=k["x"][:-1]), "key_invalid"),
        (lambda k: k.update(x=7), "key_invalid"),
        (lambda k: k.update(nonce=encode(bytes(16))), "key_invalid"),
    ],
)
def test_a_public_key_has_exactly_its_members(change: Callable[[dict[str, Any]], object], code: str) -> None:
    jwk: dict[str, Any] = dict(secret_key("any").public)
    change(jwk)
    with pytest.raises(RequestError) as caught:
        check_key(jwk, SIDETREE)
    assert caught.value.code == code
    assert code == "key_invalid" or str(caught.value).endswith("allowed: secp256k1")


def test_orb_allows_a_nonce_in_a_key_and_an_empty_y_under_ed25519() -> None:
    jwk: dict[str, Any] = dict(secret_key("any", "Ed25519").public)
    assert check_key({**jwk, "nonce": encode(bytes(16)), "y": ""}, ORB)
    with pytest.raises(RequestError):
        check_key({**jwk, "y": ""}, SIDETREE)


def test_a_point_off_the_curve_is_refused() -> None:
    off = {**secret_key("any").public, "y": encode(bytes(31) + b"\x05")}
    payload = {"updateKey": off, "deltaHash": hash_of(UPDATE["delta"])}
    signed = sign(payload, secret_key("any"))
    assert code_of({**UPDATE, "revealValue": hash_of(off), "signedData": signed}) == "signature"


def test_a_private_key_that_does_not_belong_to_its_public_half_is_refused() -> None:
    jwk = {**secret_key("one").jwk, "d": secret_key("two").jwk["d"]}
    with pytest.raises(RequestError, match="'d' of the JWK does not match its public members"):
        PrivateKey(jwk)
    assert "d" not in repr(secret_key("one")).replace("ed", "").replace("<PrivateKey", "")


@given(st.sampled_from([CREATE, UPDATE, RECOVER, DEACTIVATE]), st.data())
def test_no_changed_byte_of_a_request_ever_does_more_than_refuse(request: Request, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(request).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_request(bytes(raw), SIDETREE)
    except RequestError as error:
        assert error.code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([CREATE, UPDATE, RECOVER, DEACTIVATE]), JSON, st.data())
def test_no_other_value_anywhere_in_a_request_ever_does_more_than_refuse(
    request: Request, value: Any, data: st.DataObject
) -> None:
    copy: Any = json.loads(json.dumps(request))
    place: Any = copy
    while True:
        name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[name], dict | list) or not place[name] or data.draw(st.booleans()):
            place[name] = value
            break
        place = place[name]
    try:
        parse_request(json.dumps(copy).encode(), SIDETREE)
    except RequestError as error:
        assert error.code


def create_of(delta: Any, recovery: str = "recovery") -> Request:
    commitment = commitment_to(secret_key(recovery).public)
    return {
        "type": "create",
        "suffixData": {"deltaHash": hash_of(delta), "recoveryCommitment": commitment},
        "delta": delta,
    }


def delta_of_size(size: int) -> Request:
    """A delta of exactly *size* canonical bytes."""
    services = [
        {"id": f"s{n}", "type": "page", "serviceEndpoint": "https://example.org/" + "x" * 200} for n in range(3)
    ]
    patch: Request = {"action": "add-services", "services": services}
    delta = {"patches": [patch], "updateCommitment": commitment_to(secret_key("update").public)}
    missing = size - len(canonical(delta))
    services[0]["serviceEndpoint"] += "y" * missing
    assert missing >= 0 and len(canonical(delta)) == size
    return delta


@pytest.mark.parametrize(
    ("action", "member", "value"),
    [
        ("add-services", "services", 5),
        ("remove-services", "ids", 5),
        ("remove-public-keys", "ids", ["!"]),
        ("replace", "document", 5),
        ("add-public-keys", "keys", []),
    ],
)
def test_an_invalid_patch_is_told_with_its_action(action: str, member: str, value: object) -> None:
    patch = {"action": action, member: value}
    with pytest.raises(RequestError, match=f"^patch '{action}': "):
        check_patches([patch], SIDETREE)
    with pytest.raises(RequestError, match=f"^patch '{action}': "):
        reference_rules.check_delta({"patches": [patch], "updateCommitment": ""}, SIDETREE)


def test_ids_that_are_no_list_are_told_with_their_type() -> None:
    with pytest.raises(RequestError, match="'ids' must be a list of strings, the ids to remove"):
        check_patches([{"action": "remove-services", "ids": 5}], SIDETREE)


@pytest.mark.parametrize("curve", ["secp256k1", "P-256"])
def test_a_point_off_the_curve_is_told_with_its_key(curve: str) -> None:
    x, y = encode(bytes(31) + b"\x01"), encode(bytes(31) + b"\x05")
    with pytest.raises(RequestError, match=f"with x '{x}' is not a point on {curve}"):
        verifier(curve, x, y)
