"""The loop of a producer: bite after bite off the morsels in turn, until the queue is full or nothing is left."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol

import msgspec

from millstream.core.clock import Clock
from millstream.mill.errors import UnknownStoreError
from millstream.mill.producers.state import (
    DAY,
    LoopState,
    Morsel,
    Start,
    StateDocument,
    decide_start,
    first_start,
    next_start,
)
from millstream.queue.protocol import WorkQueue
from millstream.stores.protocol import StoreError

MOST_FAILURES = 3
"""Runs in which a morsel may fail before its loop continues without it."""

PATIENCE = DAY
"""The least time for which it may fail (microseconds): an hour without a disk must not cost a loop of a month."""


class LoopOutcome(enum.StrEnum):
    """How a run ended."""

    DONE = "done"  # the loop came to its end
    NOT_DUE = "not-due"  # the next loop is not due, or loops are switched off
    QUEUE_FULL = "queue-full"
    WAITING = "waiting"  # everything is on the queue, and workers have not done it yet
    FAILED = "failed"  # all that is left has failed in this run
    STOPPED = "stopped"


class Chunk(msgspec.Struct, Generic[Morsel], frozen=True):
    """The result of one chunk. ``left`` is the rest of the morsel, None if it is finished. With ``again`` the same
    morsel continues. Without ``moved`` there was no progress: it waits for workers.
    """

    left: Morsel | None
    tasks: int = 0
    again: bool = False
    moved: bool = True


class LoopFailure(msgspec.Struct, frozen=True):
    """A morsel that failed, or a store that could not be listed, in words, and of what."""

    what: str
    error: str


class LoopingProducer(Protocol[Morsel]):
    """The differences between producers."""

    @property
    def unlisted(self) -> Sequence[LoopFailure]:
        """The stores whose spaces :meth:`morsels` could not list; what is known of them is in the loop all the same."""
        ...

    def morsels(self) -> Sequence[Morsel] | None:
        """All there is to do in a new loop, in the order in which it should have its turn.

        None where no loop can begin yet; :attr:`unlisted` says why.
        """
        ...

    def next_chunk(self, morsel: Morsel, started_at: int) -> Chunk[Morsel]:
        """Put the next tasks of *morsel* on the queue, in a loop that began at *started_at*.

        To be called twice with the same morsel does no harm: a process may be killed before the state is written.
        """
        ...

    def give_up(self, morsel: Morsel, started_at: int, error: str) -> None:
        """The loop continues without *morsel*."""
        ...


class LoopRun(msgspec.Struct):
    """The result of a run. ``left`` morsels are not finished; the next loop is due at ``next_at`` (microseconds)."""

    outcome: LoopOutcome = LoopOutcome.NOT_DUE
    tasks: int = 0
    left: int = 0
    next_at: int | None = None
    failures: list[LoopFailure] = msgspec.field(default_factory=list)


class ProducerLoop(Generic[Morsel]):
    """A looping producer on *queue*, with its state in *file*.

    A loop begins every *frequency* microseconds, with *start* at this many microseconds after midnight (UTC). A run
    ends when *queue* has *most* open tasks or more. *on_progress* is called after each bite with the run so far.
    """

    def __init__(
        self,
        file: StateDocument[Morsel],
        producer: LoopingProducer[Morsel],
        queue: WorkQueue,
        clock: Clock,
        *,
        frequency: int,
        most: int,
        start: int | None = None,
        on_progress: Callable[[LoopRun], None] | None = None,
    ) -> None:
        self._file, self._producer, self._queue, self._clock = file, producer, queue, clock
        self._frequency, self._most, self._start, self._on_progress = frequency, most, start, on_progress

    def run(self, stopping: Callable[[], bool] = lambda: False) -> LoopRun:
        """Continue the loop, or begin one that is due, until the queue is full, or *stopping* returns True.

        Raises :class:`~millstream.mill.errors.ProducerBusyError` where another process is at it.
        """
        with self._file.alone():
            state, now = self._file.load(), self._clock.now()
            if self._start is not None and state.started_at is None and state.next_at is None and self._frequency > 0:
                state.next_at = first_start(now, self._start)
                self._file.save(state)
            start = decide_start(state, now, self._frequency)
            if start in (Start.NOT_DUE, Start.OFF):
                return LoopRun(LoopOutcome.NOT_DUE, next_at=state.next_at)
            if start == Start.BEGIN:
                morsels = self._producer.morsels()
                if morsels is None:
                    return LoopRun(LoopOutcome.NOT_DUE, failures=list(self._producer.unlisted))
                state = LoopState([*morsels], started_at=now)
                self._file.save(state)
            run = LoopRun(failures=list(self._producer.unlisted))
            run.outcome = self._work(state, run, stopping)
            if run.outcome == LoopOutcome.DONE:
                due = next_start(state.started_at or now, self._frequency, self._start) if self._frequency > 0 else None
                state.started_at, state.next_at = None, due
                self._file.save(state)
            run.left, run.next_at = len(state.morsels), state.next_at
            return run

    def _work(self, state: LoopState[Morsel], run: LoopRun, stopping: Callable[[], bool]) -> LoopOutcome:
        """Nibble at the morsels in turn until none is left, or nothing more can be done now."""
        turn, failed = deque(state.morsels), list[Morsel]()
        idle = 0
        while turn:
            if stopping():
                return LoopOutcome.STOPPED
            if idle >= len(turn):
                return LoopOutcome.WAITING
            if self._queue.depth().open >= self._most:
                return LoopOutcome.QUEUE_FULL
            morsel = turn[0]
            try:
                chunk = self._producer.next_chunk(morsel, state.started_at or 0)
            except (StoreError, UnknownStoreError) as error:
                idle = 0
                failed += self._after_failure(turn.popleft(), state, run, error)
            else:
                run.tasks += chunk.tasks
                idle = 0 if chunk.moved else idle + 1
                _take_turns(turn, chunk)
            state.morsels = [*turn, *failed]
            if not idle:  # what only waits is found again as it is
                self._file.save(state)
            if self._on_progress is not None:
                run.left = len(state.morsels)
                self._on_progress(run)
        return LoopOutcome.FAILED if failed else LoopOutcome.DONE

    def _after_failure(self, morsel: Morsel, state: LoopState[Morsel], run: LoopRun, error: Exception) -> list[Morsel]:
        """Note the failure; what is left for the next run."""
        run.failures.append(LoopFailure(str(morsel), str(error)))
        now = self._clock.now()
        since = now if morsel.failing_since is None else min(now, morsel.failing_since)  # clocks are set back
        if morsel.failures + 1 < MOST_FAILURES or now - since < min(PATIENCE, self._frequency):
            return [msgspec.structs.replace(morsel, failures=morsel.failures + 1, failing_since=since)]
        self._producer.give_up(morsel, state.started_at or 0, str(error))
        return []


def _take_turns(turn: deque[Morsel], chunk: Chunk[Morsel]) -> None:
    """Put what is left of the first morsel back in its place."""
    turn.popleft()
    if chunk.left is not None:
        (turn.appendleft if chunk.again else turn.append)(chunk.left)
