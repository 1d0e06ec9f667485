"""What was deleted through the node and waits in the audit outbox counts as recorded when copies are compared."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from mill_looping import TO_2, Producer, one_policy, take

from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.errors import DuplicationError
from millstream.mill.item_ref import ItemRef
from millstream.mill.tasks import Duplicate
from millstream.stores.audit import AuditAction, AuditedStore, AuditEvent, AuditOutbox

COPY = ItemRef("2", "s", "c")
TASK = Duplicate("1", "2", "s", "c")


@pytest.fixture
def outbox(world: Any) -> AuditOutbox:
    """The outbox of an audited source with the item "kept"; an item "c" that the manifest has is at both ends."""
    made = AuditOutbox(world.engine, world.clock)
    for name in ("c", "kept"):
        for store in "12":
            world.put(ItemRef(store, "s", name))
    world.clock.advance(1)
    world.stores["1"] = AuditedStore(world.stores["1"], made, "1")
    return made


def plan(world: Any, outbox: AuditOutbox) -> tuple[int, int]:
    found = plan_space_duplication(world.providers, world.manifest, TO_2, "s", None, outbox=outbox)
    return found.deletes, found.held


def process(world: Any, outbox: AuditOutbox) -> str:
    return DuplicationProcessor(world.providers, world.manifest, outbox=outbox).process(TASK, 1).summary


def test_an_item_deleted_through_the_node_is_deleted_at_the_copy_before_the_audit_is_read(
    world: Any, outbox: AuditOutbox
) -> None:
    world.stores["1"].delete("s", "c")
    assert plan(world, outbox) == (1, 0)
    queue = world.queue()
    plan_space_duplication(world.providers, world.manifest, TO_2, "s", queue, outbox=outbox)
    assert take(queue) == [TASK]
    assert process(world, outbox) == "D19 delete: its deletion is recorded"
    assert not world.has(COPY)


def test_the_producer_puts_a_deletion_that_waits_on_the_queue(world: Any, outbox: AuditOutbox, tmp_path: Path) -> None:
    world.stores["1"].delete("s", "c")
    producer = Producer(world, tmp_path, one_policy(), outbox=outbox, only_differences=True)
    producer.run()
    assert producer.taken() == [TASK]
    assert producer.producer.held == []


def test_an_item_that_vanished_without_an_event_is_held(world: Any, outbox: AuditOutbox) -> None:
    world.stores["1"].store.delete("s", "c")
    assert plan(world, outbox) == (0, 1)
    with pytest.raises(DuplicationError, match="D20"):
        process(world, outbox)
    assert world.has(COPY)


def test_a_later_addition_that_waits_contradicts_the_deletion(world: Any, outbox: AuditOutbox) -> None:
    world.stores["1"].delete("s", "c")
    world.stores["1"].put("s", "c", io.BytesIO(b"again"))
    world.stores["1"].store.delete("s", "c")
    assert plan(world, outbox) == (0, 1)
    with pytest.raises(DuplicationError, match="D20"):
        process(world, outbox)


def test_a_deletion_of_which_it_is_not_known_whether_it_happened_does_not_count(
    world: Any, outbox: AuditOutbox
) -> None:
    outbox.begin(AuditEvent(AuditAction.DELETE_CONTENT, "ann", 0, "acme", "1", "memory", "s", "c"))
    world.stores["1"].store.delete("s", "c")
    assert outbox.pending("1", "s") == {"c"}
    assert plan(world, outbox) == (0, 1)


def test_a_deletion_before_the_last_recorded_change_does_not_count(world: Any, outbox: AuditOutbox) -> None:
    world.stores["1"].delete("s", "c")
    world.clock.advance(10)
    world.record(ItemRef("1", "s", "c"), "a" * 64, size=4)
    assert plan(world, outbox) == (0, 1)
    with pytest.raises(DuplicationError, match="D20"):
        process(world, outbox)


def test_many_items_are_looked_up_together(world: Any, outbox: AuditOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:04d}" for number in range(1200)]
    for name in names:
        world.stores["2"].put("s", name, io.BytesIO(b"body"))
    event = AuditEvent(AuditAction.DELETE_CONTENT, "ann", 0, "acme", "1", "memory", "s")
    outbox.add(
        [
            AuditEvent(**{field: getattr(event, field) for field in event.__struct_fields__} | {"content_id": name})
            for name in names
        ]
    )
    asked, deletions = [], outbox.deletions
    monkeypatch.setattr(outbox, "deletions", lambda *args: asked.append(args) or deletions(*args))
    assert plan(world, outbox) == (1200, 0)
    assert len(asked) <= 10
