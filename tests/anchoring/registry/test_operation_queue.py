"""The operation queue: four functions, several instances, retries, death and expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring.errors import CasUnavailableError
from millstream.anchoring.registry import DidRegistry, OperationState, QueueStoppedError
from millstream.testing.dids import DidOwner
from support.statement_counts import statements_of

Submit = Callable[..., list[str]]


def people(count: int, name: str = "p") -> list[DidOwner]:
    return [DidOwner(f"{name}{n}") for n in range(count)]


def creates(count: int, name: str = "p") -> list[object]:
    return [person.create for person in people(count, name)]


def ids(registry: DidRegistry, limit: int = 100) -> list[str]:
    return [operation.id for operation in registry.queue.peek(limit)]


def test_what_is_added_is_peeked_in_the_order_of_acceptance(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    accepted = submit(registry, *creates(5))
    assert registry.queue.add(accepted) == 5
    assert registry.queue.add(accepted) == 0, "nothing is taken twice"
    assert ids(registry) == accepted
    assert ids(registry, 2) == accepted[:2]
    assert len(registry.queue) == 5


def test_operations_are_taken_and_counted_with_few_statements(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    accepted = submit(registry, *creates(5))
    with statements_of(fleet.engine) as statements:
        count, summary = registry.store.take("one", accepted[:4])
    assert len(statements) == {"sqlite": 2, "mysql": 3, "postgresql": 2}[fleet.engine.dialect.name]
    assert (count, summary) == (4, registry.store.whole_queue("one"))
    assert registry.store.take("one", accepted)[0] == 1


def test_what_is_removed_is_out_of_sight_until_it_is_settled(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    accepted = submit(registry, *creates(3))
    registry.queue.add(accepted)
    with registry.queue.remove(registry.queue.peek(2)) as removed:
        assert [operation.id for operation in removed.operations] == accepted[:2]
        assert ids(registry) == accepted[2:]
        assert not registry.queue.remove(removed.operations).operations
    assert ids(registry) == accepted, "given back at the end of the block"


def test_two_instances_share_the_work_and_nothing_is_in_two_queues(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    accepted = submit(one, *creates(10))
    assert one.queue.claim(4) == 4
    assert two.queue.claim(100) == 6
    assert ids(one) + ids(two) == accepted
    assert one.queue.add(accepted) == 0


def test_after_an_instance_has_ended_another_takes_what_it_had(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    accepted = submit(one, *creates(10))
    one.queue.claim(5)
    one.close()
    assert two.queue.claim(100) == 10
    assert ids(two) == accepted
    with pytest.raises(QueueStoppedError):
        one.queue.peek(1)
    with pytest.raises(QueueStoppedError):
        one.queue.add(accepted)
    assert len(one.queue) == 0


def test_a_failed_operation_is_tried_again_and_dead_after_the_last_retry(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    accepted = submit(registry, *creates(5))
    for turn in range(3):
        assert registry.queue.claim(100) == 5, f"turn {turn}"
        removed = registry.queue.remove(registry.queue.peek(100))
        removed.nack({operation.seq: f"failed {turn}" for operation in removed.operations})
    assert registry.queue.claim(100) == 0
    status = registry.store.status(accepted[0])
    assert status is not None
    assert (status.state, status.retries, status.reason) == (OperationState.DEAD, 2, "failed 2")
    assert registry.store.redrive(accepted[:2]) == 2
    assert registry.queue.claim(100) == 2
    assert registry.store.redrive() == 3


def test_a_retry_waits_longer_each_time(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.queue_settings = {"retry_first": 2.0, "retry_factor": 3.0, "retry_longest": 5.0}
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1))
    for pause in (2.0, 5.0, 5.0):
        registry.queue.claim(1)
        registry.queue.remove(registry.queue.peek(1)).nack({})
        sqlite_fleet.clock.advance(pause - 0.1)
        assert registry.queue.claim(1) == 0
        sqlite_fleet.clock.advance(0.1)
        assert registry.queue.claim(1) == 1


def test_a_did_has_one_operation_at_a_time_in_its_order(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    person, other = DidOwner("chain"), DidOwner("other")
    first, second, third = person.create, person.update(), person.update()
    chain = [*submit(registry, first), *submit(registry, second), *submit(registry, third)]
    alone = submit(registry, other.create)
    registry.queue.claim(100)
    assert ids(registry) == [chain[0], alone[0]]
    assert len(registry.writer.cut(force=True)) == 3
    assert [registry.store.status(name).anchor for name in chain + alone] == [1, 2, 3, 1]


def test_the_order_of_a_did_holds_across_instances(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    person = DidOwner("shared")
    first = submit(one, person.create)
    second = submit(two, person.update())
    one.queue.add(first)
    two.queue.add(second)
    assert ids(two) == []
    one.writer.cut(force=True)
    assert ids(two) == second


def test_a_second_submission_folds_into_the_first(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    person = DidOwner("twice")
    first = submit(registry, person.create)
    assert submit(registry, person.create, person.create) == first * 2
    assert fleet.counts == {"accepted": 1}
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert submit(registry, person.create) == first
    assert fleet.counts == {"observed": 1}


@pytest.mark.served
def test_suffixes_that_differ_in_case_alone_are_two(mariadb_fleet: Any) -> None:
    from millstream.anchoring.registry.states import Submission

    store = mariadb_fleet.instance().store
    twins = [Submission(name, name, "create", b"{}", "1.0") for name in ("EiAbc", "EiABC")]
    store.accept(twins)
    assert store.open_count() == 2
    assert [status.suffix for status in store.statuses_of("EiABC")] == ["EiABC"]


# Death


def leave_a_cut_open(fleet: Any, registry: DidRegistry) -> None:
    fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        registry.writer.cut(force=True)


def test_a_dead_instance_is_found_by_its_silence_and_its_operations_go_on_without_a_retry(
    sqlite_fleet: Any, submit: Submit
) -> None:
    one, two = sqlite_fleet.instance("one"), sqlite_fleet.instance("two")
    accepted = submit(one, *creates(4))
    one.instances.heartbeat()
    one.queue.claim(100)
    sqlite_fleet.clock.advance(59.0)
    two.instances.heartbeat()
    assert two.instances.dead() == []
    sqlite_fleet.clock.advance(2.0)
    assert two.instances.dead() == ["one"]
    assert two.instances.take_over_dead() == 4
    assert two.instances.dead() == []
    assert two.queue.claim(100) == 4
    assert [operation.retries for operation in two.queue.peek(10)] == [0] * 4
    assert ids(two) == accepted


def test_p10_an_instance_that_wakes_up_after_it_was_buried_cuts_nothing(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = sqlite_fleet.instance("one"), sqlite_fleet.instance("two")
    submit(one, *creates(3))
    one.instances.heartbeat()
    one.queue.claim(100)
    write_down = one.store.prepare

    def asleep_before_it_writes(*arguments: Any) -> Any:
        sqlite_fleet.clock.advance(61.0)
        two.instances.take_over_dead()
        two.queue.claim(100)
        return write_down(*arguments)

    monkeypatch.setattr(one.store, "prepare", asleep_before_it_writes)
    assert one.writer.cut(force=True) == []
    assert one.store.open_cuts() == []
    assert len(two.writer.cut(force=True)) == 1
    assert sqlite_fleet.counts == {"observed": 3}


def test_the_monitor_reposts_so_many_at_a_time_and_keeps_the_entry_until_all_are(
    sqlite_fleet: Any, submit: Submit
) -> None:
    sqlite_fleet.queue_settings = {"max_repost": 3}
    one, two = sqlite_fleet.instance("one"), sqlite_fleet.instance("two")
    submit(one, *creates(5))
    one.instances.heartbeat()
    one.queue.claim(100)
    sqlite_fleet.clock.advance(61.0)
    assert two.instances.take_over_dead() == 3
    assert two.instances.dead() == ["one"]
    assert two.instances.take_over_dead() == 2
    assert two.instances.dead() == []


def test_the_open_cut_of_a_dead_instance_is_finished_by_another(sqlite_fleet: Any, submit: Submit) -> None:
    one, two = sqlite_fleet.instance("one"), sqlite_fleet.instance("two")
    accepted = submit(one, *creates(3))
    one.instances.heartbeat()
    one.queue.claim(100)
    leave_a_cut_open(sqlite_fleet, one)
    assert sqlite_fleet.counts == {"cut": 3}
    sqlite_fleet.clock.advance(61.0)
    two.instances.take_over_dead()
    assert len(two.writer.recover()) == 1
    assert sqlite_fleet.counts == {"observed": 3}
    assert two.store.status(accepted[2]).anchor == 1


def test_an_instance_that_leaves_with_an_open_cut_is_still_found(sqlite_fleet: Any, submit: Submit) -> None:
    one, two = sqlite_fleet.instance("one"), sqlite_fleet.instance("two")
    submit(one, *creates(1))
    one.instances.heartbeat()
    one.queue.claim(100)
    leave_a_cut_open(sqlite_fleet, one)
    one.close()
    assert two.instances.dead() == ["one"], "others need not wait for the end of its heartbeats"
    two.instances.take_over_dead()
    assert len(two.writer.recover()) == 1


def test_the_next_run_finishes_what_a_failed_run_had_begun_to_anchor(fleet: Any, submit: Submit) -> None:
    submit(fleet.instance("first"), *creates(3))
    fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        fleet.instance("first").cut_once(force=True)
    assert fleet.counts == {"cut": 3}
    assert len(fleet.instance("second").cut_once(force=True)) == 1
    assert fleet.counts == {"observed": 3}
    assert fleet.instance("third").instances.known() == []


def test_the_next_run_anchors_what_a_killed_run_had_queued(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.queue_settings = {"max_repost": 2}
    killed = sqlite_fleet.instance("killed")
    submit(killed, *creates(5))
    killed.instances.heartbeat()
    killed.queue.claim(100)
    assert sqlite_fleet.instance("second").cut_once(force=True) == [], "the first one may still be at work"
    sqlite_fleet.clock.advance(61.0)
    assert len(sqlite_fleet.instance("third").cut_once(force=True)) == 1
    assert sqlite_fleet.counts == {"observed": 5}


@pytest.mark.parametrize("is_cut", [True, False])
def test_work_of_an_instance_without_an_entry_is_taken_over(fleet: Any, submit: Submit, is_cut: bool) -> None:
    """It never had an entry, or the entry was removed just before its claim was committed, and then it was killed."""
    one, two = fleet.instance("one"), fleet.instance("two")
    submit(one, *creates(3))
    one.queue.claim(100)
    if is_cut:
        leave_a_cut_open(fleet, one)
    assert one.instances.dead() == []
    assert two.instances.dead() == ["one"]
    two.instances.take_over_dead()
    assert two.instances.dead() == []
    two.queue.claim(100)
    assert len(two.writer.cut(force=True)) == 1
    assert fleet.counts == {"observed": 3}


# Expiry


def test_only_operations_in_a_final_state_are_ever_forgotten(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"operation_lifespan": 100.0}
    registry = sqlite_fleet.instance()
    done = submit(registry, *creates(3, "done"))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    waiting = submit(registry, *creates(2, "waiting"))
    sqlite_fleet.clock.advance(99.0)
    assert registry.store.expire() == 0
    sqlite_fleet.clock.advance(1_000_000.0)
    assert registry.store.expire(limit=2) == 3
    assert registry.store.status(done[0]) is None
    assert registry.store.status(waiting[0]) is not None


def test_a_database_that_stays_away_is_an_error_and_not_a_crash(sqlite_fleet: Any) -> None:
    from millstream.anchoring.registry import DatabaseBusyError

    registry = sqlite_fleet.instance()
    with sqlite_fleet.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE registry_operations"))
    with pytest.raises(DatabaseBusyError, match=r"registry.db failed \(no such table: registry_operations\)$"):
        registry.store.counts()


def test_operations_of_a_did_are_read_in_pages_that_the_index_bounds(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    person = DidOwner("long-life")
    submit(registry, person.create, DidOwner("other").create)
    registry.queue.claim(10)
    registry.writer.cut(force=True)  # final ones and open ones
    submit(registry, *(person.update() for _ in range(5)))
    everything = registry.store.statuses_of(person.suffix)
    found, after = list[object](), 0
    while page := registry.store.statuses_page(person.suffix, after=after, limit=4):
        assert len(page) in (4, 2)
        found += [status for _, status in page]
        after = page[-1][0]
    assert found == list(everything) and len(found) == 6


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT seq FROM registry_operations WHERE state = 'queued' AND instance = 'x' ORDER BY seq LIMIT 5",
        "SELECT seq FROM registry_operations WHERE state = 'accepted' AND available_at <= 5 ORDER BY seq LIMIT 5",
        "SELECT seq FROM registry_operations WHERE expires_at <= 5 AND NOT open LIMIT 5",
        "SELECT seq FROM registry_operations WHERE suffix = 'x' AND open AND seq < 5",
        "SELECT seq FROM registry_operations WHERE cut = 5 ORDER BY place",
        "SELECT * FROM registry_operations WHERE suffix = 'x' AND open = 1 AND seq > 5 ORDER BY seq LIMIT 5",
    ],
)
def test_what_recovery_and_expiry_look_for_has_an_index(sqlite_fleet: Any, statement: str) -> None:
    """Orb queries its records by server and declares no such index."""
    with sqlite_fleet.engine.connect() as connection:
        plan = " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}"))
    assert "USING INDEX registry_operations" in plan or "USING COVERING INDEX registry_operations" in plan
    assert "SCAN" not in plan


@pytest.mark.parametrize("column", ["cut", "expires_at"])
def test_what_an_operation_does_not_have_yet_is_in_no_index(sqlite_fleet: Any, column: str) -> None:
    with sqlite_fleet.engine.connect() as connection:
        made = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE tbl_name = 'registry_operations'")
        texts = [text for (text,) in made if text and text.startswith("CREATE INDEX") and f"({column})" in text]
    assert [text.rpartition(" WHERE ")[2] for text in texts] == [f"{column} IS NOT NULL"]
