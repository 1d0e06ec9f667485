"""Additions that were begun together in one row are, to everybody, as if each of them had a row of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.stores.audit import AuditAction, AuditBusyError, AuditEvent, AuditIntent, AuditOutbox, group_table
from millstream.stores.audit.intents import IntentGroup
from suite.engines import open_engine

NAMES = ("a", "b", "ü", 'with "quotes" and \n')


class World:
    """Two processes with one outbox."""

    def __init__(self, path: Path) -> None:
        self.clock = VirtualClock()
        self.engine = open_engine(f"sqlite:///{path}")
        self.one, self.other = self.open("one"), self.open("other")

    def open(self, holder: str) -> AuditOutbox:
        return AuditOutbox(self.engine, self.clock, holder=holder)

    def rows(self, table: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "node.db")
    yield made
    made.engine.dispose()


def event(content_id: str = "", action: AuditAction = AuditAction.ADD_CONTENT, space: str = "s") -> AuditEvent:
    return AuditEvent(action, "me", 0, "local", "1", "file", space, content_id)


def group(*names: str) -> IntentGroup:
    sums, properties = [f"{number:064x}" for number in range(len(names))], [{"name": name} for name in names]
    return IntentGroup(event(), "", names, sums, ["text/plain"] * len(names), properties)


def singles(*names: str) -> list[AuditEvent]:
    whole = group(*names)
    return [whole.addition(place) for place in range(len(names))]


def test_a_group_that_is_begun_while_it_is_asked_what_is_settled_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.one.add([event("before", space="t")])
    oldest_number = group_table.oldest_number

    def begin_after(*asked: Any) -> int | None:
        found = oldest_number(*asked)
        world.other.begin_group(group(*NAMES))
        return found

    monkeypatch.setattr(group_table, "oldest_number", begin_after)
    assert world.one.settled("1", "s") == 1


@pytest.mark.parametrize("together", [True, False])
def test_a_group_looks_like_its_additions_to_whoever_asks(world: World, together: bool) -> None:
    world.one.add([event("before", AuditAction.DELETE_CONTENT), event("a", AuditAction.DELETE_CONTENT)])
    if together:
        begun, busy = world.one.begin_group(group(*NAMES))
        assert not busy and begun.last == 6 and world.rows("audit_outbox") == 2
    else:
        world.one.begin_all(singles(*NAMES))
    for outbox in (world.one, world.other, world.open("third")):
        assert outbox.newest() == 6 and outbox.settled("1", "s") == 0 and outbox.settled("1", "t") == 6
        assert outbox.open_of("1", "s", ["a", "c", "before"]) == {"a"} and not outbox.open_of("1", "t", ["a"])
        assert outbox.pending("1", "s") == {*NAMES, "before"} and outbox.pending("1", "s", ["b", "c"]) == {"b"}
        assert [*outbox.pending_in_order("1", "s", 2)] == [["a", "b"], ["before", NAMES[3]], ["ü"]]
        assert outbox.deletions("1", "s", ["a", "before"]).keys() == {"before"}
        assert outbox.undelivered() == 2 and len(outbox.events()) == 2 and not outbox.get([3, 4])
        found = outbox.open_intents(others=True)
        assert [one.event.number for one in found] == [3, 4, 5, 6] and {one.holder for one in found} == {"one"}
        assert [one.event for one in found] == [
            AuditEvent(
                AuditAction.ADD_CONTENT, "me", found[0].event.at + place, "local", "1", "file", "s", name,
                f"{place:064x}", None, "text/plain", {"name": name}, number=3 + place,
            )
            for place, name in enumerate(NAMES)
        ]  # fmt: skip
        assert [one.event.number for one in outbox.open_intents(event("b"), others=True)] == [4]
        assert not outbox.open_intents(event("b", space="t"), others=True)
    assert not world.other.open_intents() and len(world.one.open_intents()) == 4


def test_items_of_a_group_are_busy_to_others(world: World) -> None:
    world.one.begin_group(group("a", "b"))
    with pytest.raises(AuditBusyError, match="another process is changing 'a' in space 's'"):
        world.other.begin(event("a"))
    begun, busy = world.other.begin_group(group("b", "c", "d"))
    assert (begun.content_ids, begun.event.number, begun.last, begun.holder) == (["c", "d"], 3, 4, "other")
    assert busy.keys() == {"b"} and begun.sums == [f"{1:064x}", f"{2:064x}"]
    nothing, busy = world.other.begin_group(group("a", "b"))
    assert not nothing.content_ids and busy.keys() == {"a", "b"} and world.other.newest() == 4
    (intent,) = world.one.begin_all([event("c")])
    assert isinstance(intent, AuditBusyError)
    assert isinstance(world.one.begin(event("e")), AuditIntent)


def test_numbers_and_times_go_on_after_a_group(world: World) -> None:
    first, _ = world.one.begin_group(group("a", "b", "c"))
    later = world.other.begin(event("d"))
    assert (first.event.number, later.event.number) == (1, 4) and later.event.at > first.event.at + 2
    second, _ = world.one.begin_group(group("e"))
    world.one.remove([1, 2, 3, 4, 5])
    assert second.event.number == 5 and world.rows("audit_outbox") == world.rows("audit_outbox_groups") == 0
    third, _ = world.open("third").begin_group(group("f"))
    assert third.event.number == 6


def test_a_whole_group_is_removed_at_once_and_another_is_not_touched(world: World) -> None:
    first, _ = world.one.begin_group(group("a", "b"))
    second, _ = world.one.begin_group(group("c", "d"))
    world.one.remove([1, 2, 2])
    assert [one.event.content_id for one in world.one.open_intents()] == ["c", "d"]
    assert (world.rows("audit_outbox"), world.rows("audit_outbox_groups")) == (0, 1)
    assert (first.last, second.last) == (2, 4)


@pytest.mark.parametrize("how", ["done", "cancel", "remove", "note"])
def test_what_is_said_of_one_of_a_group_leaves_the_others_open(world: World, how: str) -> None:
    begun, _ = world.one.begin_group(group("a", "b", "c"))
    changed = begun.addition(1)
    if how == "done":
        world.other.done(changed)
    elif how == "note":
        world.other.note(changed)
    elif how == "cancel":
        world.other.cancel(changed.number)
    else:
        world.other.remove([changed.number])
    left = [one.event.content_id for one in world.one.open_intents()]
    assert left == (["a", "b", "c"] if how == "note" else ["a", "c"])
    assert [one.content_id for one in world.one.events()] == (["b"] if how == "done" else [])
    assert world.rows("audit_outbox_groups") == 0, "they have rows of their own now"
    world.one.done_all([begun.addition(0), begun.addition(2)])
    assert {one.event.content_id for one in world.one.open_intents()} == ({"b"} if how == "note" else set())


def test_a_whole_group_that_is_done_waits_in_order(world: World) -> None:
    begun, _ = world.one.begin_group(group("a", "b"))
    world.one.done_all([begun.addition(1), begun.addition(0)])
    assert [(one.number, one.content_id) for one in world.other.events()] == [(1, "a"), (2, "b")]
    told: list[int] = []
    assert world.one.deliver(told.extend) == 2 and told == [1, 2]


def test_an_outbox_of_an_earlier_release_goes_on(world: World) -> None:
    world.one.begin_all(singles("a", "b"))
    with world.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE audit_outbox_groups")
    later = world.open("later")
    assert [one.event.content_id for one in later.open_intents(others=True)] == ["a", "b"]
    begun, busy = later.begin_group(group("b", "c"))
    assert (begun.event.number, begun.content_ids, busy.keys()) == (3, ["c"], {"b"})
    later.cancel(1, 2)
    assert [one.event.content_id for one in later.open_intents(others=True)] == ["c"]
