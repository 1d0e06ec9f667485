"""Stage 1: records become messages in a log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millstream.demo.arrivals import Arrivals
from millstream.demo.road import Done, Walk
from millstream.log import LogSpec

CHUNK = 65_536
PRODUCER = "demo"

HOUR = 3_600_000_000


def publish(arrivals: Arrivals) -> Callable[[Walk], Done]:
    """The stage that appends *arrivals*, a chunk a call; chunks that an earlier run appended are dropped by number."""

    def run(walk: Walk) -> Done:
        messages = arrivals.messages()
        log = walk.node.store.log(LogSpec(arrivals.log))
        with log.writer(producer=PRODUCER) as writer:
            for number, chunk in enumerate(messages.to_batches(max_chunksize=CHUNK), 1):
                writer.append(chunk, sequence=number)
                walk.step(min(number * CHUNK, len(messages)), len(messages))
        size = int(messages.column("body").nbytes)
        return Done({"messages": len(messages)}, size, {"per_hour": _per_hour(messages), "last_id": log.last_id})

    return run


def _per_hour(messages: pa.Table) -> list[int]:
    """Messages in each hour of event time, from the first hour to the last."""
    hours = messages.column("event_time").to_numpy() // HOUR
    counts: list[int] = np.bincount(hours - hours.min()).tolist() if len(hours) and _spans_years(hours) else []
    return counts


def _spans_years(hours: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Whether one number an hour is worth keeping: not for event times that are centuries apart."""
    return int(hours.max() - hours.min()) < 200_000
