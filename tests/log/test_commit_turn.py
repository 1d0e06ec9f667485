"""The turn to commit is a state machine: which states follow which, and which thread has the turn."""

from __future__ import annotations

import itertools
import random

import pytest

from millstream.log.writing.commit_turn import (
    ASSIGNED,
    FAILED,
    GATHERING,
    IDLE,
    STORING,
    TRANSITIONS,
    CommitTurn,
    TurnError,
    TurnState,
)

ME, OTHER = 7, 8


def turn_in(state: TurnState) -> CommitTurn:
    """A turn in *state*, of the thread ME where a thread has it."""
    turn = CommitTurn()
    if state is ASSIGNED:
        turn.assign(ME)
    elif state in (GATHERING, STORING):
        turn.take(ME)
    if state is STORING:
        turn.store()
    elif state is FAILED:
        turn.fail()
    assert turn.state is state
    return turn


def test_a_commit_goes_through_all_states_and_the_turn_is_free_again() -> None:
    turn, states = CommitTurn(), list[tuple[TurnState, int]]()
    turn.assign(ME)
    states.append((turn.state, turn.thread))
    turn.take(ME)
    states.append((turn.state, turn.thread))
    turn.store()
    states.append((turn.state, turn.thread))
    turn.end()
    states.append((turn.state, turn.thread))
    assert states == [(ASSIGNED, ME), (GATHERING, ME), (STORING, ME), (IDLE, 0)]


@pytest.mark.parametrize("state", TurnState)
@pytest.mark.parametrize(
    ("step", "reached", "allowed"),
    [
        ("take", GATHERING, {IDLE, ASSIGNED, GATHERING, STORING}),
        ("assign", ASSIGNED, {IDLE}),
        ("store", STORING, {GATHERING}),
        ("end", IDLE, {IDLE, ASSIGNED, GATHERING, STORING}),
        ("fail", FAILED, set(TurnState)),
    ],
)
def test_a_step_leads_to_its_state_or_is_refused(
    state: TurnState, step: str, reached: TurnState, allowed: set[TurnState]
) -> None:
    turn = turn_in(state)
    before = (turn.state, turn.thread)
    arguments = [ME] if step in ("take", "assign") else []
    if state in allowed:
        getattr(turn, step)(*arguments)
        assert turn.state is reached
        assert turn.thread == (0 if reached in (IDLE, FAILED) else ME)
    elif (state, step) == (FAILED, "end"):
        turn.end()
        assert (turn.state, turn.thread) == (FAILED, 0), "a failure is final, and who leads may end its turn"
    else:
        with pytest.raises(TurnError, match=f"{state.name}"):
            getattr(turn, step)(*arguments)
        assert (turn.state, turn.thread) == before


@pytest.mark.parametrize("state", [ASSIGNED, GATHERING, STORING])
def test_only_the_thread_that_has_the_turn_may_take_it_again(state: TurnState) -> None:
    turn = turn_in(state)
    assert turn.is_free_for(ME), "it may have been interrupted before it could end its turn"
    assert not turn.is_free_for(OTHER)
    with pytest.raises(TurnError, match="thread 8 cannot take the turn of thread 7"):
        turn.take(OTHER)
    assert (turn.state, turn.thread) == (state, ME)


def test_every_state_is_reached_and_only_a_failure_is_final() -> None:
    assert set(TRANSITIONS) == set(TurnState)
    assert set(itertools.chain.from_iterable(TRANSITIONS.values())) == set(TurnState)
    assert [state for state, following in TRANSITIONS.items() if following == {state}] == [FAILED]


def test_whatever_the_steps_one_thread_has_the_turn_unless_it_is_idle_or_failed() -> None:
    rng = random.Random(7)
    seen = set[TurnState]()
    for _ in range(300):
        turn = CommitTurn()
        for _ in range(12):
            step = rng.choice(["take", "take", "assign", "store", "end", "fail"])
            try:
                getattr(turn, step)(*([rng.choice([ME, OTHER])] if step in ("take", "assign") else []))
            except TurnError:
                continue
            assert (turn.thread == 0) == (turn.state in (IDLE, FAILED))
            seen.add(turn.state)
    assert seen == set(TurnState)
