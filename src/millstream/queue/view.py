"""Looking at a queue on a log without taking it: the process that works on it continues undisturbed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millstream.core.clock import Clock
from millstream.log import Log, TrimmedError
from millstream.queue.dead_letters import DeadLetterGroup, DeadLetters
from millstream.queue.protocol import DeadTask, Depth
from millstream.queue.snapshot import catch_up, recover_up_to_now
from millstream.queue.state import QueueState


class QueueView:
    """The state of the queue on *log*, updated as it grows. Thread-safe. *clock* says which delays are over.

    Raises the errors of :func:`~millstream.queue.recover`.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._state: QueueState | None = None
        self._read_up_to = 0
        self._dead = DeadLetters([])
        self._sorted: tuple[QueueState, int] | None = None

    def depth(self) -> Depth:
        """The number of tasks in each state."""
        with self._lock:
            return self._refresh().depth(self._clock.now())

    def dead(self, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id; with *cause* only those of that group."""
        with self._lock:
            return self._dead_letters().page(limit=limit, after=after, cause=cause)

    def causes(self) -> Sequence[DeadLetterGroup]:
        """The dead tasks by what their causes have in common, the largest group first."""
        with self._lock:
            return self._dead_letters().causes

    def _dead_letters(self) -> DeadLetters:
        """Sorted again only if a task died, was changed, redriven or discarded since."""
        state = self._refresh()
        if self._sorted != (state, state.deaths):
            self._dead = DeadLetters(state.dead(), self._dead.names)
            self._sorted = state, state.deaths
        return self._dead

    def _refresh(self) -> QueueState:
        last = self._log.last_id
        if last < self._read_up_to:  # the log lost messages, by a failover or as it was restored
            self._state = None
        elif self._state is not None and last == self._read_up_to:
            return self._state
        if self._state is not None:
            state, self._state = self._state, None  # what ends half-way has applied a part: then all is read again
            try:
                catch_up(self._log, state, self._read_up_to + 1, last)
            except TrimmedError:  # the owner has taken a snapshot and trimmed the messages before it
                pass
            else:
                self._state, self._read_up_to = state, last
                return state
        self._state, _, self._read_up_to = recover_up_to_now(self._log)
        return self._state
