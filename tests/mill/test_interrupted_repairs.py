"""The log of repairs is complete, also where a process is killed before it has recorded what it repaired."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.item_ref import ItemRef
from millstream.mill.repair.repair_log import BegunRepair, RepairEvent, RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from millstream.testing.faulty_store import UnavailableStore

BODY = b"the right bytes" * 100
COPY = ItemRef("2", "s", "a")
ENDED = f"{socket.gethostname()}/{1 << 30}/1/00000001"
"""The holder of a process of this machine that does not run."""


class ProcessKilled(BaseException):
    """Stands for the end of the process."""


class KilledLog(RepairLog):
    """The process is killed when it is to record what it did."""

    def end(self, begun: BegunRepair, event: RepairEvent | None) -> None:
        raise ProcessKilled

    def abandon(self, begun: BegunRepair) -> None:
        pass


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """Three local folders with the same item; store "1" is the source, and the copy in "2" is damaged."""
    made = new_world({name: LocalStore(tmp_path / name) for name in "123"})
    for store in made.stores:
        made.put(ItemRef(store, "s", "a"), BODY)
    flip_bit(made.stores["2"].path_of("s", "a"))
    return made


def repairer(world: Any, log: RepairLog | None = None) -> Repairer:
    return Repairer(world.providers, world.manifest, log or RepairLog(world.engine), sources=lambda _: {"1"})


def kill(world: Any, act: Callable[[Repairer], object] = lambda made: made.repair("s", "a", "B3")) -> None:
    with pytest.raises(ProcessKilled):
        act(repairer(world, KilledLog(world.engine, holder=ENDED)))
    assert RepairLog(world.engine).last() == []


@pytest.mark.parametrize("act", [lambda made: made.settle_left(), lambda made: made.repair("s", "a")])
def test_a_repair_whose_process_was_killed_before_it_recorded_it_is_recorded_once(
    world: Any, act: Callable[[Repairer], object]
) -> None:
    kill(world)
    world.clock.advance(60)
    for _ in range(2):
        act(repairer(world))
    (event,) = RepairLog(world.engine).last()
    assert (event.store, event.healed, event.good, event.at) == ("2", True, "1", world.clock.now())
    assert event.reason == "B3 (the process ended before it recorded this)"
    assert world.read(COPY) == BODY
    assert world.manifest.get("2", "s", "a").verified_at == world.clock.now()


def test_a_repair_whose_process_was_killed_before_it_wrote_is_not_recorded_and_done_by_the_next(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise ProcessKilled

    with monkeypatch.context() as patched:
        patched.setattr(Repairer, "_write", stop)
        kill(world)
    log = RepairLog(world.engine)
    repairer(world).settle_left()
    assert (log.last(), log.left()) == ([], [])
    repairer(world).repair("s", "a", "B3")
    assert [(event.healed, event.reason) for event in log.last()] == [(True, "B3")]


def test_a_repair_in_a_store_that_is_away_is_recorded_once_it_answers(world: Any) -> None:
    kill(world)
    here, log = world.stores["2"], RepairLog(world.engine)
    world.stores["2"] = UnavailableStore(here)
    repairer(world).settle_left()
    assert (log.last(), len(log.left())) == ([], 1)
    world.stores["2"] = here
    repairer(world).settle_left()
    assert [event.healed for event in log.last()] == [True]


def test_what_a_running_process_repairs_is_left_to_it(world: Any) -> None:
    log = RepairLog(world.engine)
    begun = log.begin(RepairEvent(1, "2", "s", "a", True, "B3", world.manifest.get("2", "s", "a").sha256, "1"))
    repairer(world).settle_left()
    assert (log.left(), log.last()) == ([], [])
    log.end(begun, begun.event)
    assert log.last() == [begun.event]


@pytest.mark.parametrize(
    "act",
    [
        lambda made: made.restore_properties(ItemRef("3", "s", "a"), {"colour": "red"}, "B29"),
        lambda made: made.write_anew(ItemRef("3", "s", "a"), "B28"),
    ],
)
def test_where_bytes_do_not_tell_whether_it_was_done_the_record_says_that_it_is_not_known(
    world: Any, act: Callable[[Repairer], object]
) -> None:
    kill(world, act)
    repairer(world).settle_left()
    (event,) = RepairLog(world.engine).last()
    assert (event.store, event.healed) == ("3", False)
    assert "the outcome is unknown" in event.reason
