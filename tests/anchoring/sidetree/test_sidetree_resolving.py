"""The state of a DID: whatever is anchored, in whatever order it is handed in, and forks where the earliest wins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.sidetree import (
    ORB,
    SIDETREE,
    AnchoredOperation,
    DidState,
    Operation,
    OperationType,
    Profile,
    RequestError,
    apply,
    long_form,
    parse_did,
    resolution,
    resolve,
)
from millstream.anchoring.sidetree.encoding import commitment_to, encode, hash_of
from millstream.anchoring.sidetree.patches import Document, apply_patches, check_patches
from millstream.anchoring.sidetree.signatures import parse_jws, sign
from millstream.testing.dids import DidOwner, add_service, secret_key


def anchored(*operations: Operation) -> list[AnchoredOperation]:
    return [AnchoredOperation(number, 0, operation) for number, operation in enumerate(operations)]


def services(state: DidState | None) -> list[str]:
    assert state is not None
    return [service["id"] for service in state.document.get("services", [])]


def test_a_did_follows_its_updates_and_recoveries_to_its_end() -> None:
    person = DidOwner("life")
    history = anchored(person.create, person.update([add_service("a")]), person.recover([add_service("b")]))
    assert services(resolve(history[:1])) == ["home"]
    assert services(resolve(history[:2])) == ["home", "a"]
    assert services(resolve(history)) == ["b"]
    end = resolve([*history, AnchoredOperation(9, 0, person.deactivate()), AnchoredOperation(10, 0, person.update())])
    assert end is not None
    assert end.deactivated
    assert end.number == 9


@given(st.data())
def test_p5_the_order_in_which_operations_are_handed_in_changes_nothing(data: st.DataObject) -> None:
    person = DidOwner("order")
    kinds = data.draw(st.lists(st.sampled_from(["update", "recover"]), max_size=6))
    operations = [person.create, *(getattr(person, kind)() for kind in kinds)]
    if data.draw(st.booleans()):
        operations.append(person.deactivate())
    history = anchored(*operations)
    state = None
    for step in history:
        state = apply(state, step)
    assert resolve(data.draw(st.permutations(history))) == state


def test_without_a_create_there_is_no_did() -> None:
    assert resolve(anchored(DidOwner("none").update())) is None
    assert apply(None, anchored(DidOwner("none").update())[0]) is None


def test_a_second_create_changes_nothing() -> None:
    person = DidOwner("twice")
    assert resolve(anchored(person.create, person.create)) == resolve(anchored(person.create))


def test_of_two_operations_for_one_commitment_the_earliest_valid_one_wins() -> None:
    person, rival = DidOwner("fork"), DidOwner("fork")
    first, second = person.update([add_service("first")]), rival.update([add_service("second")])
    assert services(resolve(anchored(person.create, first, second))) == ["home", "first"]
    assert services(resolve(anchored(person.create, second, first))) == ["home", "second"]
    forged = msgspec.structs.replace(first, signed=parse_jws(tampered(first), SIDETREE))
    assert services(resolve(anchored(person.create, forged, second))) == ["home", "second"]


def test_within_a_batch_the_index_decides() -> None:
    person, rival = DidOwner("fork"), DidOwner("fork")
    first, second = person.update([add_service("first")]), rival.update([add_service("second")])
    history = [AnchoredOperation(0, 0, person.create), AnchoredOperation(1, 8, first), AnchoredOperation(1, 7, second)]
    assert services(resolve(history)) == ["home", "second"]


def test_an_update_before_a_recovery_in_the_ledger_is_still_undone_by_it() -> None:
    person = DidOwner("undone")
    update, recover = person.update([add_service("late")]), person.recover([add_service("new")])
    assert services(resolve(anchored(person.create, recover, update))) == ["new"]


def test_an_update_whose_delta_cannot_be_had_changes_nothing() -> None:
    person = DidOwner("pruned")
    update, following = person.update(), person.update()
    bare = msgspec.structs.replace(update, delta=None)
    assert resolve(anchored(person.create, bare, following)) == resolve(anchored(person.create))


@pytest.mark.parametrize("delta", [None, DidOwner("other").create.delta])
def test_a_create_or_recovery_without_its_delta_keeps_its_recovery_commitment(delta: Any) -> None:
    person = DidOwner("bare")
    create = msgspec.structs.replace(person.create, delta=delta)
    state = resolve(anchored(create))
    assert state is not None
    assert (state.document, state.update_commitment) == ({}, None)
    assert state.recovery_commitment == commitment_to(person.recovery_key.public)
    recover = msgspec.structs.replace(person.recover(), delta=delta)
    recovered = resolve(anchored(person.create, recover))
    assert recovered is not None
    assert (recovered.document, recovered.update_commitment) == ({}, None)
    assert recovered.recovery_commitment == commitment_to(person.recovery_key.public)


def test_a_chain_of_keys_cannot_run_in_circles() -> None:
    one, two = secret_key("one"), secret_key("two")
    person = DidOwner("circle")
    suffix_key = person.update_key
    steps = [(suffix_key, one), (one, two), (two, one), (one, two)]
    operations = [update_between(person.suffix, old, new, f"n{n}") for n, (old, new) in enumerate(steps)]
    state = resolve(anchored(person.create, *operations))
    assert services(state) == ["home", "n0", "n1"]


def test_a_key_that_commits_to_itself_is_passed_over() -> None:
    person = DidOwner("self")
    loop = update_between(person.suffix, person.update_key, person.update_key, "loop")
    assert resolve(anchored(person.create, loop)) == resolve(anchored(person.create))


@pytest.mark.parametrize("profile", [SIDETREE, ORB], ids=lambda profile: profile.name)
@pytest.mark.parametrize("next_key", ["revealed", "next recovery"])
def test_a_recover_counts_although_it_reuses_a_key_for_updates(profile: Profile, next_key: str) -> None:
    """No client may submit it, but others anchor it, and the reference implementation applies it."""
    person = DidOwner("reuse")
    recovery = secret_key("next recovery")
    update = person.recovery_key if next_key == "revealed" else recovery
    delta = {"patches": [add_service("new")], "updateCommitment": commitment_to(update.public)}
    payload = {
        "recoveryKey": person.recovery_key.public,
        "recoveryCommitment": commitment_to(recovery.public),
        "deltaHash": hash_of(delta),
    }
    signed, reveal_value = parse_jws(sign(payload, person.recovery_key), profile), hash_of(person.recovery_key.public)
    recover = Operation(OperationType.RECOVER, person.suffix, delta, reveal_value=reveal_value, signed=signed)
    later = update_between(person.suffix, update, secret_key("later"), "later")
    assert services(resolve(anchored(person.create, recover, later), profile)) == ["new", "later"]


def test_a_patch_replaces_what_has_the_same_id_where_it_stands() -> None:
    document: Document = apply_patches({}, [add_service("a"), add_service("b")])
    new = {"id": "a", "type": "new", "serviceEndpoint": "https://example.org/new"}
    changed = apply_patches(document, [{"action": "add-services", "services": [new]}])
    assert [s["type"] for s in changed["services"]] == ["new", "page"]
    assert [s["type"] for s in document["services"]] == ["page", "page"], "the document before is left alone"
    assert (
        apply_patches(changed, [{"action": "remove-services", "ids": ["a", "zzz"]}])["services"]
        == document["services"][1:]
    )
    assert apply_patches({}, [{"action": "remove-public-keys", "ids": ["a"]}]) == {}


def test_keys_and_names_are_patched_like_services() -> None:
    key = {
        "id": "k",
        "type": "JsonWebKey2020",
        "publicKeyJwk": dict(secret_key("k").public),
        "purposes": ["authentication"],
    }
    patches = [
        {"action": "add-public-keys", "publicKeys": [key]},
        {"action": "add-also-known-as", "uris": ["https://example.org/a", "https://example.org/b"]},
        {"action": "remove-also-known-as", "uris": ["https://example.org/a"]},
    ]
    document = apply_patches({}, check_patches(patches, ORB))
    assert document == {"publicKeys": [key], "alsoKnownAs": ["https://example.org/b"]}
    assert apply_patches(document, [{"action": "remove-public-keys", "ids": ["k"]}])["publicKeys"] == []


SERVICE = {"id": "s", "type": "t", "serviceEndpoint": "https://example.org"}
KEY = {"id": "k", "type": "t", "publicKeyJwk": {}}


@pytest.mark.parametrize(
    "patch",
    [
        "text",
        {"action": "unheard-of"},
        {"action": ["replace"]},
        {"action": "ietf-json-patch", "patches": []},
        {"action": "add-services"},
        {"action": "add-services", "services": [], "more": 1},
        {"action": "add-services", "services": {}},
        {"action": "add-services", "services": ["s"]},
        {"action": "add-services", "services": [{**SERVICE, "more": 1}]},
        {"action": "add-services", "services": [SERVICE, SERVICE]},
        {"action": "add-services", "services": [{**SERVICE, "type": "t" * 31}]},
        {"action": "add-services", "services": [{**SERVICE, "serviceEndpoint": "no uri"}]},
        {"action": "add-services", "services": [{**SERVICE, "serviceEndpoint": "https://x/%zz"}]},
        {"action": "add-services", "services": [{**SERVICE, "serviceEndpoint": []}]},
        {"action": "add-services", "services": [{**SERVICE, "id": "i" * 51}]},
        {"action": "add-services", "services": [{**SERVICE, "id": "a.b"}]},
        {"action": "add-services", "services": [{**SERVICE, "id": ""}]},
        {"action": "add-services", "services": [{**SERVICE, "id": ["s"]}]},
        {"action": "remove-services", "ids": "s"},
        {"action": "remove-public-keys", "ids": [7]},
        {"action": "add-public-keys", "publicKeys": [{**KEY, "publicKeyJwk": []}]},
        {"action": "add-public-keys", "publicKeys": [{**KEY, "purposes": ["flying"]}]},
        {"action": "add-public-keys", "publicKeys": [{**KEY, "purposes": ["keyAgreement", "keyAgreement"]}]},
        {"action": "add-public-keys", "publicKeys": [{**KEY, "purposes": [["keyAgreement"]]}]},
        {"action": "add-public-keys", "publicKeys": [{**KEY, "controller": "x"}]},
        {"action": "add-public-keys", "publicKeys": [{"id": "k", "type": "t"}]},
        {"action": "replace", "document": {"more": []}},
        {"action": "replace", "document": {"services": [SERVICE, SERVICE]}},
        {"action": "replace", "document": []},
    ],
)  # fmt: skip
def test_a_patch_that_breaks_a_rule_is_refused(patch: object) -> None:
    with pytest.raises(RequestError):
        check_patches([patch], SIDETREE)


def test_an_endpoint_may_be_an_object() -> None:
    patch = {"action": "add-services", "services": [{**SERVICE, "serviceEndpoint": {"origins": ["https://x"]}}]}
    assert check_patches([patch], SIDETREE) == [patch]


def test_a_long_form_did_is_the_same_did() -> None:
    person = DidOwner("long")
    did = parse_did(long_form(person.create, SIDETREE), SIDETREE)
    unanchored, published = resolution(did, None), resolution(did, resolve(anchored(person.create)))
    assert unanchored is not None
    assert published is not None
    assert did.short == f"did:sidetree:{person.suffix}"
    assert unanchored["didDocument"] == published["didDocument"]
    assert "canonicalId" not in unanchored["didDocumentMetadata"]
    assert published["didDocumentMetadata"]["canonicalId"] == did.short
    assert published["didDocumentMetadata"]["equivalentId"] == [did.short]


def test_an_unknown_short_form_has_no_answer() -> None:
    assert resolution(parse_did(f"did:sidetree:{hash_of('nobody')}", SIDETREE), None) is None


LONG = long_form(DidOwner("long").create, SIDETREE)
STATE = LONG.rpartition(":")[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "did:other:" + hash_of("x"),
        "did:sidetree:",
        "did:sidetree:short",
        LONG + "=",
        LONG + ":more",
        LONG.replace(STATE, encode(b"{}")),
        LONG.replace(STATE, encode(b"[")),
        LONG.replace(DidOwner("long").suffix, hash_of("another")),
        f"did:sidetree:{DidOwner('long').suffix}:" + encode(b'{"suffixData": {}, "delta": {}}'),
        "did:sidetree:" + "A" * 50_000,
    ],
)
def test_a_did_that_is_not_well_formed_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_did(text, SIDETREE)


def update_between(suffix: str, old: Any, new: Any, name: str) -> Operation:
    """An update as it may be anchored by somebody who does not check what we check."""
    delta = {"patches": [add_service(name)], "updateCommitment": commitment_to(new.public)}
    signed = parse_jws(sign({"updateKey": old.public, "deltaHash": hash_of(delta)}, old), SIDETREE)
    return Operation(OperationType.UPDATE, suffix, delta, reveal_value=hash_of(old.public), signed=signed)


def tampered(operation: Operation) -> str:
    assert operation.signed is not None
    head, payload, signature = operation.signed.text.split(".")
    return f"{head}.{payload}.{'A' + signature[1:] if signature[0] != 'A' else 'B' + signature[1:]}"
