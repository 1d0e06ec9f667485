"""The turn to commit to one log: a state machine, so that one thread at a time stores what all have appended.

::

    IDLE ──take──▶ GATHERING ──store──▶ STORING ──end──▶ IDLE
      │                ▲    └──────────end─────────────▶ IDLE      nothing was pending
      └─assign─▶ ASSIGNED ──take──┘                                a waiting thread is woken to commit next
    any state ──fail──▶ FAILED                                     nothing more is committed

A thread that was interrupted (Ctrl-C) before it could end its turn may take it again, from whatever state it left.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import IntEnum


class TurnState(IntEnum):
    """The state of the thread that has the turn."""

    IDLE = 0
    """No thread has the turn."""
    ASSIGNED = 1
    """A waiting thread was given the turn and has not begun."""
    GATHERING = 2
    """A thread has the turn: it lets others append, and waits as linger and rate limits ask."""
    STORING = 3
    """A thread stores what was pending."""
    FAILED = 4
    """A commit failed, or the writer was replaced. This state is final."""


IDLE, ASSIGNED, GATHERING, STORING, FAILED = TurnState

TRANSITIONS: Mapping[TurnState, Set[TurnState]] = {
    IDLE: {ASSIGNED, GATHERING, IDLE, FAILED},
    ASSIGNED: {GATHERING, IDLE, FAILED},
    GATHERING: {GATHERING, STORING, IDLE, FAILED},
    STORING: {GATHERING, IDLE, FAILED},
    FAILED: {FAILED},
}
"""The states that may follow each state. IDLE may follow itself, since closing a writer ends a turn that is over."""


class TurnError(Exception):
    """A transition that is not one of :data:`TRANSITIONS`: a defect of the group commit."""


class CommitTurn:
    """Which thread commits next, and how far it is. Not thread-safe: its owner holds a lock.

    ``thread`` is the identifier of the thread that has the turn, 0 where none has.
    """

    __slots__ = ("state", "thread")

    def __init__(self) -> None:
        self.state = IDLE
        self.thread = 0

    def is_free_for(self, thread: int) -> bool:
        """Whether *thread* may take the turn: no thread has it, or *thread* itself was interrupted while it had it."""
        return self.thread in (0, thread)

    def take(self, thread: int) -> None:
        """*thread* begins to gather what will be stored. It must be free for it."""
        if self.thread not in (0, thread):
            raise TurnError(f"thread {thread} cannot take the turn of thread {self.thread}")
        self._move(GATHERING, thread)

    def assign(self, thread: int) -> None:
        """Give the turn to *thread*, which waits and is woken for it."""
        self._move(ASSIGNED, thread)

    def store(self) -> None:
        """The thread that has the turn begins to store what it gathered."""
        self._move(STORING, self.thread)

    def end(self) -> None:
        """The thread that has the turn gives it up; a failed turn stays failed."""
        if self.state is not FAILED:
            self._move(IDLE, 0)

    def fail(self) -> None:
        """No thread commits any more."""
        self._move(FAILED, 0)

    def _move(self, state: TurnState, thread: int) -> None:
        if state not in TRANSITIONS[self.state]:
            raise TurnError(f"the turn to commit cannot go from {self.state.name} to {state.name}")
        self.state, self.thread = state, thread
