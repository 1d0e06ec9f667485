"""Every state of the protocol of versioned states, within bounds."""

from __future__ import annotations

import pytest

from suite.sizes import sized
from support.object_model.search import explore
from support.object_model.states import StateGuards, StateProtocol, Store, first_store

RACES = {
    "mark_after_create": "put_state returns True, but version 1 is of",
    "mark_after_other": "put_state returns False, but version 1 is its own",
    "mark_after_end": "but 3 existed before it was called",
}
THREE = first_store(3)._replace(calls=(2, 2, 1))
"""Three callers, the first two of which call once and the third twice, if three calls are allowed."""


def _states(calls: int, losses: int, guards: StateGuards, first: Store) -> tuple[str, str]:
    found = explore(first, StateProtocol(calls, losses, guards).steps)
    print(f"{found.states} states, {found.steps} steps\n{found.report()}")
    return found.violation, found.report()


def test_no_interleaving_of_two_callers_and_deletions_breaks_a_state() -> None:
    for calls, losses, first in sized(
        quick=[(2, 1, first_store())],
        ci=[(3, 1, first_store()), (3, 1, THREE)],
        long=[(3, 2, first_store()), (3, 2, THREE)],
    ):
        violation, report = _states(calls, losses, StateGuards(), first)
        assert not violation, report


@pytest.mark.parametrize("guard", RACES)
def test_without_a_guard_the_search_finds_the_race_of_a_state(guard: str) -> None:
    first = THREE if guard == "mark_after_other" else first_store()
    violation, report = _states(3, 1, StateGuards(**{guard: False}), first)
    assert RACES[guard] in violation, report
