"""What the driver of a batch stream looks at before its query and while it runs, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.batching import BatchConfig, Rulebook, SnapshotError
from millstream.batching.service import BatchService
from millstream.core.clock import VirtualClock
from millstream.core.documents import FileDocument
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import Log, LogSpec, LogStore, StorageError, Tiering, open_store
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.batch_stream import StreamPlan, _check_rules, _check_source, _StreamMonitor
from millstream.pipeline.output.batch_sink import BatchSink
from millstream.stores import StoreError
from support.batched_logs import RULES, traffic
from support.tiered_logs import URL, Cloud


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


def batched(store: LogStore, state: FileDocument) -> tuple[Log, Log]:
    """A log with messages, and the log that a service with *state* has batched it into."""
    source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
    with source.writer() as writer:
        writer.append(traffic(9, 300))
    service = BatchService(source, output, RULES, state)
    service.step()
    service.close()
    return source, output


def test_a_stream_with_a_state_needs_no_older_messages_from_a_tier_that_cannot_be_reached(tmp_path: Path) -> None:
    class Down:
        url = URL

        def __getattr__(self, name: str) -> Any:
            raise StoreError("unplugged")

    cloud, state = Cloud(), FileDocument(tmp_path / "state")
    plan = StreamPlan(store_url="memory://", log="in", output="out", rules=Rulebook(RULES), state=state.path)
    with open_store("memory://", open_objects=cloud.open) as store:
        source, output = batched(store, state)
        output.set_tiering(Tiering(URL, segment_bytes=1))
        assert output.move_blocks(partial=True).objects
        cloud.store = Down()
        with output.writer("batching") as writer:
            _check_source(plan, source, output, writer)
            _check_rules(plan, source, output)
            others = msgspec.structs.replace(plan, rules=Rulebook(BatchConfig(60, 20)))
            with pytest.raises(SnapshotError, match=r"state: .*window=50 .*window=60 "):
                _check_rules(others, source, output)
            state.path.unlink()
            for check in (
                lambda: _check_source(plan, source, output, writer),
                lambda: _check_rules(plan, source, output),
            ):
                with pytest.raises(StorageError, match="unplugged"):
                    check()


def test_p6_a_stream_without_a_state_continues_no_batches_of_other_rules(tmp_path: Path) -> None:
    state = FileDocument(tmp_path / "state")
    plan = StreamPlan(store_url="memory://", log="in", output="out", rules=Rulebook(RULES), state=state.path)
    with open_store("memory://") as store:
        source, output = batched(store, state)
        state.path.unlink()
        _check_rules(plan, source, output)
        others = msgspec.structs.replace(plan, rules=Rulebook(BatchConfig(60, 20)))
        with pytest.raises(PipelineInputError, match=r"window=60 .*'out' has batches of other rules"):
            _check_rules(others, source, output)
