"""The minimal program beside the registry takes what the registry takes, and refuses what it refuses."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.anchoring.sidetree import (
    SIDETREE,
    RequestError,
    create_request,
    parse_request,
    recover_request,
    update_request,
)
from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner, add_service, secret_key
from millstream_peers import registry_floor
from millstream_peers.registry_floor import Floor, parse

_OWNER = DidOwner("floor")
_OPERATIONS = [_OWNER.create, _OWNER.update(), _OWNER.update(), _OWNER.recover(), _OWNER.deactivate()]
_CHAIN = [canonical_json(operation.request) for operation in _OPERATIONS]
_CREATE, _UPDATE, _NEXT_UPDATE, _RECOVER, _DEACTIVATE = _CHAIN
_NOT_NEXT = "the DID is not committed to this key, or was to the next one"
_OLD, _NEW, _OTHER = (secret_key(name) for name in ("old", "new", "other"))
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_KEY = {"id": "one", "type": "JsonWebKey2020", "publicKeyJwk": dict(_NEW.public), "purposes": ["authentication"]}
_SERVICE = {"id": "one", "type": "page", "serviceEndpoint": "https://example.org/"}


def test_a_chain_is_taken_once_and_found_after_a_restart(tmp_path: Path) -> None:
    rows = [parse(request) for request in _CHAIN]
    assert Floor(str(tmp_path / "floor.db")).commit(rows[:3]) == ["", "", ""]
    floor = Floor(str(tmp_path / "floor.db"))
    assert floor.commit([*rows[1:], rows[0], rows[2]]) == [""] * 6
    found = floor.find(_OWNER.suffix)
    assert [bytes(request) for _, _, request in found] == _CHAIN
    assert [bytes(request) for name, _, _ in found[1:] for *_, request in floor.find(name)] == _CHAIN[1:]


def test_what_does_not_follow_the_state_of_its_did_is_refused(tmp_path: Path) -> None:
    create, update, following, recover, deactivate = map(parse, _CHAIN)
    floor = Floor(str(tmp_path / "floor.db"))
    assert floor.commit([update, create, following, deactivate]) == [_NOT_NEXT, "", _NOT_NEXT, _NOT_NEXT]
    assert floor.commit([update, following, recover, following, deactivate, recover]) == [""] * 6
    later = _update([add_service("late")], key=_OWNER.update_key)
    assert floor.commit([parse(later)]) == [_NOT_NEXT]  # the DID is deactivated


def test_a_key_that_the_did_was_committed_to_before_is_refused(tmp_path: Path) -> None:
    create = create_request([], update_key=_OLD.public, recovery_key=_OTHER.public)
    suffix = parse_request(create, SIDETREE).suffix
    there = update_request(suffix, [], key=_OLD, next_update_key=_NEW.public)
    back = update_request(suffix, [], key=_NEW, next_update_key=_OLD.public)
    assert Floor(str(tmp_path / "floor.db")).commit([parse(create), parse(there), parse(back)]) == ["", "", _NOT_NEXT]


def test_an_operation_has_one_id_for_each_spelling_of_its_signature() -> None:
    message, _, signature = str(_OPERATIONS[1].request["signedData"]).rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    high = raw[:32] + (_ORDER - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    other = base64.urlsafe_b64encode(high).rstrip(b"=").decode()
    assert parse(_changed(_UPDATE, signedData=f"{message}.{other}"))[0] == parse(_UPDATE)[0]


_DOCUMENT = {"publicKeys": [_KEY], "services": [{**_SERVICE, "serviceEndpoint": {"weight": 1.5, "name": "Zürich"}}]}
_TAKEN: Mapping[str, list[dict[str, Any]]] = {
    "no patch": [],
    "keys": [{"action": "add-public-keys", "publicKeys": [_KEY]}, {"action": "remove-public-keys", "ids": ["one"]}],
    "services": [{"action": "add-services", "services": [_SERVICE]}, {"action": "remove-services", "ids": ["one"]}],
    "a document": [{"action": "replace", "document": _DOCUMENT}],
    "an empty document": [{"action": "replace", "document": {"services": []}}],
}
_REFUSED: Mapping[str, list[dict[str, Any]]] = {
    "an unknown action": [{"action": "rename", "ids": []}],
    "an unknown member": [{"action": "remove-services", "ids": ["one"], "more": 1}],
    "an id twice": [{"action": "add-services", "services": [_SERVICE, _SERVICE]}],
    "a long id": [{"action": "remove-services", "ids": ["x" * 51]}],
    "a purpose twice": [{"action": "add-public-keys", "publicKeys": [{**_KEY, "purposes": ["keyAgreement"] * 2}]}],
    "an unknown purpose": [{"action": "add-public-keys", "publicKeys": [{**_KEY, "purposes": ["all"]}]}],
    "a long type": [{"action": "add-services", "services": [{**_SERVICE, "type": "x" * 31}]}],
    "no URI": [{"action": "add-services", "services": [{**_SERVICE, "serviceEndpoint": "no uri"}]}],
    "a large delta": [{"action": "remove-services", "ids": ["x" * 50] * 20}],
    "__proto__": [{"action": "add-services", "services": [{**_SERVICE, "serviceEndpoint": {"__proto__": {}}}]}],
}


def _update(patches: list[dict[str, Any]], key: Any = _OLD, following: Any = _NEW) -> bytes:
    return update_request(_OWNER.suffix, patches, key=key, next_update_key=following.public)


def _changed(request: bytes, **members: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(request) | members)


def _jws(request: bytes, part: int, text: str) -> bytes:
    """*request* with another part of its signed data."""
    parts = msgspec.json.decode(request)["signedData"].split(".")
    return _changed(request, signedData=".".join([*parts[:part], text, *parts[part + 1 :]]))


@pytest.mark.parametrize("patches", _TAKEN.values(), ids=_TAKEN)
def test_patches_that_the_registry_takes_are_taken(patches: list[dict[str, Any]]) -> None:
    for request in (_update(patches), create_request(patches, update_key=_OLD.public, recovery_key=_OTHER.public)):
        assert parse_request(request, SIDETREE).suffix == parse(request)[1]


@pytest.mark.parametrize("patches", _REFUSED.values(), ids=_REFUSED)
def test_patches_that_the_registry_refuses_are_refused(patches: list[dict[str, Any]]) -> None:
    _assert_refused(_update(patches))


_KID = base64.urlsafe_b64encode(b'{"alg":"ES256K","kid":"one"}').rstrip(b"=").decode()
_FAULTS: Mapping[str, bytes] = {
    "no object": b"[]",
    "more than 10,000 bytes": _UPDATE + b" " * 10_000,
    "an unknown type": _changed(_CREATE, type="rename"),
    "an unknown member": _changed(_UPDATE, more=1),
    "no multihash": _changed(_UPDATE, didSuffix="EiB"),
    "a reveal value of another key": _changed(_UPDATE, revealValue=_OWNER.suffix),
    "a delta of another update": _changed(_UPDATE, delta=msgspec.json.decode(_NEXT_UPDATE)["delta"]),
    "a delta of another create": _changed(_CREATE, delta=msgspec.json.decode(_UPDATE)["delta"]),
    "a DID that was not signed": _changed(_DEACTIVATE, didSuffix=parse(_UPDATE)[0]),
    "the signature of another": _jws(_UPDATE, 2, msgspec.json.decode(_RECOVER)["signedData"].split(".")[2]),
    "a short signature": _jws(_UPDATE, 2, "AAAA"),
    "a key id": _jws(_UPDATE, 0, _KID),
    "the payload of another kind": _jws(_UPDATE, 1, msgspec.json.decode(_RECOVER)["signedData"].split(".")[1]),
    "the same key again": _update([], following=_OLD),
    "one key for both": create_request([], update_key=_OLD.public, recovery_key=_OLD.public),
    "a recovery to one key": recover_request(
        _OWNER.suffix, [], key=_OLD, next_recovery_key=_NEW.public, next_update_key=_NEW.public
    ),
    "another curve": _update([], key=secret_key("curve", "Ed25519")),
}


@pytest.mark.parametrize("request_bytes", _FAULTS.values(), ids=_FAULTS)
def test_requests_that_the_registry_refuses_are_refused(request_bytes: bytes) -> None:
    _assert_refused(request_bytes)


def _assert_refused(request: bytes) -> None:
    with pytest.raises(RequestError):
        parse_request(request, SIDETREE)
    with pytest.raises(ValueError, match=r"."):
        parse(request)


def test_the_program_has_at_most_200_lines() -> None:
    assert len(Path(registry_floor.__file__).read_text("utf-8").splitlines()) <= 200
