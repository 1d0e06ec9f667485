"""Copies made by the process that plans them: what is recorded, what is left to the queue, what a fault leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.sql import SqlBusyError
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.duplication import direct as direct_module
from millstream.mill.duplication.differences import count_differences
from millstream.mill.duplication.direct import FRESH, DirectDuplicator, PlannedCopies
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.policy import Pair
from millstream.mill.policies.repository import Policies
from millstream.mill.tasks import Duplicate, decode_task
from millstream.mill.workers.result_sink import ResultSink
from millstream.stores import LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import SMALL
from millstream.testing.damage import flip_bit

PAIR = Pair("1", "2")


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """Two local stores with an audited, empty copy; manifest, audit log and outbox share a database."""
    made = new_world({"1": LocalStore(tmp_path / "1")})
    made.outbox = AuditOutbox(made.engine, VirtualClock())
    made.log = AuditLog(made.engine)
    made.stores["2"] = AuditedStore(LocalStore(tmp_path / "2"), made.outbox, "2")
    for name in ("a", "b", "c"):
        made.put(ItemRef("1", "s", name), name.encode(), record=False, p=name)
    return made


def duplicator(world: Any, settle: Callable[..., Any] | None = None) -> DirectDuplicator:
    queues = {name: world.queue(name) for name in ("duplication-high", "audit")}
    sink = ResultSink(world.manifest, queues, (world.log, world.outbox))
    audit = AuditProcessor(world.outbox, lambda: Policies({}))
    processor = DuplicationProcessor(world.providers, world.manifest, outbox=world.outbox)
    return DirectDuplicator(processor, settle or sink.settle, audit, world.outbox)


def plan(world: Any, direct: DirectDuplicator | None) -> list[str]:
    """Plan and copy; the ids of what is left on the queue."""
    queue = world.queue("low")
    plan_space_duplication(world.providers, world.manifest, PAIR, "s", queue, record=True, direct=direct)
    left = [decode_task(lease.body) for lease in queue.lease(100, visibility=1)]
    return [task.content_id for task in left if isinstance(task, Duplicate)]


def test_what_is_copied_is_recorded_and_audited_at_once_and_nothing_is_queued(world: Any) -> None:
    direct = duplicator(world)
    assert plan(world, direct) == [] and direct.done == 3
    for name in ("a", "b", "c"):
        info = world.stores["2"].info("s", name)
        row, (event,) = world.manifest.get("2", "s", name), world.log.events("2", "s", name)
        assert info.properties == {"p": name}
        assert row.sha256 == info.checksum() == event.sha256 and row.modified == event.at
    assert world.outbox.events() == [] == list(world.outbox.open_intents(others=True))
    assert [event.action.value for event in world.log.events("2", "s", "")] == ["CREATE_SPACE"]


def test_what_cannot_be_done_together_is_left_to_the_queue(world: Any) -> None:
    world.put(ItemRef("1", "s", "large"), b"x" * (SMALL + 1), record=False)
    flip_bit(world.stores["1"].path_of("s", "b"))
    direct = duplicator(world)
    assert plan(world, direct) == ["b", "large"] and direct.done == 2
    assert [entry.content_id for entry in world.stores["2"].entries("s")] == ["a", "c"]
    assert not world.outbox.open_intents(others=True), "it is known that the rotten one was not copied"


def test_an_item_that_came_to_the_copy_meanwhile_is_compared_and_not_replaced(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DuplicationProcessor.copy_group

    def late(self: DuplicationProcessor, *arguments: Any) -> Any:
        world.stores["2"].create_space("s")
        world.put(ItemRef("2", "s", "b"), b"other", record=False)
        return real(self, *arguments)

    monkeypatch.setattr(DuplicationProcessor, "copy_group", late)
    assert plan(world, duplicator(world)) == ["b"]
    with world.stores["2"].open("s", "b") as file:
        assert file.read() == b"other"


def test_a_change_that_could_not_be_recorded_stays_in_the_outbox(world: Any) -> None:
    def broken(_results: Any) -> None:
        raise SqlBusyError("the database did not answer")

    with pytest.raises(SqlBusyError):
        plan(world, duplicator(world, broken))
    waiting = {event.content_id for event in world.outbox.events()}
    assert waiting == {"", "a", "b", "c"}, "they happened, and the audit log is told later"
    assert not world.manifest.count("2")


def test_deletions_come_before_copies_so_all_goes_over_the_queue(world: Any) -> None:
    world.stores["2"].create_space("s")
    world.put(ItemRef("2", "s", "gone"), b"gone")
    world.record(ItemRef("1", "s", "gone"), "0" * 64, deleted=True)
    direct = duplicator(world)
    assert plan(world, direct) == ["gone", "a", "b", "c"] and direct.done == 0


def test_a_plan_keeps_only_so_much_in_memory(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "KEPT_NAMES", 2)
    monkeypatch.setattr(direct_module, "KEPT_INFOS", 1)
    direct = duplicator(world)
    assert plan(world, direct) == [] and direct.done == 3


def test_what_the_source_said_long_ago_is_asked_again(world: Any) -> None:
    planned = PlannedCopies(world.clock)
    planned.add_info(world.stores["1"].info("s", "a"))
    planned.add_info(world.stores["1"].info("s", "b"))
    (first,) = planned.take_infos(["a"])
    world.clock.advance(FRESH + 1)
    assert first is not None and planned.take_infos(["b"]) == [None]


@pytest.mark.parametrize("there", [(), ("b",), ("z",)])
def test_items_that_are_new_together_are_planned_as_one_by_one(world: Any, there: tuple[str, ...]) -> None:
    world.stores["2"].create_space("s")
    for name in there:
        world.put(ItemRef("2", "s", name), b"other")
    plans, names = [], []
    for skip in ((), ("nothing",), ("a",)):
        planned = PlannedCopies(world.clock)
        plans.append(
            count_differences(
                world.providers, world.manifest, PAIR, "s", skip=skip, on_copy=planned.add, on_new=planned.add_new
            )
        )
        names.append(planned.names)
    assert plans[0] == plans[1] and names[0] == names[1] == ["a", "b", "c"]
    assert plans[0].copies == (2 if there == ("b",) else 3) and plans[0].bytes == 3
    assert names[2] == ["b", "c"]
