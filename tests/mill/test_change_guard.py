"""The change guard (P8): small losses pass, large ones wait for a person, an approval is good for what was approved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.cli.mill.plan_printing import held_lines
from millstream.core.sql import SqlBusyError
from millstream.mill.duplication.change_guard import MIN_COPIES, ChangeBudgets, ChangeGuard
from millstream.mill.duplication.differences import DuplicationPlan
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.errors import UnknownApprovalError
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.policy import Pair
from millstream.mill.tasks import Duplicate
from millstream.stores import StoreUnavailableError
from millstream.testing.faulty_store import UnavailableStore

PAIR = Pair("1", "2")
DAY = 24 * 3600
BUDGETS = ChangeBudgets(deletes=0.1, changes=0.2, least=5)


def change_guard(world: Any, **more: Any) -> ChangeGuard:
    return ChangeGuard(world.engine, world.clock, world.manifest.count, BUDGETS, **more)


def plan(**counts: int) -> DuplicationPlan:
    return DuplicationPlan(PAIR, "s", **({"copied": 100} | counts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"deletes": 10, "replaced": 20, "held": 10, "copies": 10**6, "changes": 10**6}, None),
        ({"deletes": 11}, "11 deletes of 100 copies; the budget is 10"),
        ({"replaced": 21}, "21 changes of 100 copies; the budget is 20"),
        ({"held": 11}, "11 of 100 copies have lost their original without a record; the budget is 10"),
        ({"copied": 20, "deletes": 5}, None),
        ({"copied": 20, "deletes": 6}, "6 deletes of 20 copies; the budget is 5"),
        ({"copied": MIN_COPIES, "deletes": 3, "held": MIN_COPIES - 3}, "the source lists nothing"),
        ({"copied": MIN_COPIES - 1, "deletes": 5, "held": MIN_COPIES - 6}, None),
        ({"copied": 0}, None),
    ],
)
def test_p8_a_plan_beyond_a_budget_is_held_with_the_reason(
    world: Any, counts: dict[str, int], reason: str | None
) -> None:
    hold = change_guard(world).check(plan(**counts))
    assert [one.number for one in change_guard(world).pending()] == ([hold] if hold else [])
    assert (hold is None) == (reason is None)
    if reason is not None:
        (held,) = change_guard(world).pending()
        assert reason in held.reason
        assert (held.deletes, held.changes, held.vanished) == tuple(
            counts.get(name, 0) for name in ("deletes", "replaced", "held")
        )


def test_what_is_held_keeps_its_number_until_it_is_over(world: Any) -> None:
    number = change_guard(world).check(plan(deletes=50))
    assert change_guard(world).check(plan(deletes=40)) == number
    assert [hold.deletes for hold in change_guard(world).pending()] == [40]
    assert change_guard(world).check(plan(deletes=1)) is None
    assert change_guard(world).pending() == []
    assert change_guard(world).check(plan(deletes=40)) != number


def test_a_plan_that_has_grown_has_to_be_looked_at_again(world: Any) -> None:
    seen = change_guard(world).check(plan(deletes=50)) or 0
    grown = change_guard(world).check(plan(deletes=90)) or 0
    assert [hold.number for hold in change_guard(world).pending()] == [grown]
    with pytest.raises(UnknownApprovalError, match=f"number {seen}"):
        change_guard(world).approve([seen])


def test_an_approval_is_good_for_what_was_approved_and_not_for_more(world: Any) -> None:
    held = change_guard(world)
    number = held.check(plan(deletes=50)) or 0
    (approved,) = held.approve([number])
    assert approved.expires_at == world.clock.now() + BUDGETS.approval
    assert held.pending() == []
    assert held.check(plan(deletes=60)) is None  # those and the budget
    assert held.check(plan(deletes=61)) not in (None, number)
    assert held.check(msgspec.structs.replace(plan(deletes=50), space="another")) is not None


def test_p8_an_approval_takes_the_place_of_the_one_before_and_does_not_come_on_top(world: Any) -> None:
    held = change_guard(world)
    for deletes in (50, 70):
        assert held.check(plan(deletes=deletes, replaced=30)) is not None
        held.approve()
    assert held.check(plan(deletes=80, replaced=50)) is None  # those and the budgets
    assert held.check(plan(deletes=81)) is not None
    assert held.check(plan(replaced=51)) is not None


def test_an_approval_ends(world: Any) -> None:
    held = change_guard(world)
    held.check(plan(deletes=50))
    held.approve()
    world.clock.advance(BUDGETS.approval / 1_000_000 + 1)
    assert held.check(plan(deletes=50)) is not None


def test_an_approval_of_a_number_that_nothing_waits_under_approves_nothing(world: Any) -> None:
    number = change_guard(world).check(plan(deletes=50)) or 0
    with pytest.raises(UnknownApprovalError, match="number 99"):
        change_guard(world).approve([number, 99])
    assert len(change_guard(world).pending()) == 1


def test_no_decision_is_made_without_its_record(world: Any) -> None:
    def fail(_: object, _plan: object) -> None:
        raise SqlBusyError("the audit log is locked")

    held = change_guard(world)
    number = held.check(plan(deletes=50)) or 0
    for decide in (partial(held.approve, [number]), partial(held.reject, number, "ann", "the wrong disk")):
        with pytest.raises(SqlBusyError):
            decide(record=fail)
    (waiting,) = held.pending()
    assert (waiting.approved_at, waiting.rejected_at) == (None, None)
    recorded: list[int | None] = []
    held.approve([number], lambda _, approved: recorded.append(approved.approved_at))
    assert recorded == [world.clock.now()]


def test_an_emptied_source_needs_an_approval_that_counts_all_of_it(world: Any) -> None:
    held = change_guard(world)
    held.check(plan(deletes=40))
    held.approve()
    assert held.check(plan(deletes=10, held=90)) is not None
    held.approve()
    assert held.check(plan(deletes=10, held=90)) is None


def filled(world: Any, count: int) -> ChangeGuard:
    """*count* items with a copy each, all of them recorded."""
    for number in range(count):
        for store in "12":
            world.put(ItemRef(store, "s", f"{number:03d}"))
    return change_guard(world)


def duplicate(world: Any, held: ChangeGuard, number: int) -> str:
    task = Duplicate("1", "2", "s", f"{number:03d}")
    result = DuplicationProcessor(world.providers, world.manifest, held).process(task, 1)
    world.manifest.writer.record(result.events)
    return result.summary


def lose(world: Any, number: int) -> None:
    world.stores["1"].delete("s", f"{number:03d}")
    world.record(ItemRef("1", "s", f"{number:03d}"), None, deleted=True)


def test_p8_audited_deletes_reach_the_copies_within_the_budget_of_a_day(world: Any) -> None:
    held = filled(world, 12)
    for number in range(8):
        lose(world, number)
    done = [duplicate(world, held, number).split()[1] for number in range(8)]
    assert done == ["delete:"] * 5 + ["held"] * 3
    assert [world.has(ItemRef("2", "s", f"{n:03d}")) for n in range(8)] == [False] * 5 + [True] * 3
    (hold,) = held.pending()
    assert (hold.deletes, hold.space, hold.pair) == (3, "s", PAIR)
    held.approve([hold.number])
    assert [duplicate(world, held, number).split()[1] for number in range(5, 8)] == ["delete:"] * 3
    lose(world, 8)
    assert duplicate(world, held, 8).split()[1] == "held"
    world.clock.advance(DAY + 3600)
    assert duplicate(world, held, 8).split()[1] == "delete:"


def test_p8_nobody_approves_deletes_that_came_after_those_that_were_shown(world: Any) -> None:
    held = ChangeGuard(world.engine, world.clock, lambda *_: 0, BUDGETS)
    numbers = [held.spend(PAIR, "s", "deletes") for _ in range(BUDGETS.least + 3 * BUDGETS.least)]
    asked = [number for number in numbers if number is not None]
    assert [asked.count(number) for number in dict.fromkeys(asked)] == [BUDGETS.least] * 3
    (hold,) = held.pending()
    assert (hold.number, hold.deletes) == (asked[-1], 3 * BUDGETS.least)
    with pytest.raises(UnknownApprovalError, match=f"number {asked[0]}"):
        held.approve([asked[0]])
    held.approve([hold.number])
    assert held.spend(PAIR, "another", "deletes") is None
    done = [held.spend(PAIR, "s", "deletes") for _ in range(3 * BUDGETS.least + 1)]
    assert [number is None for number in done] == [True] * 3 * BUDGETS.least + [False]


def test_p8_an_approval_to_empty_a_space_is_used_up_by_doing_it(world: Any) -> None:
    names = range(MIN_COPIES, 2 * MIN_COPIES)
    held = ChangeGuard(world.engine, world.clock, world.manifest.count, ChangeBudgets(least=100))

    def emptied() -> DuplicationPlan:
        for store in "12":
            for number in names:
                world.put(ItemRef(store, "s", f"{number:03d}"))
        for number in names:
            lose(world, number)
        return plan_space_duplication(world.providers, world.manifest, PAIR, "s", world.queue(), change_guard=held)

    first = emptied()
    held.approve([first.hold or 0])
    assert [duplicate(world, held, number).split()[1] for number in names] == ["delete:"] * MIN_COPIES
    world.clock.advance(60)
    assert emptied().hold not in (None, first.hold)


def test_what_was_approved_and_could_not_be_done_may_still_be_done(world: Any) -> None:
    held = ChangeGuard(world.engine, world.clock, lambda *_: 0, BUDGETS)
    held.check(plan(deletes=50))
    held.approve()
    for _ in range(200):
        assert held.spend(PAIR, "s", "deletes") is None
        held.refund(PAIR, "s", "deletes")
    done = [held.spend(PAIR, "s", "deletes") for _ in range(50 + BUDGETS.least + 1)]
    assert [number is None for number in done] == [True] * (50 + BUDGETS.least) + [False]


def test_p8_recorded_copies_are_replaced_within_the_budget_and_repaired_without_one(world: Any) -> None:
    held = filled(world, 12)
    for number in range(8):
        world.put(ItemRef("1", "s", f"{number:03d}"), b"encrypted for ransom")
    done = [duplicate(world, held, number).split()[1] for number in range(8)]
    assert done == ["copy:"] * 5 + ["held"] * 3
    assert world.read(ItemRef("2", "s", "007")) == b"body"
    for number in range(8, 12):  # not as recorded: to copy it again loses nothing
        world.put(ItemRef("2", "s", f"{number:03d}"), b"rot", record=False)
    assert [duplicate(world, held, number).split()[1] for number in range(8, 12)] == ["copy:"] * 4


def test_p8_single_copies_continue_within_the_budget_after_a_rejection_and_no_plan_does(world: Any) -> None:
    held = filled(world, 12)
    rejected = held.check(plan(deletes=50, copied=12)) or 0
    held.reject(rejected, "ann", "the wrong disk")
    world.put(ItemRef("1", "s", "012"))
    for number in range(5):
        lose(world, number)
    assert duplicate(world, held, 12).split()[1] == "copy:"
    assert [duplicate(world, held, number).split()[1] for number in range(5)] == ["delete:"] * 5
    assert held.check(plan(deletes=40, copied=12)) == rejected
    (hold,) = held.pending()
    assert (hold.number, hold.rejection) == (rejected, "the wrong disk")


def test_what_could_not_be_done_is_not_counted(world: Any) -> None:
    held = filled(world, 12)
    good = world.stores["2"]
    lose(world, 0)
    world.stores["2"] = UnavailableStore(good, when=lambda call: call.method == "delete")
    for _ in range(7):
        with pytest.raises(StoreUnavailableError):
            duplicate(world, held, 0)
    world.stores["2"] = good
    for number in range(5):
        if number:
            lose(world, number)
        assert duplicate(world, held, number).split()[1] == "delete:"


def test_p8_a_held_plan_puts_nothing_on_the_queue_and_an_approved_one_all_of_it(world: Any) -> None:
    held = filled(world, 20)
    for number in range(10):
        lose(world, number)
    record_space(world.providers, world.manifest, "1", "s")

    def made() -> DuplicationPlan:
        return plan_space_duplication(world.providers, world.manifest, PAIR, "s", world.queue(), change_guard=held)

    first = made()
    assert (first.deletes, first.hold, world.queue().depth().open) == (10, held.pending()[0].number, 0)
    held.approve()
    assert (made().hold, world.queue().depth().open) == (None, 10)
    assert [duplicate(world, held, number).split()[1] for number in range(10)] == ["delete:"] * 10


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["lose", "approve", "day"]), max_size=40))
def test_p8_never_more_is_deleted_in_a_day_than_the_budget_and_what_was_approved(
    new_world: Callable[..., Any], steps: list[str]
) -> None:
    world = new_world()
    held = ChangeGuard(world.engine, world.clock, lambda *_: 0, BUDGETS)
    spent, granted, refused = 0, 0, 0
    for step in steps:
        if step == "day":
            world.clock.advance(DAY + 3600)
            spent = 0
        elif step == "approve":
            granted += sum(hold.deletes for hold in held.approve())
            refused = 0
        elif held.spend(PAIR, "s", "deletes") is not None:
            refused += 1
            assert (spent, granted) == (BUDGETS.least, 0)
            assert [hold.deletes for hold in held.pending()] == [refused]
        elif granted:
            granted -= 1
        else:
            spent += 1
            assert spent <= BUDGETS.least


def test_p8_a_dry_run_says_that_the_plan_would_be_held_as_a_whole_and_holds_nothing(world: Any) -> None:
    guard = filled(world, 20)
    for number in range(20):
        lose(world, number)
    seen = plan_space_duplication(world.providers, world.manifest, PAIR, "s", None, change_guard=guard)
    assert seen.hold is None and seen.hold_reason is not None and "the source lists nothing" in seen.hold_reason
    assert guard.pending() == []
    assert "would be HELD as a whole" in "".join(held_lines(seen))


@pytest.mark.parametrize("original", [b"an original", b"STALE"], ids=["another size", "the same size"])
def test_p8_items_that_the_manifest_does_not_know_at_the_destination_are_replaced_only_within_the_budget(
    world: Any, original: bytes
) -> None:
    guard = change_guard(world)
    for number in range(12):
        world.put(ItemRef("1", "s", f"{number:03d}"), b"stale")
        world.put(ItemRef("2", "s", f"{number:03d}"), original, record=False)
    world.record(ItemRef("2", "s", "007"), None, deleted=True)
    planned = plan_space_duplication(world.providers, world.manifest, PAIR, "s", world.queue(), change_guard=guard)
    seen = len(original) != len(b"stale")
    assert (planned.replaced, planned.hold is not None) == ((12, True) if seen else (0, False))
    done = [duplicate(world, guard, number).split()[1] for number in range(8)]
    assert done == ["copy:"] * 5 + ["held"] * 3
    assert world.read(ItemRef("2", "s", "007")) == original
