"""The common interface of both kinds of engines, so that :class:`~millstream.batching.batcher.Batcher` can drive
either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from millstream.batching.event import BatcherOutput, CutReason, Event, Row


class OpenState(msgspec.Struct, frozen=True, array_like=True):
    """One open batch in a snapshot. ``borders`` are doubled event times, which only the faithful mode has."""

    rows: list[Row]
    borders: tuple[int, int] = (0, 0)
    cut: CutReason = "window"


class SourceState(msgspec.Struct, frozen=True, array_like=True):
    """One source in a snapshot: its open batches and the records that are not in one yet."""

    source: str
    open: list[OpenState]
    pending: list[Row]


class EngineState(msgspec.Struct, frozen=True, array_like=True):
    """Everything that an engine remembers between two calls, sources by name.

    ``late`` are the sources of the second engine that a policy for late records has; ``given`` the source, event time,
    key and batch of each record whose batch may be amended still; ``parts`` the engines of a rulebook.
    """

    clock: int | None
    flushed: bool
    sources: list[SourceState]
    late: list[SourceState] = []
    given: list[tuple[str, int, str, str]] = []
    parts: list[EngineState] = []


class BatchingProgress(Protocol):
    """The state that a batcher reports between two calls, for single records or columns."""

    @property
    def clock(self) -> int | None:
        """The latest time that it was advanced to; None before the first."""
        ...

    @property
    def due(self) -> int | None:
        """A clock before which nothing will be closed unless something is received; None where nothing is open."""
        ...

    @property
    def open_sources(self) -> int:
        """How many sources have records that are in no closed batch yet."""
        ...


class EngineHost:
    """A batcher whose progress is that of its engine."""

    _engine: BatchingProgress

    @property
    def clock(self) -> int | None:
        """The latest time that the batcher was advanced to; None before the first."""
        return self._engine.clock

    @property
    def due(self) -> int | None:
        """A clock before which nothing will be closed unless something is received; None where nothing is open."""
        return self._engine.due

    @property
    def open_sources(self) -> int:
        """How many sources have records that are in no closed batch yet."""
        return self._engine.open_sources


class Engine(BatchingProgress, Protocol):
    """A way of batching. Every call returns what it closed and what it refused."""

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*, without taking any."""
        ...

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events*."""
        ...

    def advance(self, bound: int) -> BatcherOutput:
        """Let time pass up to *bound* (receive time)."""
        ...

    def flush(self) -> BatcherOutput:
        """Close everything."""
        ...

    def dump(self) -> EngineState:
        """What :meth:`load` needs to continue from here."""
        ...

    def load(self, state: EngineState) -> None:
        """Take up *state*; only on a fresh engine."""
        ...
