"""What Sidetree's reference implementation takes and refuses, as it was measured: our reader says the same."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    Chain,
    Operation,
    OperationType,
    RequestError,
    parse_did,
    parse_request,
    resolution,
    resolve,
    resolver,
)
from millstream.anchoring.sidetree.encoding import canonical, encode, hash_of
from millstream.anchoring.sidetree.javascript import decode_base64, number_text, stringify, utf16_length
from millstream.anchoring.sidetree.operations import check_delta, stored_operation
from millstream.anchoring.sidetree.patches import check_patches
from millstream.anchoring.sidetree.reference_json import ReferenceJsonError, decode_json, decode_native
from millstream.anchoring.sidetree.reference_reader import as_applied
from millstream.anchoring.sidetree.reference_rules import check_delta as check_read_delta
from millstream.anchoring.sidetree.reference_rules import check_multihash
from millstream.anchoring.sidetree.requests import update_request
from millstream.anchoring.sidetree.uris import check_uri
from millstream.testing.dids import DidOwner, add_service, secret_key

VERDICTS = json.loads((Path(__file__).parent / "vectors" / "verdicts.json").read_text())


def in_a_file(delta: Any) -> Any:
    """*delta* as a reader finds it in a chunk file."""
    return decode_json(json.dumps({"deltas": [delta]}).encode())["deltas"][0]


@pytest.mark.parametrize("verdict", VERDICTS, ids=[verdict["case"] for verdict in VERDICTS])
def test_a_delta_in_a_file_is_judged_as_the_reference_judges_it(verdict: dict[str, Any]) -> None:
    if verdict["reference"] == "ok":
        assert check_read_delta(in_a_file(verdict["delta"]), SIDETREE)
        return
    with pytest.raises((RequestError, ReferenceJsonError)):
        check_read_delta(in_a_file(verdict["delta"]), SIDETREE)


@pytest.mark.parametrize("verdict", VERDICTS, ids=[verdict["case"] for verdict in VERDICTS])
def test_no_delta_is_taken_from_a_client_that_the_reference_refuses(verdict: dict[str, Any]) -> None:
    try:
        check_delta(verdict["delta"], SIDETREE)
    except RequestError as error:
        assert error.code
    else:
        assert verdict["reference"] == "ok"


PORTABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(PORTABLE, st.text(max_size=40))
def test_whatever_a_client_may_send_is_read_by_all_as_it_was_meant(value: Any, endpoint: str) -> None:
    endpoints = {"a": {"v": value}, "b": endpoint}
    services = [{"id": name, "type": "T", "serviceEndpoint": found} for name, found in endpoints.items()]
    delta = {"patches": [{"action": "add-services", "services": services}], "updateCommitment": hash_of("next")}
    try:
        check_delta(delta, SIDETREE)
    except RequestError as error:
        assert error.code in ("patch_invalid", "not_portable", "not_canonical", "delta_too_large")
        return
    read = decode_json(canonical({"deltas": [delta]}))["deltas"][0]
    assert read == delta and check_read_delta(read, SIDETREE)


@pytest.mark.parametrize("value", [2**53 + 1, 1e21, 1e-7, {"toJSON": 1}, {"__proto__": {}}, 10**400])
def test_what_some_would_read_otherwise_is_refused_with_the_reason(value: Any) -> None:
    service = {"id": "a", "type": "T", "serviceEndpoint": {"v": value}}
    patch = {"action": "add-services", "services": [service]}
    delta = {"patches": [patch], "updateCommitment": hash_of("next")}
    suffix_data = {"deltaHash": hash_of(delta), "recoveryCommitment": hash_of("recovery")}
    with pytest.raises(RequestError) as caught:
        parse_request(json.dumps({"type": "create", "suffixData": suffix_data, "delta": delta}).encode(), SIDETREE)
    assert caught.value.code in ("not_portable", "not_json")


@pytest.mark.parametrize(
    ("endpoint", "is_portable"),
    [
        ({"v": "toJSON"}, True),
        (["toJSON", {"a": "toJSON", "n": 1}], True),
        ({'a"toJSON': "b", 'b,"toJSON': '{"toJSON":'}, True),
        ({'"toJSON"': "a", "toJSON:": "b", "to": ',"toJSON":"'}, True),
        ({"toJSON": None}, False),
        ({"toJSON": "a", "z": "b"}, False),
        ({"a": {"b": [{"a": "c", "toJSON": {}}]}}, False),
        ([{"é": "toJSON", "toJSON": 1}], False),
    ],
)
def test_only_a_member_called_to_json_is_refused_and_not_a_text(endpoint: Any, is_portable: bool) -> None:
    service = {"id": "toJSON", "type": "toJSON", "serviceEndpoint": {"v": endpoint}}
    patch = {"action": "add-services", "services": [service]}
    delta = {"patches": [patch], "updateCommitment": hash_of("next")}
    if is_portable:
        assert check_delta(delta, SIDETREE) == delta == decode_json(canonical(delta))
        assert canonical(delta) == stringify(delta) == rfc8785.dumps(delta)
        return
    with pytest.raises(RequestError, match="member 'toJSON'") as caught:
        check_delta(delta, SIDETREE)
    assert caught.value.code == "not_portable"


@pytest.mark.parametrize(
    "endpoint",
    ["http:a", "http:/x", "http://", "HTTPS://@/", "http://a@/", "https://a:b@?x", "urn:a", "urn:uuid:1", "mailto:a"],
)
def test_an_endpoint_that_the_reference_refuses_is_not_taken(endpoint: str) -> None:
    with pytest.raises(RequestError):
        check_uri(endpoint)
    service = {"id": "a", "type": "T", "serviceEndpoint": endpoint}
    patches = [{"action": "add-services", "services": [service]}]
    with pytest.raises(RequestError):
        check_delta({"patches": patches, "updateCommitment": hash_of("next")}, SIDETREE)


@pytest.mark.parametrize(
    "uri", ["", "//e", "urn:UUID:f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "mailto:a@b", "x:", "http://%"]
)
def test_a_uri_that_the_reference_takes_is_taken(uri: str) -> None:
    check_uri(uri)


@pytest.mark.parametrize(("text", "good"), [
    ("EgEA", True), ("kgABAA", True), ("koCAgICAgIAAAQA", True),
    (encode(b"\x92" + b"\x80" * 145 + b"\0\1\0"), True), (encode(b"\x92" + b"\x80" * 146 + b"\0\1\0"), False),
    ("EgIA", False), ("EwEA", False), ("Eg", False), ("EgEA=", False), ("", False),
])  # fmt: skip
def test_a_multihash_says_its_algorithm_and_length_and_no_more(text: str, good: bool) -> None:
    if good:
        assert check_multihash(text, "this") == text
        return
    with pytest.raises(RequestError):
        check_multihash(text, "this")


@pytest.mark.parametrize(("text", "value"), [
    (b'{"a":1}', {"a": 1}), (b"9007199254740993", float(2**53)), (b"1E5", 1e5), (b"1e400", float("inf")),
    (b'"\\ud83d\\ude00"', "😀"), (b'"\\u005cn"', "\n"), (b'{"a":1e-7,"b":2}', None), (b'{"__proto__":1}', {}),
    (b"[1,]", None), (b"{}x", {}), (b'"\xff"', "\ufffd"), (b'"\\ud800"', "\ud800"), (b'{"a"=01}', {"a": 1}),
    (b"", None), (b'{"a":1,["b":[]}', {
        "a": 1, "[object Object]": {"name": "ParseError", "message": "Unexpected character", "text": ":[]}"},
    }),
])  # fmt: skip
def test_json_is_read_with_the_faults_of_the_references_parser(text: bytes, value: Any) -> None:
    if value is None:
        with pytest.raises(ReferenceJsonError):
            print(decode_json(text))
    else:
        assert decode_json(text) == value


NEXT = '"updateCommitment":"EiDiQ7gPVNT_yjsUNSJHgH6pRj4KQfyynm_KtI9DtnultQ"'


@pytest.mark.parametrize(("delta", "good"), [
    ('{"patches":[],NEXT,"__proto__":{"x":1}}', False),
    ('{"patches":[],NEXT,"__proto__":["a"]}', False),
    ('{"patches":[],NEXT,"__proto__":null}', True),
    ('{"patches":[],NEXT,"__proto__":null,"__proto__":{}}', False),
    ('{"patches":[],NEXT,"__proto__":{"x":1},"__proto__":{}}', True),
    ('{"patches":[],"__proto__":{NEXT}}', True),
    ('{"__proto__":{"__proto__":{"patches":[],NEXT}}}', True),
    ('{"patches":{"__proto__":[]},NEXT}', False),
    ('{"patches":[{"action":"remove-services","__proto__":{"ids":["a"]}}],NEXT}', True),
    ('{"patches":[{"action":"replace","document":{"__proto__":{"x":1}}}],NEXT}', False),
    ('{"patches":[{"action":"replace","__proto__":{"document":{}}}],NEXT}', True),
    ('{"patches":[{"action":"add-services","x":1,"__proto__":{"services":[]}}],NEXT}', True),
])  # fmt: skip
def test_members_that_an_object_inherits_count_as_for_the_reference(delta: str, good: bool) -> None:
    read = decode_json(f'{{"deltas":[{delta}]}}'.replace("NEXT", NEXT).encode())["deltas"][0]
    if good:
        assert check_read_delta(read, SIDETREE)
        return
    with pytest.raises(RequestError):
        check_read_delta(read, SIDETREE)


@pytest.mark.parametrize("text", [
    b'{"a":{"x":"__proto__",{"__proto__":null}:1}}', b'{"a":1,{"toString":1}:1}', b'{"__proto__":tnull}',
])  # fmt: skip
def test_json_at_which_the_references_parser_throws_is_refused(text: bytes) -> None:
    with pytest.raises(ReferenceJsonError):
        print(decode_json(text))


@given(PORTABLE)
def test_usual_json_is_read_as_everybody_reads_it(value: Any) -> None:
    text = stringify(value)
    assert stringify(decode_native(text)) == text
    if b"e+" not in text and b"e-" not in text:
        assert stringify(decode_json(text)) == text


def test_nesting_is_limited_by_a_number_of_ours_and_not_by_python() -> None:
    deep: Any = []
    for _ in range(480):
        deep = [deep]
    assert decode_json(stringify(deep)) == deep
    for depth in (600, 2_000, 3_500):
        assert set(decode_json(b'{"\\u0061":' + b"[" * depth + b"]" * depth + b"}")) == {"a"}
    for depth in (3_700, 100_000):
        with pytest.raises(ReferenceJsonError, match="limit of 3600 levels"):
            decode_json(b'{"\\u0061":' + b"[" * depth + b"]" * depth + b"}")
    for levels in (30, 20_000):
        with pytest.raises(RequestError, match="nested deeper"):
            canonical(nested([1, deep], levels))


@pytest.mark.parametrize("blank", [" ", "\n", "\t \r\n", "\x01"])
def test_the_references_parser_fails_at_very_many_blanks_in_a_row(blank: str) -> None:
    for text, value in (("{BLANKS}", {}), ('{"a":BLANKS1}', {"a": 1}), ("[1BLANKS,2]", [1, 2]), ("[]BLANKS", [])):
        for blanks, good in ((blank * (10_000 // len(blank)), True), (blank * 10_001, text.startswith("[]"))):
            data = text.replace("BLANKS", blanks).encode()
            if good:
                assert decode_json(data) == value
            else:
                with pytest.raises(ReferenceJsonError, match="more than 10,000 blanks"):
                    print(decode_json(data))


def test_a_prototype_that_is_set_very_often_or_lies_very_deep_costs_little() -> None:
    members = b",".join(b'"a%d":1' % number for number in range(20_000))
    often = decode_json(b"{" + members + b',"__proto__":{"x":1}' * 20_000 + b"}")
    assert (len(often), often["x"]) == (20_000, 1)
    levels = 3_500
    deep = b'{"__proto__":' * levels + b"[" + b"0," * 20_000 + b"0]" + b"}" * levels
    again = decode_json(b'{"__proto__":' + deep + b',"__proto__":1' * 20_000 + b"}")
    assert again.as_array() == [0] * 20_001


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def double_of(bits: int) -> float:
    (number,) = struct.unpack("d", struct.pack("Q", bits))
    return float(number) if math.isfinite(number) else 0.0


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**64 - 1).map(double_of))
def test_a_number_is_written_as_javascript_writes_it(number: float) -> None:
    assert number_text(number).encode() == rfc8785.dumps(number)


@pytest.mark.parametrize(("text", "length"), [("abc", 3), ("é" * 30, 30), ("😀" * 20, 40), ("\ud800", 1)])
def test_text_is_measured_in_utf_16_units(text: str, length: int) -> None:
    assert utf16_length(text) == length


@pytest.mark.parametrize(
    ("text", "data"), [("-_-_", b"\xfb\xff\xbf"), ("+/+/", b"\xfb\xff\xbf"), ("QQ=x", b"A"), ("Q", b"")]
)
def test_base64_is_decoded_as_node_decodes_it(text: str, data: bytes) -> None:
    assert decode_base64(text) == data


def test_a_change_of_keys_alone_is_taken_and_moves_the_commitment_on() -> None:
    person = DidOwner("rotating")
    request = update_request(person.suffix, [], key=person.update_key, next_update_key=secret_key("rotated").public)
    update = parse_request(request, SIDETREE)
    before, after = (
        resolve([AnchoredOperation(1, 0, person.create)]),
        resolve([AnchoredOperation(1, 0, person.create), AnchoredOperation(2, 0, update)]),
    )
    assert before and after and before.document == after.document
    assert before.update_commitment != after.update_commitment
    with pytest.raises(RequestError):
        check_patches([], SIDETREE.__class__("other"))


def test_an_update_turns_what_was_null_into_an_empty_object() -> None:
    """The reference copies a document so before it is changed."""
    person = DidOwner("null")
    keys = [{"id": "k", "type": "T", "publicKeyJwk": {"a": None}}]
    update = person.update([{"action": "add-public-keys", "publicKeys": keys}])
    states = [
        AnchoredOperation(1, 0, person.create),
        AnchoredOperation(2, 0, update),
        AnchoredOperation(3, 0, person.update([add_service("b")])),
    ]
    before, after = resolve(states[:2]), resolve(states)
    assert before and before.document["publicKeys"] == keys
    assert after and after.document["publicKeys"][0]["publicKeyJwk"] == {"a": {}}


def test_text_with_a_lone_surrogate_is_stored_and_answered() -> None:
    person = DidOwner("surrogate")
    request = json.loads(json.dumps(person.create.request))
    request["delta"]["patches"][0]["services"][0]["serviceEndpoint"] = {"a": "\ud800"}
    operation = stored_operation(canonical(request), person.suffix)
    assert operation.delta == request["delta"]
    assert b'"\\ud800"' in canonical(operation.delta)


def test_a_long_form_is_read_as_the_reference_reads_it() -> None:
    person = DidOwner("long")
    state = {"suffixData": person.create.suffix_data, "delta": {**person.create.delta, "patches": []}, "more": None}
    did = parse_did(f"did:sidetree:{person.suffix}:{encode(canonical(state))}", SIDETREE)
    answer = resolution(did, None)
    assert answer is not None, "a delta that is not the signed one leaves an empty document"
    assert "service" not in answer["didDocument"]
    assert "updateCommitment" not in answer["didDocumentMetadata"]["method"]


@pytest.mark.parametrize("header", [
    b'{"alg":"ES256K"}}', b'{"alg":"ES256K"}]', '{"alg":"ES256K"}\u00a0'.encode(), b'{x"alg":"ES256K"}',
    b'\x0b{"alg":"ES256K"}', b'{"\\u0061lg":"ES256K"}',
])  # fmt: skip
def test_a_header_that_readers_read_otherwise_is_refused_at_the_door(header: bytes) -> None:
    person = DidOwner("header")
    request = dict(person.update().request)
    _, payload, _ = request["signedData"].split(".")
    message = f"{encode(header)}.{payload}"
    key = DidOwner("header").update_key
    request["signedData"] = f"{message}.{encode(key.sign(message.encode()))}"
    with pytest.raises(RequestError) as caught:
        parse_request(canonical(request), SIDETREE)
    assert caught.value.code == "signed_data_invalid"


def test_numbers_of_very_many_digits_are_read_in_time_and_to_the_nearest_double() -> None:
    many = b"1" * 300_000
    assert math.isnan(decode_json(b"[" + many + b"F1]")[0])
    assert decode_json(b"[" + many + b"]") == [float("inf")]
    zeros = b"0" * 5_000
    for text, value in [
        (b"[0." + zeros + b"15e5001]", 1.5),
        (b"[1.5" + zeros + b"]", 1.5),
        (b"[9007199254740993" + b"." + zeros + b"1]", 9007199254740994.0),
        (b"[9007199254740993" + b"." + zeros + b"]", 9007199254740992.0),
    ]:
        assert decode_json(text) == [value]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1.2.3"])
def test_what_is_no_double_is_null_and_an_empty_object_after_an_update(number: str) -> None:
    endpoint = f'{{"n":{number}}}'
    text = json.dumps({"patches": [{"action": "add-services", "services": [{"id": "a", "type": "T"}]}]})
    text = text.replace('"type": "T"', f'"type": "T", "serviceEndpoint": {endpoint}')
    person = DidOwner("no double")
    commitment = json.dumps(person.create.delta["updateCommitment"])  # type: ignore[index]
    delta = decode_json(f'{{"deltas":[{text[:-1]}, "updateCommitment": {commitment}}}]}}'.encode())["deltas"][0]
    data = {**(person.create.suffix_data or {}), "deltaHash": hash_of(delta)}
    create = as_applied(Operation(OperationType.CREATE, hash_of(data), delta, data), SIDETREE)
    assert create is not None
    state = resolve([AnchoredOperation(1, 0, create)])
    assert state is not None and state.document["services"][0]["serviceEndpoint"] == {"n": None}


def test_what_failed_for_a_commitment_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    person = DidOwner("tried")
    chain, checked = Chain(), list[Operation]()
    chain.add(AnchoredOperation(0, 0, person.create))
    update = person.update()
    signed = update.signed
    assert signed is not None
    holds = resolver.reveals_its_key
    monkeypatch.setattr(resolver, "reveals_its_key", lambda operation: checked.append(operation) or holds(operation))
    for number in range(1, 50):
        bad = signed.text[:-8] + f"{number:08d}"
        forged = msgspec.structs.replace(update, signed=msgspec.structs.replace(signed, text=bad))
        chain.add(AnchoredOperation(number, 0, forged))
    chain.add(AnchoredOperation(50, 0, update))
    assert len(checked) == 50
    assert chain.effect(AnchoredOperation(50, 0, update)).applied
