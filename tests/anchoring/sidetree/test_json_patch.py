"""JSON patches on documents: what they may touch, what does not apply, and how far a document may grow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.anchoring.sidetree import SIDETREE, RequestError, parse_request, resolve
from millstream.anchoring.sidetree.did import parse_did, resolution
from millstream.anchoring.sidetree.json_patch import MAX_DOCUMENT_BYTES
from millstream.anchoring.sidetree.patches import apply_patches, check_patches
from millstream.anchoring.sidetree.requests import update_request
from millstream.anchoring.sidetree.resolver import AnchoredOperation
from millstream.settings import RegistrySettings, SettingsError
from millstream.testing.dids import DidOwner, add_service, secret_key

OPEN = RegistrySettings(patches=("ietf-json-patch",)).network


def json_patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"action": "ietf-json-patch", "patches": list(operations)}


def test_it_is_allowed_only_where_the_network_says_so() -> None:
    patch = json_patch({"op": "add", "path": "/name", "value": "x"})
    assert check_patches([patch], OPEN) == [patch]
    with pytest.raises(RequestError, match=r"is not allowed: each patch must be an object whose .action. is one of"):
        check_patches([patch], SIDETREE)
    with pytest.raises(SettingsError, match=r"registry\.patches"):
        _ = RegistrySettings(patches=("ietf-merge-patch",)).network


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (
            {"op": "add", "path": "/services/0", "value": 1},
            "must not change 'services': use the patch action add-services or",
        ),
        ({"op": "add", "path": "/public~0Keys", "value": 1}, None),
        ({"op": "remove", "path": "/publicKeys"}, "must not change 'publicKeys': use .* or remove-public-keys"),
        (
            {"op": "copy", "path": "/x", "from": "/alsoKnownAs"},
            "must not change 'alsoKnownAs': use .* add-also-known-as or",
        ),
        ({"op": "add", "path": "/authentication/-", "value": "#k"}, "'authentication': use .* add-public-keys or"),
        ({"op": "replace", "path": "/id", "value": "x"}, "must not change 'id': resolution writes this member"),
        ({"op": "replace", "path": "", "value": {}}, "must point to a member"),
        ({"op": "add", "path": "name", "value": 1}, "must point to a member"),
        ({"op": "add", "path": ["name"], "value": 1}, "must point to a member"),
        ({"op": "add", "path": "/name"}, "exactly the members"),
        ({"op": "merge", "path": "/name"}, "'op' is one of"),
        ("add", "'op' is one of"),
    ],
)
def test_what_it_may_not_do_is_refused_when_it_is_sent(operation: Any, text: str | None) -> None:
    if text is None:
        assert check_patches([json_patch(operation)], OPEN)
    else:
        with pytest.raises(RequestError, match=text):
            check_patches([json_patch(operation)], OPEN)


def test_members_are_patched_and_resolved_beside_the_others() -> None:
    state, did = _resolved(json_patch({"op": "add", "path": "/profile", "value": {"site": ["a"]}}), add_service("more"))
    assert state.document["profile"] == {"site": ["a"]}
    document = resolution(parse_did(did, OPEN), state)["didDocument"]
    assert document["profile"] == {"site": ["a"]}
    assert [service["id"] for service in document["service"]] == ["#home", "#more"]


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "remove", "path": "/absent"}],
        [{"op": "add", "path": "/a/b/c", "value": 1}],
        [{"op": "add", "path": "/a", "value": 1}, {"op": "add", "path": "/a/x", "value": 1}],
        [{"op": "test", "path": "/a", "value": 1}],
        [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/7", "value": 1}],
        [{"op": "add", "path": "/a", "value": {"x": 1}}, {"op": "move", "from": "/a", "path": "/a/x/y"}],
    ],
)
def test_where_a_patch_does_not_apply_none_does_and_the_key_moves_on(operations: list[dict[str, Any]]) -> None:
    state, did = _resolved(add_service("more"), json_patch(*operations))
    assert [service["id"] for service in state.document["services"]] == ["home"]
    assert state.update_commitment is not None
    assert resolution(parse_did(did, OPEN), state)["didDocument"]["service"]


def test_copies_of_copies_end_at_the_bound_of_a_document() -> None:
    doubling = [{"op": "add", "path": "/a", "value": ["x" * 100]}]
    doubling += [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(20)]
    check_patches([json_patch(*doubling)], OPEN)
    with pytest.raises(RequestError, match=f"larger than the limit of {MAX_DOCUMENT_BYTES:,} bytes"):
        apply_patches({}, [json_patch(*doubling)])


def _resolved(*patches: dict[str, Any]) -> tuple[Any, str]:
    """The state of a DID after one update with *patches*, and the DID."""
    person = DidOwner("patched")
    request = update_request(
        person.suffix, list(patches), key=person.update_key, next_update_key=secret_key("next").public
    )
    update = parse_request(request, msgspec.structs.replace(OPEN, max_delta_bytes=10_000))
    state = resolve([AnchoredOperation(1, 0, person.create), AnchoredOperation(2, 0, update)])
    assert state is not None
    return state, f"did:sidetree:{person.suffix}"
