"""A log backend that fails on demand, to test what stands on a log."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from millstream.log.backend import Backend, Commit
from millstream.log.errors import StorageError


class FaultyBackend:
    """Wraps *backend*; commits fail as planned, everything else is passed on.

    Each entry of ``faults`` is used up by one commit: ``before`` fails before anything is stored, ``after`` stores
    and then fails, as when the reply is lost. ``commits`` counts the commits that were tried.
    """

    def __init__(self, backend: Backend, error: Exception | None = None) -> None:
        self._backend = backend
        self._error = error or StorageError("a fault that a test asked for")
        self.faults: deque[Literal["before", "after"]] = deque()
        self.commits = 0

    def commit(self, log: str, commit: Commit) -> None:
        """Do *commit*, or fail as the next fault says."""
        fault = self.faults.popleft() if self.faults else None
        self.commits += 1
        if fault != "before":
            self._backend.commit(log, commit)
        if fault is not None:
            raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
