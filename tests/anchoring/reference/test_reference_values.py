"""Endpoints, hashes and signed data, put together at random from what is special in them, as both sides judge them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from reference.implementation import ReferenceImplementation

from millstream.anchoring.sidetree import SIDETREE, OperationType, RequestError
from millstream.anchoring.sidetree import reference_rules as rules
from millstream.anchoring.sidetree.encoding import encode, hash_of
from millstream.anchoring.sidetree.reference_json import ReferenceJsonError, decode_json
from millstream.testing.dids import DidOwner
from suite.sizes import sized

VALUES = sized(quick=500, ci=3_000, long=30_000)
UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
URI_PARTS = (
    "http:", "HTTPS:", "http://", "https://", "mailto:", "MAILTO:", "urn:", "URN:", "uuid:", "UUID:", UUID, "ws://",
    "did:x:", "a@b", "a", "@", ":", "/", "//", "?", "#", "[", "]", "[::1]", "[fe80::1%25en0]", "127.0.0.1", ":80",
    "%41", "%zz", "%2F", "%40", "%3a", "é", "😀", "\ud800", "xn--a", "..", "to=", "to=a@b", "&", "=", ",", "subject=",
    "\n", " ", "\\", "-", "a:b@", "\u3002", "\x00", "{", "%6to", "file:",
)  # fmt: skip
CODES = (
    b"\x12", b"\x92\0", b"\x92\x80\0", b"\x13", b"\x16", b"\0", b"\x80\x12", b"\x92" + b"\x80" * 7 + b"\0",
    b"\x92" + b"\x80" * 145 + b"\0", b"\x92" + b"\x80" * 146 + b"\0",
)  # fmt: skip
HEADERS = (
    b'{"alg":"ES256K"}', b' {"alg":"ES256K"}\n', b'{"alg":"x","alg":"ES256K"}', b'{"alg":"ES256K","b64":true}',
    b'["ES256K"]', b"null", b'{"alg":"ES256K","__proto__":null}', b'{"__proto__":{"alg":"ES256K"}}',
    b'\xef\xbb\xbf{"alg":"ES256K"}', b'{"alg":"\\u0045S256K"}', b'{"alg":"ES256K",}',
    b'{"alg":"EdDSA"}', b'{"alg":"ES256K"}x', b'{"alg":["ES256K"]}',
)  # fmt: skip


def endpoint(pick: random.Random) -> str:
    return "".join(pick.choice(URI_PARTS) for _ in range(pick.randint(1, 7)))


def multihash(pick: random.Random) -> str:
    size = pick.choice([0, 1, 31, 32, 33, 127, 128, 200])
    said = pick.choice([size, size, size, size + 1, max(size - 1, 0)])
    length = bytes([said]) if said < 128 and pick.random() < 0.8 else bytes([said & 0x7F | 0x80, said >> 7])
    text = encode(pick.choice(CODES) + length + pick.randbytes(size))
    return pick.choice([text, text, text, text[:-1] + pick.choice("AQgw-_=+/"), text + pick.choice(["A", "=", "\n"])])


def judged(deltas: Sequence[str]) -> list[bool]:
    """Whether our reader takes each of *deltas* in a chunk file."""
    found = list[bool]()
    for delta in deltas:
        try:
            rules.check_delta(decode_json(f'{{"deltas":[{delta}]}}'.encode())["deltas"][0], SIDETREE)
            found.append(True)
        except (RequestError, ReferenceJsonError):
            found.append(False)
    return found


def assert_alike(values: Sequence[str], ours: Sequence[bool], theirs: Sequence[str]) -> None:
    verdicts = zip(values, ours, theirs, strict=True)
    assert [(value, other) for value, mine, other in verdicts if mine != (other == "ok")] == []
    assert len(ours) / 10 < sum(ours) < len(ours), "some are good and some are not"


def with_endpoint(uri: str) -> str:
    services = [{"id": "a", "type": "T", "serviceEndpoint": uri}]
    patch = {"action": "add-services", "services": services}
    return json.dumps({"patches": [patch], "updateCommitment": hash_of("next")})


def with_commitment(text: str) -> str:
    return json.dumps({"patches": [], "updateCommitment": text})


@pytest.mark.parametrize(("make", "delta_of"), [(endpoint, with_endpoint), (multihash, with_commitment)])
def test_any_endpoint_and_any_hash_is_judged_as_by_the_reference(
    reference: ReferenceImplementation, make: Callable[[random.Random], str], delta_of: Callable[[str], str]
) -> None:
    pick = random.Random(0)
    values = [make(pick) for _ in range(VALUES)]
    deltas = [delta_of(value) for value in values]
    assert_alike(values, judged(deltas), reference.judge(delta.encode() for delta in deltas))


def signed_data(pick: random.Random, usual: Sequence[str], key: dict[str, object], delta_hash: str) -> str:
    """Signed data of an update, with another header, payload or signature."""
    changed: dict[str, object] = dict(key)
    payload: dict[str, object] = {"updateKey": changed, "deltaHash": delta_hash}
    name = pick.choice(["kty", "crv", "x", "y"])
    pick.choice([
        lambda: changed.update({name: pick.choice([None, 1, "P-256", "", [], "x" * 43, {}])}),
        lambda: changed.update(d="x"),
        lambda: changed.pop(name),
        lambda: payload.update(deltaHash=multihash(pick)),
        lambda: payload.update({pick.choice(["a", "__proto__", "toJSON"]): pick.choice([1, None, {}, {"z": 1}])}),
        lambda: payload.update({"__proto__": {"deltaHash": payload.pop("deltaHash")}}),
        lambda: None,
    ])()  # fmt: skip
    text = json.dumps(payload)
    if pick.random() < 0.2:
        at = pick.randrange(len(text))
        text = text[:at] + pick.choice(["\\u005c", "1e+5", "}", ",", '"', "é", " "]) + text[at + pick.choice([0, 1]) :]
    header, body, signature = usual
    parts = [
        encode(pick.choice(HEADERS)) if pick.random() < 0.5 else header,
        encode(text.encode()) if pick.random() < 0.8 else body,
        pick.choice(["", signature + "A", signature[:-1] + "="]) if pick.random() < 0.2 else signature,
    ]
    return ".".join(parts)


def test_any_signed_data_is_judged_as_by_the_reference(reference: ReferenceImplementation) -> None:
    pick, update = random.Random(0), DidOwner("signed").update()
    assert update.signed is not None
    usual, key = update.signed.text.split("."), dict(update.key)
    values = [signed_data(pick, usual, key, update.payload["deltaHash"]) for _ in range(VALUES)]
    ours = list[bool]()
    for value in values:
        try:
            signed = rules.check_signed(OperationType.UPDATE, value, None, None)
            ours.append(hash_of(signed.payload["updateKey"]) == update.reveal_value)
        except RequestError:
            ours.append(False)
    requests = [json.dumps({**update.request, "signedData": value}).encode() for value in values]
    assert_alike(values, ours, reference.take(requests))
