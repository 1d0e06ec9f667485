"""Every state of the protocol of commits, takeovers and compaction on object storage, within bounds."""

from __future__ import annotations

import pytest

from suite.sizes import sized
from support.object_model.commits import ALL_GUARDS, Bounds, Guards, World, first_world
from support.object_model.processes import Protocol, recovers
from support.object_model.search import Found, explore

BOUNDS = sized(
    quick=[
        Bounds(commits=(2, 1), epochs=3, layouts=1, losses=0),
        Bounds(commits=(2, 1), epochs=2, layouts=2, losses=1),
        Bounds(commits=(1, 1), epochs=3, layouts=1, losses=1),
        Bounds(commits=(1, 1), epochs=2, layouts=1, losses=4),
    ],
    ci=[
        Bounds(commits=(2, 1), epochs=3, layouts=1, losses=1),
        Bounds(commits=(2, 1), epochs=2, layouts=2, losses=2),
        Bounds(commits=(1, 1), epochs=2, layouts=1, losses=6),
    ],
    long=[
        Bounds(commits=(2, 2), epochs=3, layouts=2, losses=1),
        Bounds(commits=(2, 1), epochs=3, layouts=1, losses=2),
        Bounds(commits=(2, 2), epochs=2, layouts=2, losses=3),
        Bounds(commits=(1, 1), epochs=4, layouts=2, losses=1),
    ],
)

RACES = {
    "layout_after_create": (Bounds(commits=(1, 1), epochs=2, losses=0), "was confirmed as commits/2, but the chain"),
    "whole_bytes": (Bounds(commits=(2, 1), epochs=2), "A2 of epoch 1 was confirmed as commits/2, but the chain has A1"),
    "fence": (Bounds(commits=(1, 2), epochs=2, losses=0), "stores the id 1 after A1 of epoch 1, which ended at 1"),
    "layout_after_fence": (Bounds(commits=(2, 1), losses=0), "B is the writer of epoch 2, but its fence is not in"),
    "keep_newest": (Bounds(commits=(1, 1), epochs=2), "does not continue the chain after FENCE of epoch 2"),
    "layout_before_delete": (Bounds(commits=(1, 1), epochs=2, losses=0), "is lost: no sealed object has it"),
    "layout_after_read": (Bounds(commits=(1, 1), epochs=2, losses=0), "is delivered, but the chain has FENCE of epoch"),
    "one_at_a_time": (Bounds(commits=(1, 1), epochs=2, losses=0), "was confirmed as commits/3, but FENCE of epoch 2"),
}  # fmt: skip
"""The race that each guard prevents."""


def _search(bounds: Bounds, guards: Guards = ALL_GUARDS) -> Found[World]:
    return explore(first_world(), Protocol(bounds, guards).steps)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_no_interleaving_of_two_writers_and_a_compactor_breaks_the_chain(bounds: Bounds) -> None:
    found = _search(bounds)
    assert not found.violation, found.report()
    print(f"{bounds}: {found.states} states, {found.steps} steps")
    worlds = {(world.names, world.layout, world.epochs): world for world in found.reached}
    stuck = next((world for world in worlds.values() if not recovers(world)), None)
    assert stuck is None, f"no writer can commit in {stuck}"


@pytest.mark.parametrize("guard", RACES)
def test_without_a_guard_the_search_finds_its_race(guard: str) -> None:
    bounds, race = RACES[guard]
    found = _search(bounds, Guards(**{guard: False}))
    print(found.report())
    assert race in found.violation, found.report()


def test_each_guard_has_its_race() -> None:
    assert set(RACES) == set(Guards.__dataclass_fields__)


def test_two_that_write_in_one_epoch_break_nothing() -> None:
    found = explore(first_world(shared=True), Protocol(Bounds(commits=(2, 1), epochs=2, layouts=1, losses=1)).steps)
    assert not found.violation, found.report()


def test_the_trace_to_a_race_is_the_shortest_and_readable() -> None:
    report = _search(RACES["whole_bytes"][0], Guards(whole_bytes=False)).report()
    assert report.splitlines() == [
        "  1. A PUT commits/2 (A1 of epoch 1): no answer",
        "  2. A GET commits/2: 404, tells its caller that it failed",
        "  3. late: PUT commits/2 (A1 of epoch 1) takes effect",
        "  4. A PUT commits/2 (A2 of epoch 1): 412",
        "  5. A GET commits/2: A1 of epoch 1, its own",
        "  6. A looks at the layout: commits begin at 1, confirms A2 of epoch 1",
        "  => A2 of epoch 1 was confirmed as commits/2, but the chain has A1 of epoch 1",
    ]


def test_a_search_that_would_be_cut_off_fails() -> None:
    with pytest.raises(RuntimeError, match="more than 50 states: choose smaller bounds"):
        explore(first_world(), Protocol(Bounds()).steps, limit=50)
