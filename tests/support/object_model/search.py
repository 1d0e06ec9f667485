"""Breadth-first search of all states of a small model, with the shortest trace to a violation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class Violation(str):
    """Takes the place of a state that must not be: what the property says of it."""


@dataclass(frozen=True)
class Found(Generic[S]):
    """What a search saw: the states, and the shortest way to a violation (empty: there is none)."""

    steps: int
    violation: str
    trace: tuple[str, ...]
    reached: Mapping[S, object]

    @property
    def states(self) -> int:
        return len(self.reached)

    def report(self) -> str:
        """The trace as numbered lines that end with the violation."""
        lines = [f"{number:3}. {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"  => {self.violation or 'no violation'}"])


def explore(
    initial: S, steps: Callable[[S], Iterator[tuple[str, S | Violation]]], *, limit: int = 5_000_000
) -> Found[S]:
    """Visit every state that *steps* lead to (what happens, in words, and the state after it), nearest first.

    Stops at the first violation. Raises :class:`RuntimeError` beyond *limit* states: a search that was cut off proves
    nothing.
    """
    parents: dict[S, tuple[S, str] | None] = {initial: None}
    queue, taken = [initial], 0
    for state in queue:
        for label, after in steps(state):
            taken += 1
            if isinstance(after, Violation):
                return Found(taken, str(after), (*_trace(parents, state), label), parents)
            if after not in parents:
                parents[after] = (state, label)
                queue.append(after)
        if len(parents) > limit:
            raise RuntimeError(f"more than {limit} states: choose smaller bounds")
    return Found(taken, "", (), parents)


def _trace(parents: Mapping[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    labels = []
    step = parents[state]
    while step is not None:
        labels.append(step[1])
        step = parents[step[0]]
    return tuple(reversed(labels))
