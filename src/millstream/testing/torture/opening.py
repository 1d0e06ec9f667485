"""Opening the store of a torture while its server may just have been killed."""

from __future__ import annotations

from typing import Any

from millstream.core.clock import SystemClock
from millstream.core.retry import RetryPolicy
from millstream.log import LogStore
from millstream.stores.tiers import open_log_store

_PATIENCE = RetryPolicy(attempts=80, first=0.05, longest=1.5)


def open_when_up(url: str, **options: Any) -> LogStore:
    """The store at *url*, opened with *options* as soon as its server answers; within about two minutes.

    An open store waits for its server by itself, and opening one does not: that is for whoever opens it to decide.
    """
    return _PATIENCE.call(lambda: open_log_store(url, **options), SystemClock())
