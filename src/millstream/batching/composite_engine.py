"""Several engines as one: answers, for all of them, what is asked between two calls."""

from __future__ import annotations

from typing import Generic, TypeVar

from millstream.batching.engine import BatchingProgress

Part = TypeVar("Part", bound=BatchingProgress)


class CompositeEngine(Generic[Part]):
    """A set of engines, each with its own records."""

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    @property
    def clock(self) -> int | None:
        """The latest time that any of the engines was advanced to; None at first."""
        return max((part.clock for part in self._parts if part.clock is not None), default=None)

    @property
    def due(self) -> int | None:
        """The earliest time at which one of the engines is due; None where nothing is open."""
        times = (part.due for part in self._parts)
        return min((time for time in times if time is not None), default=None)

    @property
    def open_sources(self) -> int:
        """How many sources have open records; one that two engines know of counts twice."""
        return sum(part.open_sources for part in self._parts)


class TwoStageEngine(CompositeEngine[Part]):
    """Two engines that share their sources: one for punctual records, and one that waits for late ones."""

    def __init__(self, punctual: Part, other: Part) -> None:
        super().__init__(punctual, other)
        self._punctual, self._other = punctual, other

    @property
    def open_sources(self) -> int:
        """How many sources have open records in the engine that has most of them."""
        return max(part.open_sources for part in self._parts)
