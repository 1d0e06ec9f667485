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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from millstream.core.message import MESSAGE_SCHEMA, Message, from_arrow, to_arrow
from millstream.log import LogSpec, Tiering, TrimmedError, open_store
from millstream.pipeline.block_ranges import group_blocks
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.source import NAME, SPARK_SCHEMA, LogReader, LogStreamReader, read_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.stream_progress import StreamLag, stream_lag
from millstream.stores.tiers import open_log_store as open_tiered

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
            pytest.raises(PipelineError, match="'id' cannot be read as string; a log stores bigint"),
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
        ({"store": "memory://", "log": "x", "columns": "id,id"}, "id is named more than once"),
        ({"store": "memory://", "log": "x", "colums": "id"}, "unknown option 'colums': did you mean 'columns'"),
        (
            {"store": "memory://", "log": "x", "before": "1"},
            "unknown option 'before'.* The options are store, log, from",
        ),
        ({"store": "memory://", "log": "x", "since": "noon"}, "'since': invalid time 'noon': write 2013"),
        ({"store": "memory://", "log": "x", "from": "1", "since": "1"}, "'from' and 'since' cannot be combined"),
        ({"store": "memory://", "log": "x", "to": "1", "until": "1"}, "'to' and 'until' cannot be combined"),
        ({"store": "memory://", "log": "x", "maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(PipelineInputError, match=named):
        LogReadOptions(options)


def test_spaces_between_columns_and_the_case_of_options_do_not_matter() -> None:
    options = LogReadOptions({"store": "memory://", "log": "x", "columns": " id, source", "partitionbytes": "7"})
    assert options.columns == ["id", "source"]
    assert LogReadOptions({"store": "memory://", "log": "x", "path": "p", "checkpointLocation": "c"}).log == "x"


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"since": "1970-01-01T00:00:10Z"}, 11, 60),
        ({"since": "10000001"}, 12, 60),
        ({"until": "1970-01-01T00:00:10"}, 1, 10),
        ({"since": "1970-01-01T02:00:05+02:00", "until": "10000000"}, 6, 10),
        ({"since": "5000000", "to": "8"}, 6, 8),
        ({"since": "60000000"}, 61, 60),
        ({"until": "0"}, 1, 0),
    ],
)
def test_a_log_is_read_by_times_of_receipt(
    options: dict[str, str], first: int, last: int, log_url: str, write_log: WriteLog
) -> None:
    """Message n is received at second n - 1."""
    write_log(log_url, "odd", [Message(b"", received_at=number * 1_000_000) for number in range(60)], block_messages=7)
    request = LogReadOptions({"store": log_url, "log": "odd", **options})
    reader = LogReader(request, SPARK_SCHEMA)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [number for batch in batches for number in batch.column("id").to_pylist()] == [*range(first, last + 1)]
    stream = LogStreamReader(request, SPARK_SCHEMA)
    start = stream.initialOffset()
    assert (start, stream.latestOffset(start, ReadAllAvailable())) == ({"id": first - 1}, {"id": max(last, first - 1)})


@pytest.mark.parametrize(("most", "blocks"), [(1, 1), (2.5, 2), (3, 3), (0.1, 1), (100, 9)])
def test_a_trigger_takes_whole_blocks_of_at_most_so_many_bytes(
    most: float, blocks: int, log_url: str, write_log: WriteLog
) -> None:
    write_log(log_url, "even", [Message(bytes(100), received_at=1) for _ in range(90)], block_messages=10)
    with open_store(log_url) as store:
        size = max(block.bytes for block in store.log(LogSpec("even")).block_ranges())
    options = {"store": log_url, "log": "even", "maxBytesPerTrigger": str(int(size * most))}
    stream = LogStreamReader(LogReadOptions(options), SPARK_SCHEMA)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(int(size * most))
    ends, done = [], {"id": 0}
    while (end := stream.latestOffset(done, limit)) != done:
        ends.append(end["id"])
        done = end
    assert ends == [*range(blocks * 10, 90, blocks * 10), 90]
    assert stream.latestOffset({"id": 4}, limit)["id"] >= 10, "a block that was begun is finished"
    fewer = LogStreamReader(LogReadOptions({**options, "maxMessagesPerTrigger": "7"}), SPARK_SCHEMA)
    assert fewer.latestOffset({"id": 0}, fewer.getDefaultReadLimit()) == {"id": 7}
    assert fewer.latestOffset({"id": 0}, ReadAllAvailable()) == {"id": 90}


def test_the_lag_of_a_stream_is_counted_from_the_offsets_in_its_progress(log_url: str, write_log: WriteLog) -> None:
    write_log(log_url, "even", [Message(bytes(100), received_at=1) for _ in range(30)], block_messages=10)
    with open_store(log_url) as store:
        one, two, three = (block.bytes for block in store.log(LogSpec("even")).block_ranges())
    progress = {"sources": [{"startOffset": '{"id": 0}', "endOffset": '{"id": 10}', "latestOffset": '{"id": 30}'}]}
    lag = StreamLag(read_messages=10, read_bytes=one, lag_messages=20, lag_bytes=two + three)
    assert stream_lag(progress, log_url, "even") == lag
    first = {**progress["sources"][0], "startOffset": None, "numInputRows": 10}
    assert stream_lag({"sources": [first]}, log_url, "even") == lag
    idle = {"sources": [{"startOffset": '{"id": 30}', "endOffset": '{"id": 30}', "latestOffset": None}]}
    assert stream_lag(idle, log_url, "even") == StreamLag(read_messages=0, read_bytes=0, lag_messages=0, lag_bytes=0)
    with pytest.raises(PipelineInputError, match="source 1 of this progress reads no log"):
        stream_lag(progress, log_url, "even", source=1)
    with pytest.raises(PipelineInputError, match="source 0 of this progress"):
        stream_lag({"sources": [{"startOffset": "5", "endOffset": "6", "latestOffset": "7"}]}, log_url, "even")


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
