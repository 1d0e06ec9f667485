"""Stage 1: records become messages in a log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.demo.arrivals import Arrivals
from millstream.demo.hourly_counts import HourlyCounts
from millstream.demo.runner import DemoRun, StageResult
from millstream.log import LogSpec

CHUNK = 65_536
PRODUCER = "demo"


def publish(arrivals: Arrivals) -> Callable[[DemoRun], StageResult]:
    """The stage that appends *arrivals*, a chunk a call; chunks that an earlier run appended are dropped by number."""

    def run(demo_run: DemoRun) -> StageResult:
        messages = arrivals.messages()
        log = demo_run.node.logs.store.log(LogSpec(arrivals.log))
        with log.writer(producer=PRODUCER) as writer:
            for number, chunk in enumerate(messages.to_batches(max_chunksize=CHUNK), 1):
                writer.append(chunk, sequence=number)
                demo_run.step(min(number * CHUNK, len(messages)), len(messages))
        hours = msgspec.to_builtins(HourlyCounts.of(messages.column("event_time").to_numpy()))
        size = int(messages.column("body").nbytes)
        return StageResult({"messages": len(messages)}, size, {"per_hour": hours, "last_id": log.last_id})

    return run
