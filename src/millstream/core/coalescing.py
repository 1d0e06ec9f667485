"""Work that many threads ask for at the same time, done together: one commit for all who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class RequestCoalescer(Generic[Job, Outcome]):
    """Calls *run* with the jobs of all threads that wait, in the order in which they came, never twice at once.

    *run* returns an outcome for each job; one that is an exception is raised in the thread whose job it was. What *run*
    itself raises is raised in all of them. There is no delay: a call that comes alone is
    served alone, and one that comes while others are served waits for the next round.
    """

    def __init__(self, run: Callable[[Sequence[Job]], Sequence[Outcome | Exception]]) -> None:
        self._run = run
        self._running = threading.Lock()
        self._waiting: list[_PendingJob[Job, Outcome]] = []
        self._listing = threading.Lock()

    def __call__(self, job: Job) -> Outcome:
        """Have *job* done; its outcome."""
        entry: _PendingJob[Job, Outcome] = _PendingJob(job)
        with self._listing:
            self._waiting.append(entry)
        with self._running:
            if not entry.outcome:
                self._serve()
        (outcome,) = entry.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _serve(self) -> None:
        with self._listing:
            entries, self._waiting = self._waiting, []
        try:
            outcomes: Sequence[Outcome | BaseException] = self._run([entry.job for entry in entries])
        except BaseException as error:
            outcomes = [error] * len(entries)
        for entry, outcome in zip(entries, outcomes, strict=True):
            entry.outcome.append(outcome)


class _PendingJob(Generic[Job, Outcome]):
    """A job that waits, and its outcome once there is one."""

    __slots__ = ("job", "outcome")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome: list[Outcome | BaseException] = []
