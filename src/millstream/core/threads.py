"""Waiting for threads to end, for a limited time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Thread

from millstream.core.clock import SystemClock


def join_within(seconds: float, threads: Iterable[Thread]) -> Sequence[str]:
    """Wait up to *seconds* for *threads*, which are daemons, to end; the names of those that still run.

    They wait for a server or a disk that does not answer, and end with the process.
    """
    clock, late = SystemClock(), list[str]()
    deadline = clock.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic()))
        if thread.is_alive():
            late.append(thread.name)
    return late
