"""The writer of ticks to the batched log: its writer in this process, else the process that finds it free."""

from __future__ import annotations

from collections.abc import Callable

from millstream.batching.message_events import make_tick
from millstream.core.clock import Clock
from millstream.log import Log, LogError, Writer, WriterBusyError

Ticker = Callable[[], bool]
"""Appends one tick; False where that cannot be done now."""

BUSY_PAUSE = 1.0
"""Seconds until a log that another process writes to is retried."""


def writer_ticker(writer: Writer) -> Ticker:
    """Ticks by the *writer* of the log, which is ours."""

    def tick() -> bool:
        writer.append([make_tick()])
        return True

    return tick


def current_writer_ticker(writer: Callable[[], Writer | None]) -> Ticker:
    """Ticks by the writer of the log that *writer* finds, as long as it finds one."""

    def tick() -> bool:
        found = writer()
        if found is None:
            return False
        try:
            found.append([make_tick()])
        except LogError:  # it has ended since; its successor is found the next time
            return False
        return True

    return tick


def first_of_tickers(*tickers: Ticker) -> Ticker:
    """Ticks by the first of *tickers* that can."""
    return lambda: any(tick() for tick in tickers)


def idle_log_ticker(log: Log, clock: Clock) -> Ticker:
    """Ticks by taking the writer's lease of *log* for one message, and only if no other process holds it.

    A log with a writer gets its ticks from there, or moves on with its messages.
    """
    busy_until = clock.monotonic()

    def tick() -> bool:
        nonlocal busy_until
        if clock.monotonic() < busy_until:
            return False
        try:
            with log.writer() as writer:
                writer.append([make_tick()])
        except WriterBusyError:
            busy_until = clock.monotonic() + BUSY_PAUSE
            return False
        return True

    return tick
