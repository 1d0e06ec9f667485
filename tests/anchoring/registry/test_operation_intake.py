"""Acceptance: what is taken is durable, what is refused says why, and a crowd is asked to come back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring.registry import (
    DatabaseBusyError,
    NotTriedError,
    OperationIntake,
    OperationState,
    SubmissionResult,
    TooManyOpenError,
    operation_intake,
)
from millstream.anchoring.registry.operation_intake import _PendingSubmissions
from millstream.anchoring.sidetree import RequestError
from millstream.core.canonical import canonical_json
from millstream.core.sql import current_patience, patience_within, waiting_with
from millstream.testing.dids import DidOwner


def request_of(operation: Any) -> bytes:
    return canonical_json(operation.request)


def test_what_was_taken_is_known_by_its_hash(fleet: Any) -> None:
    registry = fleet.instance()
    person = DidOwner("known")
    status = registry.acceptance.submit(request_of(person.create))
    assert status == registry.store.status(status.id)
    assert (status.suffix, status.type, status.state) == (person.suffix, "create", OperationState.ACCEPTED)
    assert status.accepted_at > 0


def test_another_spelling_of_a_request_is_the_same_operation(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    request = request_of(DidOwner("spelled").create)
    spaced = request.replace(b",", b" ,\n ")
    assert registry.acceptance.submit(request).id == registry.acceptance.submit(spaced).id


def test_in_bulk_every_request_has_its_own_outcome(fleet: Any) -> None:
    registry = fleet.instance()
    good = [request_of(DidOwner(f"bulk{n}").create) for n in range(3)]
    outcomes = registry.acceptance.submit_many([good[0], b"{", good[1], b'{"type":"create"}', good[2], good[0]])
    assert [outcome.code for outcome in outcomes] == [None, "not_json", None, "members", None, None]
    assert outcomes[0] == outcomes[5]
    assert fleet.counts == {"accepted": 3}
    assert registry.acceptance.submit_many([]) == []
    assert registry.acceptance.submit_many([b""]) == [
        SubmissionResult(code="not_json", error="the operation is not JSON: Input data was truncated")
    ]


def test_a_change_of_a_did_that_nobody_created_is_refused(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    person = DidOwner("unknown")
    update = request_of(person.update())
    with pytest.raises(RequestError, match="submit its create operation first"):
        registry.acceptance.submit(update)
    registry.acceptance.submit(request_of(person.create))
    assert registry.acceptance.submit(update).state == OperationState.ACCEPTED


def test_a_change_of_a_deactivated_did_is_refused(fleet: Any) -> None:
    registry = fleet.instance()
    ended, alive, new, unknown = (DidOwner(name) for name in ("ended", "alive", "new", "unknown"))
    named_so = {"id": "s", "type": "page", "serviceEndpoint": {"type": "deactivate"}}
    later = [ended.update(), alive.update()]
    for round_ in ([ended.create, alive.create], [ended.deactivate(), *later[1:]]):
        registry.acceptance.submit_many([request_of(operation) for operation in round_])
        registry.queue.claim(10)
        registry.writer.cut(force=True)
    asked = [later[0], alive.update([{"action": "add-services", "services": [named_so]}]), unknown.update()]
    asked += [new.create, new.update()]
    outcomes = registry.acceptance.submit_many([request_of(operation) for operation in asked])
    assert [outcome.code for outcome in outcomes] == ["not_applicable", None, "not_applicable", None, None]
    assert "deactivated" in (outcomes[0].error or "") and "submit its create operation first" in (
        outcomes[2].error or ""
    )
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert registry.acceptance.submit(request_of(alive.update())).type == "update", (
        "a service of that name is not an end"
    )
    with pytest.raises(RequestError, match="deactivated"):
        registry.acceptance.submit(request_of(later[0]))


def test_a_crowd_is_asked_to_come_back(sqlite_fleet: Any) -> None:
    sqlite_fleet.settings = {"max_open": 2}
    registry = sqlite_fleet.instance()
    requests = [request_of(DidOwner(f"crowd{n}").create) for n in range(3)]
    registry.acceptance.submit_many(requests[:2])
    sqlite_fleet.clock.advance(1.0)
    with pytest.raises(TooManyOpenError) as caught:
        registry.acceptance.submit(requests[2])
    assert caught.value.retry_after == 5.0
    with pytest.raises(TooManyOpenError):
        registry.acceptance.submit_many(requests[2:])
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    sqlite_fleet.clock.advance(1.0)
    assert registry.acceptance.submit(requests[2]).state == OperationState.ACCEPTED


def test_threads_share_transactions(sqlite_fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = sqlite_fleet.instance()
    requests = [request_of(DidOwner(f"thread{n}").create) for n in range(40)]
    committing, gate, sizes = threading.Event(), threading.Event(), list[int]()
    accept = registry.store.accept

    def slow_at_first(submissions: Sequence[Any]) -> Sequence[Any]:
        sizes.append(len(submissions))
        committing.set()
        gate.wait(30)
        return accept(submissions)  # type: ignore[no-any-return]

    monkeypatch.setattr(registry.store, "accept", slow_at_first)
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: registry.acceptance.submit(requests[n]).id}))
        for n in range(40)
    ]
    threads[0].start()
    assert committing.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(registry.acceptance._waiting) < 39:
        threading.Event().wait(0.001)
    gate.set()
    for thread in threads:
        thread.join()
    assert sizes == [1, 39]
    assert [registry.store.status(found[n]).id for n in range(40)] == [found[n] for n in range(40)]


def test_an_acceptance_that_fails_tells_everybody_who_waits(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    request = request_of(DidOwner("failing").create)
    registry.store.open_count()
    registry.acceptance._refuse_crowd()
    with sqlite_fleet.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE registry_operations RENAME TO hidden"))
    with pytest.raises(DatabaseBusyError):
        registry.acceptance.submit(request)
    with sqlite_fleet.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE hidden RENAME TO registry_operations"))
    assert registry.acceptance.submit(request).state == OperationState.ACCEPTED


def test_an_operation_that_fails_unexpectedly_fails_alone(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    people = [DidOwner(f"beside{n}") for n in range(9)]
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations "
        f"WHEN NEW.suffix = '{people[4].suffix}' BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    results = registry.acceptance.submit_many([*(request_of(person.create) for person in people), b"{"])
    assert [result.code for result in results] == [None] * 4 + ["internal"] + [None] * 4 + ["not_json"]
    with pytest.raises(sa.exc.IntegrityError, match="a fault"):
        results[4].result()
    assert sqlite_fleet.counts == {"accepted": 8}
    sqlite_fleet.sql("DROP TRIGGER fault")
    assert registry.acceptance.submit(request_of(people[4].create)).state == OperationState.ACCEPTED


def test_a_request_that_cannot_be_read_because_of_a_fault_fails_alone(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    results = registry.acceptance.submit_many([None, request_of(DidOwner("beside a fault").create)])
    assert [result.code for result in results] == ["internal", None]


def test_after_some_faults_the_rest_of_a_group_is_not_tried(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    tries = list[object]()
    sa.event.listen(sqlite_fleet.engine, "rollback", tries.append)
    results = registry.acceptance.submit_many([request_of(DidOwner(f"all{n}").create) for n in range(64)])
    assert {result.code for result in results} == {"internal"}
    assert len(tries) < 30


def test_many_faults_of_one_caller_do_not_decide_for_the_others(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    many, others = [DidOwner(f"many{n}") for n in range(20)], [DidOwner(f"other{n}") for n in range(3)]
    failing = ", ".join(f"'{person.suffix}'" for person in many)
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations "
        f"WHEN NEW.suffix IN ({failing}) BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    sent = [
        [request_of(person.create) for person in people]
        for people in (many, [many[0], others[0]], others[1:2], [*many[:3], others[2]])
    ]
    groups = [
        _PendingSubmissions([registry.acceptance.check(one) for one in some], current_patience()) for some in sent
    ]
    tries = list[object]()
    sa.event.listen(sqlite_fleet.engine, "rollback", tries.append)
    registry.acceptance._take(groups)
    codes = [[result.code for result in group.future.result()] for group in groups]
    assert codes == [["internal"] * 20, ["internal", "busy"], [None], ["internal"] * 3 + [None]]
    assert len(tries) < 40


def test_a_group_that_was_refused_as_a_whole_does_not_ask_the_database(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    person = DidOwner("beside an empty group")
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    judge = registry.acceptance._judge = _CountingJudge()
    groups = [
        _PendingSubmissions([registry.acceptance.check(request)], current_patience())
        for request in (b"{", request_of(person.create))
    ]
    registry.acceptance._take(groups)
    assert [[result.code for result in group.future.result()] for group in groups] == [["not_json"], ["internal"]]
    assert 0 not in judge.sizes


class _CountingJudge:
    """Refuses nothing, and keeps how many operations it was asked about at a time."""

    def __init__(self) -> None:
        self.sizes = list[int]()

    def refusals(self, operations: Sequence[Any]) -> Sequence[None]:
        self.sizes.append(len(operations))
        return [None] * len(operations)

    def accepted(self, operations: Iterable[Any]) -> None:
        pass


def test_operations_between_many_that_fail_are_taken(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    people = [DidOwner(f"between{n}") for n in range(40)]
    failing = ", ".join(f"'{person.suffix}'" for person in people[::4])
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations "
        f"WHEN NEW.suffix IN ({failing}) BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    results = registry.acceptance.submit_many([request_of(person.create) for person in people])
    assert [result.code for result in results] == ["internal", None, None, None] * 10


def test_a_commit_with_many_faults_leaves_the_rest_to_another_one(
    sqlite_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_intake, "COMMIT_FAULTS", 4)
    registry = sqlite_fleet.instance()
    people = [DidOwner(f"half{n}") for n in range(24)]
    requests = [request_of(person.create) for person in people]
    failing = ", ".join(f"'{person.suffix}'" for person in people[::2])
    sqlite_fleet.sql(
        "CREATE TRIGGER fault BEFORE INSERT ON registry_operations "
        f"WHEN NEW.suffix IN ({failing}) BEGIN SELECT RAISE(ABORT, 'a fault'); END"
    )
    results = registry.acceptance.commit([registry.acceptance.check(request) for request in requests]).result()
    assert [result.code for result in results] == ["internal", None] * 3 + ["internal"] + ["busy"] * 17
    with pytest.raises(NotTriedError, match="send it again"):
        results[-1].result()
    assert [one.code for one in registry.acceptance.submit_many(requests)] == ["internal", None] * 12


def test_who_waits_for_an_answer_waits_for_a_database_as_long_as_he_says(sqlite_fleet: Any) -> None:
    registry, clock = sqlite_fleet.instance(), sqlite_fleet.clock
    request = request_of(DidOwner("impatient").create)
    sqlite_fleet.sql("ALTER TABLE registry_operations RENAME TO hidden")
    waits = list[float]()
    for patience in (patience_within(3.0), current_patience()):
        began = clock.monotonic()
        with waiting_with(patience), pytest.raises(DatabaseBusyError):
            registry.acceptance.submit(request)
        waits.append(clock.monotonic() - began)
    assert waits[0] <= 3.0 and waits[1] > 15.0


def test_what_is_accepted_is_told_after_it_is_durable(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    told = list[list[str]]()

    def notify(operations: Sequence[str]) -> None:
        assert registry.store.status(operations[0]) is not None
        told.append(list(operations))

    acceptance = OperationIntake(registry.store, registry.versions, notify=notify)
    status = acceptance.submit(request_of(DidOwner("told").create))
    assert told == [[status.id]]


def test_a_group_of_updates_is_judged_with_three_look_ups_and_stored_with_one_statement(sqlite_fleet: Any) -> None:
    registry, people = sqlite_fleet.instance(), [DidOwner(f"judged{n}") for n in range(20)]
    registry.acceptance.submit_many([request_of(person.create) for person in people])
    statements, connections = list[str](), list[object]()

    def follow(connection: Any, *_: object) -> None:
        connections.append(connection)
        connection.set_trace_callback(statements.append)

    sa.event.listen(sqlite_fleet.engine, "checkout", follow)
    results = registry.acceptance.submit_many([request_of(person.update()) for person in people])
    assert all(result.status for result in results)
    look_ups, writes = ([text for text in statements if text.startswith(word)] for word in ("SELECT", "INSERT"))
    assert len(writes) == 1 and len(connections) == 2, "one to look, one to write"
    asked = [text.partition("FROM ")[2].split()[0] for text in look_ups]
    assert asked == ["registry_operations", "registry_pending_anchors", "registry_history", "registry_following"]


@pytest.mark.parametrize("table", ["registry_operations", "registry_history", "registry_following"])
def test_a_database_that_fails_while_updates_are_judged_does_not_answer(sqlite_fleet: Any, table: str) -> None:
    registry, person = sqlite_fleet.instance(), DidOwner("failing")
    registry.acceptance.submit(request_of(person.create))
    update = request_of(person.update())
    sqlite_fleet.sql(f"ALTER TABLE {table} RENAME TO absent")
    with pytest.raises(DatabaseBusyError, match="no such table"):
        registry.acceptance.submit(update)
    sqlite_fleet.sql(f"ALTER TABLE absent RENAME TO {table}")
    assert registry.acceptance.submit(update).state == OperationState.ACCEPTED
