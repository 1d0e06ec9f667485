"""A log as a DataFrame: the same messages, however it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.message import MESSAGE_SCHEMA, Message, from_arrow, to_arrow
from millstream.log import LogSpec, Tiering, TrimmedError, open_store
from millstream.pipeline.block_ranges import group_blocks
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.source import NAME, SPARK_SCHEMA, LogReader, read_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.stores.tiers import open_store as open_tiered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriteLog = Callable[..., list[Message]]

on_spark = pytest.mark.spark


def odd_messages(seed: int, count: int) -> list[Message]:
    """Messages with all that a message can hold: empty and large bodies, bytes that are no text, headers, odd keys."""
    draw = random.Random(seed)
    return [
        Message(
            draw.randbytes(draw.choice([0, 1, 30, 3000])),
            draw.choice(["", "temp", "ключ", "a\nb\0c"]),
            draw.choice(["", "JFK", "😀"]),
            draw.randrange(-(2**40), 2**40),
            draw.randrange(2**40),
            tuple((draw.choice(["", "trace", "é"]), draw.randbytes(3)) for _ in range(draw.randrange(3))),
        )
        for _ in range(count)
    ]


def collect(frame: object) -> list[Message]:
    table = frame.toArrow().sort_by("id")  # type: ignore[attr-defined]
    batches = table.cast(MESSAGE_SCHEMA).combine_chunks().to_batches()
    return [message for batch in batches for message in from_arrow(batch)]


class TestOnSpark:
    pytestmark = on_spark

    @pytest.mark.smoke
    @pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 97), (3, 1000)])
    def test_reading_gives_what_the_log_gives(
        self, spark: SparkSession, log_url: str, write_log: WriteLog, seed: int, count: int
    ) -> None:
        written = write_log(log_url, "odd", odd_messages(seed, count))
        draw = random.Random(seed)
        assert collect(read_log(spark, log_url, "odd", partition_bytes=20_000)) == written
        for _ in range(3):
            first = draw.randint(1, count)
            last = draw.randint(first, count + 10)
            found = collect(read_log(spark, log_url, "odd", first_id=first, last_id=last, partition_bytes=1))
            assert found == written[first - 1 : last]

    def test_only_the_named_columns_are_read(self, spark: SparkSession, log_url: str, write_log: WriteLog) -> None:
        written = write_log(log_url, "odd", odd_messages(4, 200))
        frame = read_log(spark, log_url, "odd", columns=["key", "id"])
        assert frame.columns == ["key", "id"]
        assert sorted((row.id, row.key) for row in frame.collect()) == [(m.id, m.key) for m in written]

    def test_the_format_is_known_by_name_and_has_the_message_schema(
        self, spark: SparkSession, log_url: str, write_log: WriteLog
    ) -> None:
        write_log(log_url, "odd", odd_messages(5, 10))
        frame = spark.read.format(NAME).option("store", log_url).option("log", "odd").load()
        assert frame.schema == SPARK_SCHEMA
        assert frame.count() == 10

    def test_a_schema_in_words_is_read_whatever_it_says_of_nulls(
        self, spark: SparkSession, log_url: str, write_log: WriteLog
    ) -> None:
        written = write_log(log_url, "odd", odd_messages(11, 20))
        reader = spark.read.format(NAME).option("store", log_url).option("log", "odd")
        frame = reader.schema("id long, body binary, headers array<struct<name string, value binary>>").load()
        rows = sorted(frame.collect(), key=lambda row: row.id)
        assert [(row.id, bytes(row.body)) for row in rows] == [(m.id, m.body) for m in written]
        assert [tuple((h.name, bytes(h.value)) for h in row.headers) for row in rows] == [m.headers for m in written]
        with (
            pytest.raises(PipelineError, match="'id' is asked for as string, and a log has bigint"),
            spark_errors_explained("read"),
        ):
            reader.schema("id string").load().count()

    def test_an_empty_range_has_no_rows(self, spark: SparkSession, log_url: str, write_log: WriteLog) -> None:
        write_log(log_url, "odd", odd_messages(6, 10))
        assert read_log(spark, log_url, "odd", first_id=11).count() == 0

    def test_one_frame_may_be_asked_for_different_ids(
        self, spark: SparkSession, log_url: str, write_log: WriteLog
    ) -> None:
        """Spark 4.3 keeps what a reader made of the conditions of the first query for all others of the frame; a data
        source that took conditions on ids from it would give wrong answers here. So ours leaves them to Spark."""
        write_log(log_url, "odd", odd_messages(9, 300))
        frame = read_log(spark, log_url, "odd", partition_bytes=1)
        asked = [frame.where("id < 10"), frame, frame.where("id > 290"), frame.where("id between 100 and 150")]
        assert [each.count() for each in asked] == [9, 300, 10, 51]
        assert asked[0].unionByName(asked[2]).count() == 19

    def test_a_log_that_is_not_there_is_named(self, spark: SparkSession, log_url: str, write_log: WriteLog) -> None:
        write_log(log_url, "odd", odd_messages(7, 1))
        with (
            pytest.raises(PipelineError, match=r"^the job 'count' failed: there is no log 'other'"),
            spark_errors_explained("count"),
        ):
            read_log(spark, log_url, "other").count()

    def test_an_unknown_column_is_named(self, spark: SparkSession, log_url: str) -> None:
        with pytest.raises(PipelineError, match="'zeal'"), spark_errors_explained("read"):
            read_log(spark, log_url, "odd", columns=["zeal"]).count()


def test_reading_a_partition_needs_no_spark(log_url: str, write_log: WriteLog) -> None:
    written = write_log(log_url, "odd", odd_messages(8, 500))
    reader = LogReader(LogReadOptions({"store": log_url, "log": "odd", "partitionBytes": "10000"}), SPARK_SCHEMA)
    partitions = reader.partitions()
    assert len(partitions) > 1
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert all(batch.schema == MESSAGE_SCHEMA for batch in batches)
    assert pa.Table.from_batches(batches) == pa.Table.from_batches([to_arrow(written)])


BLOCKS = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10_000)), max_size=50)


@given(BLOCKS, st.integers(1, 20_000))
def test_partitions_hold_every_block_once_and_in_order(counts: list[tuple[int, int]], target: int) -> None:
    blocks, next_id = [], 1
    for count, size in counts:
        blocks.append((next_id, next_id + count - 1, size))
        next_id += count
    runs = list(group_blocks(blocks, target))
    covered = [number for run in runs for number in range(run.first_id, run.last_id + 1)]
    assert covered == list(range(1, next_id))
    assert {run.first_id for run in runs} <= {first for first, _, _ in blocks}


def test_there_are_never_too_many_partitions() -> None:
    blocks = [(number, number, 1000) for number in range(1, 50_001)]
    assert len(list(group_blocks(blocks, 1))) <= 10_000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"log": "x"}, "store"),
        ({"store": "memory://"}, "log"),
        ({"store": "memory://", "log": "x", "from": "0"}, "from"),
        ({"store": "memory://", "log": "x", "to": "-1"}, "to"),
        ({"store": "memory://", "log": "x", "columns": "id,nothing"}, "nothing"),
        ({"store": "memory://", "log": "x", "columns": ""}, "columns"),
        ({"store": "memory://", "log": "x", "columns": "id,id"}, "names id more than once"),
        ({"store": "memory://", "log": "x", "colums": "id"}, "unknown option 'colums': did you mean 'columns'"),
        ({"store": "memory://", "log": "x", "since": "1"}, "unknown option 'since'.* The options are store, log, from"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(PipelineInputError, match=named):
        LogReadOptions(options)


def test_spaces_between_columns_and_the_case_of_options_do_not_matter() -> None:
    options = LogReadOptions({"store": "memory://", "log": "x", "columns": " id, source", "partitionbytes": "7"})
    assert options.columns == ["id", "source"]
    assert LogReadOptions({"store": "memory://", "log": "x", "path": "p", "checkpointLocation": "c"}).log == "x"


def test_a_trimmed_log_is_read_from_where_it_begins_and_nothing_before_is_passed_over(
    log_url: str, write_log: WriteLog
) -> None:
    written = write_log(log_url, "odd", odd_messages(4, 60))
    with open_store(log_url) as store:
        store.log(LogSpec("odd")).trim(21)
    options = {"store": log_url, "log": "odd", "partitionBytes": "5000"}
    reader = LogReader(LogReadOptions(options), SPARK_SCHEMA)
    found = [message for part in reader.partitions() for batch in reader.read(part) for message in from_arrow(batch)]
    assert found == written[20:]
    with pytest.raises(PipelineInputError, match="begins at id 21"):
        LogReader(LogReadOptions({**options, "from": "20"}), SPARK_SCHEMA).partitions()


def test_a_task_whose_messages_are_trimmed_before_it_runs_fails(log_url: str, write_log: WriteLog) -> None:
    write_log(log_url, "odd", odd_messages(4, 60))
    reader = LogReader(LogReadOptions({"store": log_url, "log": "odd"}), SPARK_SCHEMA)
    (part,) = reader.partitions()
    with open_store(log_url) as store:
        store.log(LogSpec("odd")).trim(21)
    with pytest.raises(TrimmedError):
        list(reader.read(part))


def test_blocks_that_were_moved_to_an_object_store_are_read_like_all_others(
    log_url: str, write_log: WriteLog, tmp_path: Path
) -> None:
    written = write_log(log_url, "odd", odd_messages(5, 300))
    with open_tiered(log_url) as store:
        log = store.log(LogSpec("odd"))
        log.set_tiering(Tiering(f"file://{tmp_path / 'cold'}", segment_bytes=50_000))
        assert log.move_blocks().objects > 0
    reader = LogReader(LogReadOptions({"store": log_url, "log": "odd", "partitionBytes": "40000"}), SPARK_SCHEMA)
    parts = reader.partitions()
    assert len(parts) > 2
    assert [m for part in parts for batch in reader.read(part) for m in from_arrow(batch)] == written
