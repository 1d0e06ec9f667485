"""Two transactions on the same operations, on database servers: the second one commits amid the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.anchoring.registry import DidRegistry, OperationState
from millstream.anchoring.registry.follow_state import begin, follow_state
from millstream.testing.dids import DidOwner
from support.statement_order import before_statement

Submit = Callable[..., list[str]]

pytestmark = pytest.mark.served


@pytest.fixture(params=["mariadb", "postgresql"])
def fleet(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_fleet")


def rejected(registry: DidRegistry, submit: Submit, person: DidOwner) -> str:
    """The id of an operation of *person* that is rejected."""
    (name,) = submit(registry, person.create)
    registry.queue.claim(10)
    registry.store.reject(registry.instance, {operation.seq: "because" for operation in registry.queue.peek(10)})
    assert state(registry, name) == OperationState.REJECTED
    return name


def state(registry: DidRegistry, name: str) -> OperationState | None:
    status = registry.store.status(name)
    return status and status.state


def test_an_operation_that_is_accepted_again_does_not_expire(fleet: Any, submit: Submit) -> None:
    fleet.settings = {"operation_lifespan": 0.0}
    registry, person = fleet.instance(), DidOwner("again")
    name = rejected(registry, submit, person)
    with before_statement(fleet.engine, "DELETE", lambda: submit(registry, person.create)):
        assert registry.store.expire() == 0
    assert state(registry, name) == OperationState.ACCEPTED


def test_an_operation_that_expires_while_it_is_accepted_again_is_kept(postgresql_fleet: Any, submit: Submit) -> None:
    """MariaDB locks a known row at the insert: it cannot expire then."""
    postgresql_fleet.settings = {"operation_lifespan": 0.0}
    registry, person = postgresql_fleet.instance(), DidOwner("again")
    name = rejected(registry, submit, person)
    with before_statement(postgresql_fleet.engine, "UPDATE", registry.store.expire):
        assert submit(registry, person.create) == [name]
    assert state(registry, name) == OperationState.ACCEPTED


def test_a_takeover_leaves_operations_alone_that_their_instance_has_cut_since(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    submit(one, *(DidOwner(f"p{n}").create for n in range(3)))
    one.queue.claim(10)
    with before_statement(fleet.engine, "UPDATE", lambda: one.writer.cut(force=True)):
        assert two.store.repost("one", 10) == 0
    assert fleet.counts == {"observed": 3}


def test_a_retry_leaves_operations_alone_that_another_instance_has_cut_since(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    submit(one, *(DidOwner(f"p{n}").create for n in range(3)))
    one.queue.claim(10)
    removed = one.queue.remove(one.queue.peek(10))

    def take_over_and_cut() -> None:
        two.store.repost("one", 10)
        two.queue.claim(10)
        two.writer.cut(force=True)

    with before_statement(fleet.engine, "UPDATE", take_over_and_cut):
        removed.nack({})
    assert fleet.counts == {"observed": 3}


def test_an_instance_rejects_no_operation_that_another_one_has_taken_over(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    submit(one, DidOwner("taken").create)
    one.queue.claim(10)
    (operation,) = one.queue.peek(10)
    two.store.repost("one", 10)
    two.queue.claim(10)
    one.store.reject("one", {operation.seq: "no effect, as one saw it"})
    assert [each.id for each in two.queue.peek(10)] == [operation.id]


def test_an_instance_that_sends_a_heartbeat_during_its_takeover_keeps_its_entry(fleet: Any) -> None:
    fleet.queue_settings = {"task_expiration": 0.0}
    one, two = fleet.instance("one"), fleet.instance("two")
    one.instances.heartbeat()
    with before_statement(fleet.engine, "DELETE", one.instances.heartbeat):
        two.instances.take_over_dead()
    assert two.instances.known() == ["one"]


def test_a_registry_that_has_begun_to_follow_does_not_forget_that(fleet: Any) -> None:
    def start(*, claim: bool) -> None:
        fleet.database.write(lambda connection, _: begin(connection, "ledger", "sidetree", "sidetree", claim=claim))

    start(claim=False)
    with before_statement(fleet.engine, "UPDATE", lambda: start(claim=True)):
        start(claim=False)
    assert fleet.database.query(follow_state) is not None


def test_two_processes_may_begin_to_follow_at_once(fleet: Any) -> None:
    def start(*, claim: bool) -> None:
        fleet.database.write(lambda connection, _: begin(connection, "ledger", "sidetree", "sidetree", claim=claim))

    with before_statement(fleet.engine, "INSERT", lambda: start(claim=True)):
        start(claim=False)
    assert fleet.database.query(follow_state) is not None
