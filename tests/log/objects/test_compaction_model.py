"""Every state of the protocol by which commits are compacted into sealed objects, within bounds."""

from __future__ import annotations

import pytest

from suite.sizes import sized
from support.object_model.compaction import CompactionGuards, CompactionProtocol, Shelf, first_shelf
from support.object_model.search import Found, explore

RACES = {
    "enter_before_free": "is lost: commits begin at",
    "behind_last_row": "after sealed/1-",
    "sweep_ended": "is lost: commits begin at",
    "target_in_name": "is lost: commits begin at",
    "replace_before_delete": "is lost: commits begin at",
}
"""The race that each guard prevents."""


def _search(blocks: int, runs: int, losses: int, guards: CompactionGuards) -> Found[Shelf]:
    found = explore(first_shelf(), CompactionProtocol(blocks, runs, losses, guards).steps)
    print(f"{blocks} blocks, {runs} runs, {losses} losses: {found.states} states, {found.steps} steps")
    print(found.report())
    return found


def test_no_interleaving_of_two_compactors_trims_and_sweeps_loses_a_block() -> None:
    for bounds in sized(quick=[(4, 3, 1)], ci=[(4, 4, 1)], long=[(4, 4, 1), (5, 4, 1)]):
        found = _search(*bounds, CompactionGuards())
        assert not found.violation, found.report()


@pytest.mark.parametrize("guard", RACES)
def test_without_a_guard_the_search_finds_the_race_of_compaction(guard: str) -> None:
    found = _search(4, 4, 0, CompactionGuards(**{guard: False}))
    assert RACES[guard] in found.violation, found.report()


def test_each_guard_of_compaction_has_its_race() -> None:
    assert set(RACES) == set(CompactionGuards.__dataclass_fields__)
