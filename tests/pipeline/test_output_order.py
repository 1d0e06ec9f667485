"""The output of a batch job: parts that follow each other in time, of about as many messages, however these lie."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.batching import BatchConfig, Override, Rulebook
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.planning.log_range import plan_range
from millstream.pipeline.tasks import output_order
from millstream.pipeline.tasks.output_order import (
    SAMPLE_SCHEMA,
    PartBounds,
    bounds_of,
    find_bounds,
    order_part,
    order_times,
    part_count,
    sample_part,
    with_part,
)
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA, count_rows

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
    found, accepted = order_times(pa.RecordBatch.from_pydict(times), rules)
    assert (found.tolist(), accepted.tolist()) == ([1000, 1000, 1200, 979], [True, True, False, False])


def test_a_sample_has_the_times_of_a_log_from_its_first_message_to_its_last(
    log_url: str, write_log: WriteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_order, "_PLACE_ROWS", 3)
    write_log(log_url, "in", [Message(b"", event_time=time, received_at=time) for time in range(103)])
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    numbers = pa.RecordBatch.from_pydict({"id": list(range(10))})
    sampled = pa.Table.from_batches(sample_part([numbers], log_url, wanted, Rulebook(RULES), 10))["time"].to_pylist()
    assert sampled == [place * 103 // 10 + row for place in range(10) for row in range(3)]


@pytest.mark.parametrize("least_rows", [20, 4])
def test_a_sample_that_one_task_reads_is_read_without_a_query(
    spark: SparkSession, log_url: str, write_log: WriteLog, monkeypatch: pytest.MonkeyPatch, least_rows: int
) -> None:
    monkeypatch.setattr(output_order, "_LEAST_ROWS", least_rows)
    monkeypatch.setattr(output_order, "PART_ROWS", 10)
    write_log(log_url, "in", [Message(b"", event_time=time, received_at=time) for time in range(100)])
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    session = cast(Any, SimpleNamespace(sparkContext=spark.sparkContext)) if least_rows == 20 else spark
    bounds = find_bounds(session, log_url, wanted, Rulebook(RULES))
    assert bounds.parts == 100 // max(10, least_rows)
    assert len(bounds.batches) == bounds.parts - 1 == len(set(bounds.batches))


@pytest.mark.parametrize("held", [1 << 30, 2000, 0])
def test_the_rows_of_a_part_come_in_order_from_memory_and_from_files(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    draw = random.Random(4)
    rows = [row_of(number, draw) for number in range(300)]
    wanted = sorted(rows, key=lambda row: (row["start"], row["source"], row["batch"] or "", row["ids"][:1]))
    draw.shuffle(rows)
    monkeypatch.setattr(output_order, "_PIECE_BYTES", 20_000)
    monkeypatch.setattr(output_order, "_HELD_BYTES", held)
    batches = [pa.RecordBatch.from_pylist(rows[first : first + 40], BATCH_SCHEMA) for first in range(0, 300, 40)]
    parted = pa.Table.from_batches(with_part(batches, PartBounds(2, ((50, ""),), ((50, "", 0),)))).to_batches(
        max_chunksize=3
    )
    assert {number for part in parted for number in part.column("part").to_pylist()} == {0, 1}
    pieces = list(order_part(parted))
    assert len(pieces) > 2
    assert pa.Table.from_batches(pieces).to_pylist() == wanted
    assert sum((Counter(count_rows(piece)) for piece in pieces), Counter()) == Counter(
        batches=sum(row["batch"] is not None for row in rows),
        batched=sum(len(row["ids"]) for row in rows if row["batch"]),
        bytes=sum(len(row["lines"] or b"") for row in rows),
        rejected=sum(row["reason"] is not None for row in rows),
        late=sum(row["reason"] == "late" for row in rows),
    )
    assert list(order_part([])) == []


def row_of(number: int, draw: random.Random) -> dict[str, Any]:
    """A batch, a message that is in none, or what is open: the last."""
    row: dict[str, Any] = dict.fromkeys(BATCH_SCHEMA.names)
    row |= {"source": draw.choice(["", "a", "b"]), "start": draw.randrange(100), "ids": [number]}
    if number == 299:
        return row | {"source": "", "ids": [], "snapshot": b"open"}
    if number % 5 == 0:
        return row | {"reason": "late"}
    ids = list(range(1000 * number, 1000 * number + draw.randrange(1, 9)))
    return row | {"batch": f"{draw.getrandbits(64):016x}", "ids": ids, "lines": bytes(draw.randrange(900))}


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


@pytest.mark.parametrize("sources", [1, 500])
def test_batches_of_the_same_start_are_spread_over_parts_in_order(sources: int) -> None:
    draw = random.Random(8)
    names = [f"s{number:03}" for number in range(sources)]
    rows = [
        dict.fromkeys(BATCH_SCHEMA.names)
        | {"source": draw.choice(names), "start": 7 if number % 10 else number, "ids": [number]}
        | {"batch": f"{draw.getrandbits(256):064x}"}
        for number in range(5000)
    ]
    rows.sort(key=lambda row: (row["start"], row["source"], row["batch"]))
    bounds = tuple((rows[number * 500]["start"], rows[number * 500]["source"]) for number in range(1, 10))
    ordered = parted_and_ordered(rows, PartBounds(10, bounds))
    assert [row for part in ordered for row in part] == rows
    assert max(map(len, ordered)) < 1100  # all but a tenth would be in one part


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("sources", [1, 50])
def test_messages_refused_at_the_same_receive_time_are_spread_over_parts_in_order(sources: int, accepted: bool) -> None:
    """Late ones, or such as are sent twice: those look like messages of batches in a sample."""
    draw = random.Random(9)
    messages = [
        (100_000 if number % 10 else number, f"s{draw.randrange(sources):02}", number) for number in range(5000)
    ]
    columns = zip(
        *[(7 * time % 1000, accepted, time, source, number) for time, source, number in messages], strict=True
    )
    sample = pa.table([pa.array(column) for column in columns], SAMPLE_SCHEMA)
    empty = dict.fromkeys(BATCH_SCHEMA.names)
    rows = [
        empty | {"start": time, "source": source, "ids": [number], "reason": "late"}
        for time, source, number in messages
    ]
    ordered = parted_and_ordered(rows, bounds_of(sample, 10))
    found = [(row["start"], row["source"], *row["ids"]) for part in ordered for row in part]
    assert found == sorted(messages)
    assert max(map(len, ordered)) < 550


def parted_and_ordered(rows: list[dict[str, Any]], bounds: PartBounds) -> list[list[dict[str, Any]]]:
    """*rows* by part, in order."""
    parted = pa.Table.from_batches(with_part([pa.RecordBatch.from_pylist(rows, BATCH_SCHEMA)], bounds))
    parts: dict[int, list[pa.RecordBatch]] = {}
    for part in parted.to_batches(max_chunksize=1):
        parts.setdefault(part.column("part")[0].as_py(), []).append(part)
    return [[row for piece in order_part(parts[number]) for row in piece.to_pylist()] for number in sorted(parts)]


@pytest.mark.spark
def test_parts_are_of_about_as_many_messages_where_most_batches_have_the_same_start(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog
) -> None:
    times = [BASE if number % 10 else BASE + number for number in range(20_000)]
    messages = [Message(b"", f"k{n}", f"s{n % 997}", time, 2 * BASE) for n, time in enumerate(times)]
    write_log(log_url, "in", messages, block_messages=5000)
    job = run_batch(spark, tmp_path / "jobs", log_url, "in", BatchConfig(10, 3 * BASE, max_count=1))
    tables = [pq.read_table(path, columns=["start", "source"]) for path in sorted(job.data.glob("*.parquet"))]
    rows = [len(table) for table in tables if len(table)]
    assert len(rows) >= 2
    assert max(rows) < 1.5 * sum(rows) / len(rows)
    found = pa.concat_tables(tables)
    assert found.equals(found.sort_by([("start", "ascending"), ("source", "ascending")]))
