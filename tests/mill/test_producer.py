"""Planning: only differences become tasks, deletes come first, and the manifest follows the source."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import GROUP, duplication_rounds, plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.errors import UnknownStoreError
from millstream.mill.item_ref import ItemRef
from millstream.mill.merge_join import groups, outer_join
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Duplicate, decode_task
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink
from millstream.stores import LocalStore, StoreUnavailableError
from millstream.testing.faulty_store import UnavailableStore

TO_2 = Pair("1", "2")


def plan(world: Any, pair: Pair = TO_2, **more: Any) -> Any:
    record_space(world.providers, world.manifest, pair.source, "s")
    return plan_space_duplication(world.providers, world.manifest, pair, "s", world.queue(), **more)


def queued(world: Any) -> list[str]:
    leases = world.queue().lease(100_000, visibility=600)
    world.queue().ack(leases)
    tasks = [decode_task(lease.body) for lease in leases]
    assert all(isinstance(task, Duplicate) for task in tasks)
    return [task.content_id for task in tasks]  # type: ignore[union-attr]


def work(world: Any) -> None:
    registry = ProcessorRegistry({Duplicate: DuplicationProcessor(world.providers, world.manifest)})
    tally = WorkerManager([world.queue()], registry, ResultSink(world.manifest, {}), world.clock).run_until_drained()
    assert tally.dead == 0


def fill(world: Any, store: str, names: list[str], body: bytes = b"body") -> None:
    world.stores[store].create_space("s")
    for name in names:
        world.stores[store].put("s", name, io.BytesIO(body))


def test_a_second_plan_after_the_work_has_nothing_to_do(world: Any) -> None:
    fill(world, "1", [f"{n:04d}" for n in range(1500)])
    made = plan(world)
    assert (made.copies, made.tasks, world.queue().depth().ready) == (1500, 1500, 1501)
    work(world)
    again = plan(world)
    assert (again.tasks, again.same, world.queue().depth().ready) == (0, 1500, 0)


def test_deletes_come_before_copies_in_thousands_and_the_space_last(world: Any) -> None:
    stale = [f"stale {n:02d}" for n in range(20)]
    fill(world, "2", stale)
    for name in stale:
        world.record(ItemRef("1", "s", name), None, deleted=True)
    names = [f"{n:04d}" for n in range(GROUP + 5)]
    fill(world, "1", names)
    fill(world, "3", [])
    puts: list[int] = []
    put = world.queue().put
    world.queue().put = lambda tasks, **more: (puts.append(len(tasks)), put(tasks, **more))[1]
    made = plan(world)
    assert (made.deletes, made.copies) == (20, GROUP + 5)
    assert puts == [20, GROUP, 5]
    assert queued(world) == stale + names


def test_a_space_that_one_end_has_not_got_gets_one_task_of_its_own(world: Any) -> None:
    fill(world, "2", ["kept"])
    made = plan(world)
    assert (made.held, made.held_examples, made.tasks) == (1, ("kept",), 0)
    assert queued(world) == [""]


def test_p8_what_only_the_destination_has_is_held_until_its_deletion_is_recorded(world: Any) -> None:
    fill(world, "1", ["a"])
    fill(world, "2", ["a", "b"])
    assert plan(world).held == 1
    assert queued(world) == ["a"]
    world.record(ItemRef("1", "s", "b"), None, deleted=True)
    assert plan(world).deletes == 1
    assert "b" in queued(world)


def test_a_change_at_the_source_is_seen_by_size_or_time(world: Any) -> None:
    fill(world, "1", ["a", "b", "c"])
    plan(world)
    work(world)
    world.clock.advance(5)
    fill(world, "1", ["a"], b"longer body")
    fill(world, "1", ["b"], b"BODY")
    made = plan(world)
    assert (made.changes, made.same) == (2, 1)
    assert queued(world) == ["a", "b"]


def test_with_everything_each_item_of_the_source_is_queued(world: Any) -> None:
    fill(world, "1", ["a", "b"])
    plan(world)
    work(world)
    made = plan(world, everything=True)
    assert (made.changes, made.same) == (2, 0)
    assert queued(world) == ["a", "b"]


def test_a_dry_run_puts_nothing_on_a_queue(world: Any) -> None:
    fill(world, "1", ["a"])
    assert plan_space_duplication(world.providers, world.manifest, TO_2, "s", None).copies == 1
    assert world.queue().depth().open == 0


def test_a_listing_that_fails_plans_nothing_further(world: Any) -> None:
    fill(world, "1", ["a"])
    world.stores["1"] = UnavailableStore(world.stores["1"], when=lambda call: call.method == "entries")
    with pytest.raises(StoreUnavailableError):
        plan_space_duplication(world.providers, world.manifest, TO_2, "s", world.queue())


def test_the_record_of_a_source_is_what_its_provider_took_and_not_what_lies_there_now(world: Any) -> None:
    fill(world, "1", ["a", "b"])
    assert record_space(world.providers, world.manifest, "1", "s").recorded == 2
    assert record_space(world.providers, world.manifest, "1", "s").recorded == 0
    assert world.manifest.get("1", "s", "a").sha256 == world.stores["1"].info("s", "a").checksum()


def test_the_size_of_damaged_bytes_does_not_become_the_record(world: Any, tmp_path: Path) -> None:
    world.stores["1"] = LocalStore(tmp_path)
    fill(world, "1", ["a"])
    record_space(world.providers, world.manifest, "1", "s")
    world.stores["1"].path_of("s", "a").write_bytes(b"cut")
    record_space(world.providers, world.manifest, "1", "s")
    assert world.manifest.get("1", "s", "a").size == 4


def test_an_item_that_left_the_listing_is_not_taken_for_deleted(world: Any) -> None:
    fill(world, "1", ["a"])
    record_space(world.providers, world.manifest, "1", "s")
    world.stores["1"].delete("s", "a")
    record_space(world.providers, world.manifest, "1", "s")
    assert not world.manifest.get("1", "s", "a").deleted


def test_an_item_added_again_after_its_tombstone_is_live(world: Any) -> None:
    world.record(ItemRef("1", "s", "a"), None, deleted=True)
    world.clock.advance(1)
    fill(world, "1", ["a"])
    record_space(world.providers, world.manifest, "1", "s")
    assert not world.manifest.get("1", "s", "a").deleted


def test_a_copy_of_a_copy_is_made_in_a_later_round(world: Any) -> None:
    fill(world, "1", ["a"])
    chain = (Pair("2", "3"), TO_2)
    policies = Policies({"account": Policy("account", {}, chain)})
    rounds = duplication_rounds(policies, world.providers)
    assert rounds == [[(TO_2, "s")], [(Pair("2", "3"), "s")]]
    for pairs in rounds:
        for pair, _ in pairs:
            plan(world, pair)
        work(world)
    assert world.read(ItemRef("3", "s", "a")) == b"body"


def test_stores_copied_in_a_circle_are_planned_once_each(world: Any) -> None:
    policies = Policies({"account": Policy("account", {"s": (TO_2, Pair("2", "1"))})})
    fill(world, "1", [])
    planned = [pair for pairs in duplication_rounds(policies, world.providers) for pair, _ in pairs]
    assert sorted(map(str, planned)) == ["1 → 2", "2 → 1"]


def test_stores_that_are_all_copied_to_one_another_are_planned_at_once(world: Any) -> None:
    stores = {f"{number:02d}" for number in range(14)}
    world.stores |= dict.fromkeys(stores, world.stores["1"])
    world.stores["1"].create_space("s")
    pairs = tuple(Pair(one, other) for one in sorted(stores) for other in sorted(stores) if one != other)
    (planned,) = duplication_rounds(Policies({"account": Policy("account", {"s": pairs})}), world.providers)
    assert len(planned) == 14 * 13


def test_system_spaces_are_never_planned(world: Any) -> None:
    world.stores["1"].create_space("x-quarantine")
    policies = Policies({"account": Policy("account", {}, (TO_2,))})
    assert duplication_rounds(policies, world.providers) == []


def test_a_policy_of_an_unknown_store_is_refused_by_name(world: Any) -> None:
    policies = Policies({"account": Policy("account", {}, (Pair("1", "9"),))})
    with pytest.raises(UnknownStoreError, match="'9'"):
        duplication_rounds(policies, world.providers)


def test_a_join_has_every_id_once_in_order() -> None:
    left, right = [ItemRef("1", "s", name) for name in "abdx"], [ItemRef("2", "s", name) for name in "bcd"]
    joined = list(outer_join(left, right))
    assert [(name, a is not None, b is not None) for name, a, b in joined] == [
        ("a", True, False),
        ("b", True, True),
        ("c", False, True),
        ("d", True, True),
        ("x", True, False),
    ]
    assert list(groups(range(5), 2)) == [[0, 1], [2, 3], [4]]
