"""Looking at a queue on a log without taking it: whoever works on it goes on undisturbed."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence

import msgspec

from millstream.core.clock import Clock
from millstream.log import Log, TrimmedError
from millstream.queue.protocol import DeadTask, Depth
from millstream.queue.snapshot import catch_up, recover_up_to_now
from millstream.queue.state import QueueState

_VARYING = re.compile(r"[0-9a-f]{16,}|\d+|'[^']*'|\"[^\"]*\"|/\S+")


class Cause(msgspec.Struct, frozen=True):
    """Dead tasks that died alike: what their causes have in common, how many they are, and one of them."""

    cause: str
    count: int
    first_died_at: int
    last_died_at: int
    example: str


class QueueView:
    """The state of the queue on *log*, read anew as it grows. Thread-safe. *clock* says which delays are over.

    Raises what :func:`~millstream.queue.recover` raises.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._state: QueueState | None = None
        self._read_up_to = 0
        self._dead: list[DeadTask] | None = None
        self._causes: Sequence[Cause] | None = None

    def depth(self) -> Depth:
        """How many tasks stand where."""
        with self._lock:
            return self._refresh().depth(self._clock.now())

    def dead(self, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id; with *cause* only those of that group."""
        with self._lock:
            found = [task for task in self._all_dead() if task.task_id > after]
            if cause is None:
                return found[:limit]
            return [task for task in found if common_cause(task.cause) == cause][:limit]

    def causes(self) -> Sequence[Cause]:
        """The dead tasks by what their causes have in common, the largest group first."""
        with self._lock:
            dead = self._all_dead()
            if self._causes is None:
                self._causes = group_causes(dead)
            return self._causes

    def _all_dead(self) -> list[DeadTask]:
        state = self._refresh()
        if self._dead is None:
            self._dead = state.dead()
        return self._dead

    def _refresh(self) -> QueueState:
        last = self._log.last_id
        if self._state is not None and last <= self._read_up_to:
            return self._state
        self._dead = self._causes = None
        if self._state is not None:
            try:
                catch_up(self._log, self._state, self._read_up_to + 1, last)
            except TrimmedError:  # the owner has taken a snapshot and let go of what lay before it
                self._state = None
            else:
                self._read_up_to = last
                return self._state
        self._state, _, self._read_up_to = recover_up_to_now(self._log)
        return self._state


def common_cause(cause: str) -> str:
    """*cause* without what differs from task to task: numbers, hashes, paths and names in quotation marks."""
    return _VARYING.sub("…", cause.strip().partition("\n")[0][:300])


def group_causes(dead: Sequence[DeadTask]) -> Sequence[Cause]:
    """*dead* tasks by :func:`common_cause`, the largest group first."""
    texts = {cause: common_cause(cause) for cause in {task.cause for task in dead}}
    counts: Counter[str] = Counter()
    first, last, example = dict[str, int](), dict[str, int](), dict[str, str]()
    for task in dead:
        name = texts[task.cause]
        counts[name] += 1
        first[name] = min(first.get(name, task.died_at), task.died_at)
        last[name] = max(last.get(name, 0), task.died_at)
        example.setdefault(name, task.cause)
    return [Cause(name, count, first[name], last[name], example[name]) for name, count in counts.most_common()]
