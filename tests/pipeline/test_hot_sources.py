"""A source with more messages than a task should have is parted at gaps, and nobody can tell from the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from millstream.batching import BatchConfig, Batcher, Override, Rulebook
from millstream.batching.message_events import event_from_message, make_tick
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.log import Log
from millstream.pipeline.history import batch_range
from millstream.pipeline.planning import hot_sources
from millstream.pipeline.planning.hot_sources import SPAN_SCHEMA, SourceGaps, choose_cuts, find_spans, gaps_of
from millstream.pipeline.planning.log_range import plan_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


def spans_of(parts: list[list[int]], window: int) -> pa.Table:
    """What tasks that each have some event times of one source find."""
    found: list[pa.RecordBatch] = []
    for times in parts:
        batch = pa.RecordBatch.from_pydict({"source": ["s"] * len(times), "event_time": pa.array(times, pa.int64())})
        found += find_spans([batch], ["s", "elsewhere"], window, max(1, sum(map(len, parts))))
    return pa.Table.from_batches(found, SPAN_SCHEMA)


@given(
    st.lists(st.lists(st.integers(0, 400), max_size=40), max_size=4),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(0, 420),
)
def test_every_cut_lies_behind_a_gap_wider_than_the_window_on_settled_ground(
    parts: list[list[int]], window: int, share: int, settled_to: int
) -> None:
    times = np.sort(np.array([time for part in parts for time in part], np.int64))
    spans = spans_of(parts, window)
    assert sum(spans["rows"].to_pylist()) == len(times)
    cuts = choose_cuts(spans, SourceGaps(window, settled_to), share)
    assert cuts == sorted(set(cuts))
    for cut in cuts:
        before = times[times < cut].max()
        assert cut - before > window
        assert before <= settled_to
        assert cut in times


def test_cuts_lie_about_so_many_records_apart() -> None:
    times = [100 * place + each for place in range(1000) for each in (0, 1)]
    cuts = choose_cuts(spans_of([times[::2], times[1::2]], 10), SourceGaps(10, 10**6), share=500)
    assert [round(np.searchsorted(times, cut) / 500, 1) for cut in cuts] == [1.0, 2.0, 3.0]


def test_a_task_with_more_spans_than_it_may_tell_of_keeps_the_widest_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_sources, "_LEAST_SPANS", 0)
    monkeypatch.setattr(hot_sources, "_MOST_SPANS", 2)
    assert spans_of([[0, 10, 1000, 1010, 5000]], 5).select(["start", "end"]).to_pylist() == [
        {"start": 0, "end": 10},
        {"start": 1000, "end": 1010},
        {"start": 5000, "end": 5000},
    ]


def test_the_spans_of_all_tasks_together_are_no_more_than_one_task_sorts_however_long_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hot_sources, "_MOST_SPANS", 1000)
    tasks = [list(range(first, first + 100_000, 100)) for first in range(0, 4_000_000, 100_000)]
    spans = spans_of(tasks, 10)
    assert len(spans) <= 1000 + len(tasks) * hot_sources._LEAST_SPANS
    assert sum(spans["rows"].to_pylist()) == sum(map(len, tasks))


def test_a_look_for_hot_sources_lists_no_blocks(
    log_url: str, write_log: WriteLog, untidy: Untidy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(log_url, "in", [*untidy(1, 900, sources=1), *untidy(2, 100, sources=9)])
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    monkeypatch.delattr(Log, "block_ranges")
    assert hot_sources._hot_sources(log_url, wanted, 500) == ["station-0"]


def test_ticks_are_no_hot_source(log_url: str, write_log: WriteLog, untidy: Untidy) -> None:
    write_log(log_url, "in", [*untidy(1, 500, sources=1), *[make_tick()] * 500])
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    assert hot_sources._hot_sources(log_url, wanted, 400) == ["station-0"]


def test_the_mode_faithful_is_not_parted() -> None:
    assert gaps_of(Rulebook(BatchConfig(5, 5, mode="faithful")), 1000) is None


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", [True, False])
def test_p5_one_source_is_worked_on_by_several_tasks_and_gives_the_same_batches(
    spark: SparkSession,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
    flush: bool,
) -> None:
    monkeypatch.setattr(hot_sources, "HOT_ROWS", 1000)
    rules = Rulebook(
        BatchConfig(9, 20, late="amend", grace=15), (Override(BatchConfig(5, 20, max_count=2), "station-0", "key-1"),)
    )
    messages = write_log(log_url, "untidy", untidy(21, 3000, sources=1) + untidy(22, 200, sources=3))
    wanted = plan_range(log_url, "untidy", None, None, SystemClock())
    batches = batch_range(spark, log_url, wanted, rules, flush=flush, whole=True)
    rows = batches.withColumn("task", F.spark_partition_id()).collect()

    batcher = Batcher.of(rules)
    outcomes = [batcher.receive_many(map(event_from_message, messages)), batcher.advance(wanted.received_to)]
    outcomes += [batcher.flush()] if flush else []
    expected = sorted((b.batch, b.kind, b.closed_at, b.cut, b.events) for each in outcomes for b in each.batches)
    found = sorted((r["batch"], r["kind"], r["closed_at"], r["cut"], tuple(r["ids"])) for r in rows if r["batch"])
    assert found == expected
    refused = sorted((r["ids"][0], r["reason"]) for r in rows if r["reason"])
    assert refused == sorted((reject.rejected, reject.reason) for each in outcomes for reject in each.rejects)
    assert len({row["task"] for row in rows if row["source"] == "station-0"}) >= 4
