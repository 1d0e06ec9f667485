"""Which logs this process wanted to write while another one did, for those who tell people of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec


class WriterRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """At ``at`` (microseconds) ``producer`` wanted the lease of ``log``, and was refused for the reason ``why``."""

    log: str
    producer: str
    at: int
    why: str


class WriterRefusals:
    """The last refusal of each log; one that was written since has none. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_log: dict[str, WriterRefusal] = {}

    def add(self, refusal: WriterRefusal) -> None:
        """Remember *refusal*, and when the first of several in a row was."""
        with self._lock:
            before = self._by_log.get(refusal.log, refusal)
            self._by_log[refusal.log] = msgspec.structs.replace(refusal, at=before.at)

    def discard(self, log: str) -> None:
        """Forget that of *log*, if there is one."""
        with self._lock:
            self._by_log.pop(log, None)

    def all(self) -> Sequence[WriterRefusal]:
        """All of them, by log."""
        with self._lock:
            return [self._by_log[log] for log in sorted(self._by_log)]
