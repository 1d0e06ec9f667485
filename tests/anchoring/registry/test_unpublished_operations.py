"""Operations that were accepted and are not anchored yet: what a DID resolves to meanwhile."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring.registry import DidRegistry, OperationState
from millstream.anchoring.registry.operation_intake import check_request
from millstream.anchoring.registry.states import QueuedOperation
from millstream.anchoring.sidetree import SIDETREE, Operation, long_form
from millstream.core.canonical import canonical_json
from millstream.settings import load_settings
from millstream.testing.dids import DidOwner

Submit = Callable[..., list[str]]
HOUR = {"unpublished_operation_lifespan": 3600.0}


def did_of(person: DidOwner) -> str:
    return f"did:sidetree:{person.suffix}"


def anchor(registry: DidRegistry) -> None:
    registry.queue.claim(100)
    registry.writer.cut(force=True)


def method_of(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    assert answer is not None
    found: dict[str, Any] = answer["didDocumentMetadata"]["method"]
    return found


def listed(answer: Mapping[str, Any] | None) -> list[str]:
    return [each["type"] for each in method_of(answer).get("unpublishedOperations", [])]


def services(answer: Mapping[str, Any] | None) -> list[str]:
    assert answer is not None
    return [each["id"] for each in answer["didDocument"].get("service", [])]


def test_nothing_is_known_of_a_did_that_is_not_anchored_unless_the_settings_say_so(fleet: Any, submit: Submit) -> None:
    registry, ada = fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    assert registry.history.resolve(did_of(ada)) is None
    anchor(registry)
    submit(registry, ada.update())
    answer = registry.history.resolve(did_of(ada))
    assert (services(answer), listed(answer)) == (["#home"], [])


def test_a_short_form_resolves_from_its_accepted_create_and_says_that_it_is_not_published(
    fleet: Any, submit: Submit
) -> None:
    fleet.settings = HOUR
    registry, ada = fleet.instance(), DidOwner("ada")
    (operation,) = submit(registry, ada.create)
    waiting = registry.history.resolve(did_of(ada))
    assert waiting is not None
    assert waiting["didDocument"]["id"] == did_of(ada)
    assert "canonicalId" not in waiting["didDocumentMetadata"]
    method = method_of(waiting)
    assert (method["published"], services(waiting)) == (False, ["#home"])
    status = registry.store.status(operation)
    assert status is not None
    (described,) = method["unpublishedOperations"]
    assert base64.b64decode(described.pop("operation")) == canonical_json(ada.create.request)
    assert described == {"id": operation, "type": "create", "transactionTime": status.accepted_at // 1_000_000}

    anchor(registry)
    published = registry.history.resolve(did_of(ada))
    assert published is not None
    assert published["didDocumentMetadata"]["canonicalId"] == did_of(ada)
    assert (method_of(published)["published"], listed(published)) == (True, [])
    assert {**published["didDocument"]} == waiting["didDocument"]


def test_what_follows_on_an_accepted_create_is_shown_too(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = HOUR
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create, ada.update(), ada.recover(), ada.update())
    answer = registry.history.resolve(did_of(ada))
    assert listed(answer) == ["create", "update", "recover", "update"]
    before = services(answer)
    assert len(before) == 2 and "#home" not in before, "the recovery began the document anew"
    for _ in range(4):  # one operation of a DID at a time
        anchor(registry)
    assert services(registry.history.resolve(did_of(ada))) == before

    submit(registry, ada.deactivate())
    assert method_of(registry.history.resolve(did_of(ada)))["published"]


def test_a_did_that_ends_before_it_is_anchored_is_deactivated_and_not_published(
    sqlite_fleet: Any, submit: Submit
) -> None:
    sqlite_fleet.settings = HOUR
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create, ada.deactivate())
    answer = registry.history.resolve(did_of(ada))
    assert answer is not None
    metadata = answer["didDocumentMetadata"]
    assert (metadata["deactivated"], metadata["method"]["published"]) == (True, False)
    assert "canonicalId" not in metadata


@pytest.mark.parametrize("applied", [False, True])
def test_the_document_of_an_anchored_did_changes_before_the_anchor_only_where_the_settings_say_so(
    fleet: Any, submit: Submit, applied: bool
) -> None:
    fleet.settings = {**HOUR, "apply_unpublished_operations": applied}
    registry, ada = fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    anchored = registry.history.resolve(did_of(ada))
    submit(registry, ada.update())
    answer = registry.history.resolve(did_of(ada))
    assert (method_of(answer)["published"], listed(answer)) == (True, ["update"])
    changed = method_of(answer)["updateCommitment"] != method_of(anchored)["updateCommitment"]
    assert (len(services(answer)), changed) == ((2, True) if applied else (1, False))

    submit(registry, ada.deactivate())
    answer = registry.history.resolve(did_of(ada))
    assert answer is not None
    assert listed(answer) == ["update", "deactivate"]
    assert answer["didDocumentMetadata"].get("deactivated", False) is applied
    assert registry.history.state(ada.suffix) is not None, "what decides is the anchored state, as before"


def test_an_operation_counts_until_its_lifespan_is_over(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"unpublished_operation_lifespan": 60.0}
    registry, ada, bob = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("bob")
    submit(registry, ada.create)
    anchor(registry)
    submit(registry, ada.update(), bob.create)
    sqlite_fleet.clock.advance(59)
    assert listed(registry.history.resolve(did_of(ada))) == ["update"]
    assert registry.history.resolve(did_of(bob)) is not None
    sqlite_fleet.clock.advance(1)
    assert listed(registry.history.resolve(did_of(ada))) == []
    assert registry.history.resolve(did_of(bob)) is None


def test_rejected_and_dead_operations_never_count(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = HOUR
    registry, ada, bob = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("bob")
    rejected, dead = submit(registry, ada.create, bob.create)
    registry.queue.claim(10)
    shown = {operation.id: operation for operation in registry.queue.peek(10)}
    registry.store.reject("one", {shown[rejected].seq: "the rules have changed"})
    registry.store.requeue("one", {shown[dead].seq: 0.0}, reasons={}, most=0)
    states = [registry.store.status(operation) for operation in (rejected, dead)]
    assert [status.state for status in states if status] == [OperationState.REJECTED, OperationState.DEAD]
    assert registry.history.resolve(did_of(ada)) is None
    assert registry.history.resolve(did_of(bob)) is None
    registry.store.redrive([dead])
    assert listed(registry.history.resolve(did_of(bob))) == ["create"], "it is on its way again"


@pytest.mark.parametrize("applied", [False, True])
def test_what_somebody_else_sends_about_a_did_is_not_shown(sqlite_fleet: Any, submit: Submit, applied: bool) -> None:
    """Operations that another release has taken, or that are held until their batch is cut."""
    sqlite_fleet.settings = {**HOUR, "apply_unpublished_operations": applied}
    registry, ada, mallory = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("mallory")
    mallory.suffix = ada.suffix
    submit(registry, ada.create)
    requests = [canonical_json(operation.request) for operation in (mallory.update(), mallory.deactivate())]
    registry.store.accept([check_request(request, registry.versions.latest) for request in requests])
    assert listed(registry.history.resolve(did_of(ada))) == ["create"]
    anchor(registry)
    answer = registry.history.resolve(did_of(ada))
    assert (services(answer), listed(answer)) == (["#home"], [])


def test_an_operation_that_is_observed_meanwhile_is_not_shown_twice(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_fleet.settings = {**HOUR, "apply_unpublished_operations": True}
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    read = registry.store.unpublished

    def then_it_is_observed(suffix: str, lifespan: float) -> Sequence[QueuedOperation]:
        found = read(suffix, lifespan)
        anchor(registry)
        return found

    monkeypatch.setattr(registry.store, "unpublished", then_it_is_observed)
    answer = registry.history.resolve(did_of(ada))
    assert (method_of(answer)["published"], listed(answer)) == (True, [])


def test_an_operation_that_cannot_be_read_keeps_no_did_from_being_resolved(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = HOUR
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    (broken,) = submit(registry, ada.update())
    sqlite_fleet.sql(f"UPDATE registry_operations SET request = '{{}}' WHERE id = '{broken}'")
    assert listed(registry.history.resolve(did_of(ada))) == []


def test_a_long_form_shows_what_was_accepted_after_it(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"unpublished_operation_lifespan": 60.0}
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    name = long_form(ada.create, SIDETREE)
    submit(registry, ada.create)
    sqlite_fleet.clock.advance(50)
    submit(registry, ada.update())
    assert listed(registry.history.resolve(name)) == ["create", "update"]
    sqlite_fleet.clock.advance(10)  # the create does not count any more, but the long form carries it
    answer = registry.history.resolve(name)
    assert answer is not None
    assert (method_of(answer)["published"], listed(answer), len(services(answer))) == (False, ["update"], 2)
    assert answer["didDocument"]["id"] == name
    assert registry.history.resolve(did_of(ada)) is None


def command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    program = [sys.executable, "-m", "millstream", *arguments, "--data", str(folder)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def submit_file(folder: Path, *operations: Operation) -> None:
    (folder / "operations.jsonl").write_bytes(b"\n".join(canonical_json(each.request) for each in operations))
    code, _, error = command(folder, "anchor", "submit", str(folder / "operations.jsonl"))
    assert code == 0, error


def test_the_command_line_follows_the_settings_file(tmp_path: Path) -> None:
    ada = DidOwner("ada")
    submit_file(tmp_path, ada.create)
    code, _, error = command(tmp_path, "did", "resolve", did_of(ada))
    assert (code, "unknown DID" in error) == (3, True)
    (tmp_path / "millstream.toml").write_text('[registry]\nunpublished_operation_lifespan = "1h"\n')
    code, out, _ = command(tmp_path, "did", "resolve", did_of(ada))
    assert code == 0
    assert (method_of(json.loads(out))["published"], listed(json.loads(out))) == (False, ["create"])


def test_both_settings_may_be_set_by_environment() -> None:
    environment = {
        "MILLSTREAM_REGISTRY__UNPUBLISHED_OPERATION_LIFESPAN": "90m",
        "MILLSTREAM_REGISTRY__APPLY_UNPUBLISHED_OPERATIONS": "true",
    }
    parameters = load_settings(environment=environment)[0].registry.parameters
    assert parameters.unpublished_operation_lifespan == 5400.0
    assert parameters.apply_unpublished_operations is True
    assert load_settings(environment={})[0].registry.parameters.unpublished_operation_lifespan == 0.0
