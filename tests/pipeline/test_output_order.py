"""The output of a batch job: parts that follow each other in time, of about as many messages, however these lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.batching import BatchConfig, Override, Rulebook
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.pipeline.jobs import output_order
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.log_range import plan_range
from millstream.pipeline.jobs.output_order import order_times, part_count, sample_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriteLog = Callable[..., list[Message]]

RULES = BatchConfig(window=50, max_delay=20)

BASE = 1_000_000_000
"""A time far from the beginning of the epoch, at which the one early message lies."""


@pytest.mark.parametrize(
    ("rows", "cores", "parts"),
    [(1, 2, 1), (20_001, 2, 2), (20_001, 64, 4), (10**7, 2, 40), (10**9, 2, 4000), (10**12, 2, 4096)],
)
def test_the_number_of_parts_follows_from_the_messages_also_before_executors_have_joined(
    rows: int, cores: int, parts: int
) -> None:
    assert part_count(rows, cores) == parts


def test_refused_messages_come_in_the_order_in_which_they_were_received() -> None:
    rules = Rulebook(RULES, (Override(BatchConfig(50, 100, leap=7), "slow"),))
    times = {"event_time": [1000, 1000, 1000, 1000], "received_at": [1000, 1151, 1200, 979]}
    assert order_times(pa.RecordBatch.from_pydict(times), rules).tolist() == [1000, 1000, 1200, 979]


def test_a_sample_has_the_times_of_a_log_from_its_first_message_to_its_last(
    log_url: str, write_log: WriteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_order, "_PLACE_ROWS", 3)
    write_log(log_url, "in", [Message(b"", event_time=time, received_at=time) for time in range(103)])
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    numbers = pa.RecordBatch.from_pydict({"id": list(range(10))})
    sampled = pa.Table.from_batches(sample_part([numbers], log_url, wanted, Rulebook(RULES), 10))["time"].to_pylist()
    assert sampled == [place * 103 // 10 + row for place in range(10) for row in range(3)]


@pytest.mark.spark
@pytest.mark.parametrize("delay", ["none", "years"])
def test_parts_are_of_about_as_many_messages_where_one_lies_decades_before_the_others(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog, delay: str
) -> None:
    times = [0, *(BASE + number for number in range(20_000))]
    random.Random(1).shuffle(times)
    received = [time if delay == "none" else 2 * BASE + place for place, time in enumerate(times)]
    messages = [Message(b"", "k", "s", time, at) for time, at in zip(times, received, strict=True)]
    write_log(log_url, "in", messages, block_messages=5000)
    rules = BatchConfig(10, 20 if delay == "none" else 3 * BASE, max_count=1)
    job = run_batch(spark, tmp_path / "jobs", log_url, "in", rules)
    tables = [pq.read_table(path, columns=["start"]) for path in sorted(job.data.glob("*.parquet"))]
    rows = [len(table) for table in tables if len(table)]
    assert sum(rows) == len(messages)
    assert len(rows) >= 2
    assert max(rows) < 2 * sum(rows) / len(rows)
    starts = pa.concat_tables(tables)["start"].to_pylist()
    assert starts == sorted(times)
