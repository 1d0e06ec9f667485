"""What the driver of a batch stream looks at while its query runs, without Spark."""

from __future__ import annotations

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import Log, LogSpec, open_store
from millstream.pipeline.jobs.batch_stream import _StreamMonitor
from millstream.pipeline.output.batch_sink import BatchSink


@pytest.mark.parametrize(("messages", "ticks"), [(2, 0), (1, 6)])
def test_the_end_of_the_log_is_looked_at_once_a_second_for_a_tick(
    monkeypatch: pytest.MonkeyPatch, messages: int, ticks: int
) -> None:
    clock, looks, told = VirtualClock(), [], []
    with open_store("memory://") as store, store.log(LogSpec("batches")).writer("batching") as writer:
        source = store.log(LogSpec("in"))
        with source.writer() as producer:
            producer.append([b"x"] * messages)
        sink = BatchSink("batches", writer, clock, MetricsCollector(), lambda: None)
        watch = _StreamMonitor(sink, source, lambda: not told.append(1), on_trigger=lambda _: None, clock=clock)
        watch.before = 1
        monkeypatch.setattr(Log, "last_id", property(lambda _: looks.append(1) or messages))
        for _ in range(105):  # 5.25 seconds
            watch.check()
            clock.advance(0.05)
    assert (len(looks), len(told)) == (6, ticks)
