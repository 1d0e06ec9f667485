"""A streaming query of a job, from its start to its end: one way for all that follow a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from millstream.core.clock import Clock

INTERVAL = 1.0
"""Seconds between the beginnings of two triggers at least, unless a job is told otherwise."""

_PAUSE = 0.05  # seconds between two looks at the query

Sink = Callable[[Any, int], None]
"""Takes a micro-batch of Spark and its number; on the driver, and again where Spark is not sure that it did."""


def start_query(
    frame: DataFrame, sink: Sink, checkpoint: Path, *, available_now: bool, interval: float = INTERVAL
) -> StreamingQuery:
    """Begin to hand what *frame* gives to *sink*, trigger by trigger; *checkpoint* is Spark's folder.

    With *available_now* the query ends when it has taken what is there now; else a trigger begins each *interval*
    seconds at most.
    """
    writing = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    if available_now:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(interval * 1000)} milliseconds").start()


def await_query(
    query: StreamingQuery, stopped: Callable[[], bool], clock: Clock, *, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until *query* ends or *stopped* returns True, and stop it; *check* is called at intervals meanwhile.

    Raises the error of the query.
    """
    try:
        active = True
        while active and not stopped():
            active = query.isActive
            check()
            if active:
                clock.sleep(_PAUSE)
    finally:
        query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
