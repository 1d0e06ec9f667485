"""When an operation may be anchored (Orb's anchorFrom and anchorUntil): at the door, at the cut, and for readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.anchoring.registry import OperationState, ProtocolVersion, ProtocolVersions
from millstream.anchoring.sidetree import ORB, Operation, RequestError, parse_request
from millstream.anchoring.sidetree.encoding import canonical, commitment_to, hash_of
from millstream.anchoring.sidetree.signatures import sign
from millstream.core.clock import MICROSECONDS
from millstream.testing.dids import DidOwner, secret_key

Submit = Callable[..., list[str]]


def update(person: DidOwner, **window: Any) -> bytes:
    """An update of *person*, signed with the members *window*."""
    service = {"id": "late", "type": "page", "serviceEndpoint": "https://example.org"}
    delta = {"patches": [{"action": "add-services", "services": [service]}]}
    delta |= {"updateCommitment": commitment_to(secret_key("next").public)}  # type: ignore[dict-item]
    key = person.update_key
    signed = sign({"updateKey": key.public, "deltaHash": hash_of(delta), **window}, key)
    head = {"type": "update", "didSuffix": person.suffix, "revealValue": hash_of(key.public)}
    return canonical({**head, "delta": delta, "signedData": signed})


@pytest.fixture
def person(sqlite_fleet: Any, submit: Submit) -> DidOwner:
    """Somebody whose DID is anchored in a network with the rules of Orb."""
    sqlite_fleet.versions = ProtocolVersions([ProtocolVersion("orb", ORB)])
    made, registry = DidOwner("window"), sqlite_fleet.instance()
    submit(registry, made.create)
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    return made


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({"anchorFrom": -1}, "whole number of seconds"),
        ({"anchorFrom": "1"}, "whole number of seconds"),
        ({"anchorUntil": True}, "whole number of seconds"),
        ({"anchorFrom": 1_000, "anchorUntil": 999}, "0 to 600 seconds"),
        ({"anchorFrom": 1_000, "anchorUntil": 1_601}, "0 to 600 seconds"),
    ],
)
def test_a_window_that_no_operation_may_have_is_refused(person: DidOwner, window: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        parse_request(update(person, **window), ORB)
    assert refused.value.code == "anchor_window"


def test_without_an_end_a_window_is_as_long_as_the_network_says(person: DidOwner) -> None:
    """Go adds the largest size of a delta to anchorFrom instead (reference 1.9)."""
    from millstream.anchoring.sidetree.operations import time_window_fault

    operation = parse_request(update(person, anchorFrom=5_000), ORB)
    faults = [time_window_fault(operation, ORB, second * MICROSECONDS) for second in (4_999, 5_000, 5_599, 5_600)]
    assert [fault is None for fault in faults] == [False, True, True, False]


def test_what_comes_too_early_or_too_late_is_refused_at_the_door(sqlite_fleet: Any, person: DidOwner) -> None:
    registry, now = sqlite_fleet.instance(), sqlite_fleet.clock.now() // MICROSECONDS
    outcomes = registry.acceptance.submit_many(
        [update(person, anchorFrom=now + 60), update(person, anchorFrom=now - 600), update(person, anchorFrom=now)]
    )
    assert [outcome.code for outcome in outcomes] == ["not_applicable", "not_applicable", None]
    assert "send it again then" in str(outcomes[0].error)
    assert "sign it again" in str(outcomes[1].error)


@pytest.mark.parametrize("others", [0, 2])
def test_what_expires_in_the_queue_is_rejected_with_that_reason_and_stops_nothing(
    sqlite_fleet: Any, person: DidOwner, submit: Submit, others: int
) -> None:
    """Orb drops it without a word, and a batch of nothing else is anchored as "0." or with null deltas (1.4)."""
    registry, now = sqlite_fleet.instance(), sqlite_fleet.clock.now() // MICROSECONDS
    expiring = registry.acceptance.submit(update(person, anchorFrom=now, anchorUntil=now + 30)).id
    good = [DidOwner(f"other{n}") for n in range(others)]
    accepted = submit(registry, *[each.create for each in good])
    sqlite_fleet.clock.advance(30.0)
    registry.queue.claim(10)
    entries = registry.writer.cut(force=True)
    status = registry.store.status(expiring)
    assert (status.state, "expired" in status.reason) == (OperationState.REJECTED, True)
    assert [entry.anchor_string.partition(".")[0] for entry in entries] == ([str(others)] if others else [])
    assert {registry.store.status(name).state for name in accepted} <= {OperationState.OBSERVED}
    assert not sqlite_fleet.counts.get("queued")


def test_an_anchor_that_was_made_too_late_does_not_count(
    sqlite_fleet: Any, person: DidOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that dies between its cut and its anchor leaves a batch that is anchored later than was signed for."""
    registry, now = sqlite_fleet.instance(), sqlite_fleet.clock.now() // MICROSECONDS
    late = registry.acceptance.submit(update(person, anchorFrom=now, anchorUntil=now + 30)).id
    registry.queue.claim(10)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sqlite_fleet.ledger, "append", dies)
        registry.writer.cut(force=True)
    sqlite_fleet.clock.advance(60.0)
    assert len(registry.writer.recover()) == 1
    status = registry.store.status(late)
    assert (status.state, "outside" in status.reason) == (OperationState.REJECTED, True)
    operations: list[Operation] = [each.operation for each in registry.history.operations(person.suffix)]
    assert [operation.type for operation in operations] == ["create"]
