"""Into a log by Spark: what a frame or a stream holds is appended once, whichever tasks and drivers die."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.message import MESSAGE_SCHEMA, Message
from millstream.log import Log, LogSpec, Writer, open_store
from millstream.pipeline import staging as staging_module
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.output.log_sink import LogStreamWriter, LogWriter, beside, check_schema
from millstream.pipeline.source import NAME, SPARK_SCHEMA, follow_log, read_log
from millstream.pipeline.source import write_log as save
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.staging import SPACE, StagedPart, Staging, staging_prefix
from millstream.stores import LocalStore, all_entries
from millstream.testing.damage import flip_bit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]

on_spark = pytest.mark.spark


def bodies(url: str, log: str) -> list[bytes]:
    with open_store(url) as store:
        return [message.body for batch in store.log(LogSpec(log), create=False).read() for message in batch]


def without_ids(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return sorted((m.body, m.key, m.source, m.event_time, m.received_at, m.headers) for m in messages)


def read_all(url: str, log: str) -> list[Message]:
    with open_store(url) as store:
        return [message for batch in store.log(LogSpec(log), create=False).read() for message in batch]


class TestOnSpark:
    pytestmark = on_spark

    @pytest.mark.smoke
    def test_a_frame_is_appended_whole_whatever_its_columns_partitions_and_failing_tasks(
        self, spark: SparkSession, log_url: str, untidy: Untidy, write_log: WriteLog, tmp_path: Path
    ) -> None:
        written = write_log(log_url, "first", untidy(1, 2000))
        save(read_log(spark, log_url, "first").repartition(20, "key"), log_url, "second")
        assert without_ids(read_all(log_url, "second")) == without_ids(written)
        assert left_over(log_url) == []

    def test_texts_and_timestamps_are_taken_and_what_is_not_set_is_stamped(
        self, spark: SparkSession, log_url: str
    ) -> None:
        frame = spark.sql("select 'one' as body, timestamp'2026-01-01 00:00:00Z' as event_time, 7L as id")
        save(frame, log_url, "texts")
        (message,) = read_all(log_url, "texts")
        assert (message.body, message.event_time, message.id) == (b"one", 1767225600_000_000, 1)
        assert message.received_at

    def test_a_row_that_no_log_takes_leaves_nothing_of_its_write_in_the_log(
        self, spark: SparkSession, log_url: str
    ) -> None:
        rows = "select cast(id as string) as body from range(1000) union all select {last}"
        with pytest.raises(PipelineError, match="the column body has nulls"), spark_errors_explained("write"):
            save(spark.sql(rows.format(last="null")), log_url, "whole", write="tuesday")
        assert left_over(log_url) == []
        save(spark.sql(rows.format(last="'last'")), log_url, "whole", write="tuesday")
        assert len(bodies(log_url, "whole")) == 1001

    def test_a_named_write_is_done_once(self, spark: SparkSession, log_url: str) -> None:
        frame = spark.sql("select cast(id as string) as body from range(10)")
        for parts in (1, 3):
            save(frame.repartition(parts), log_url, "named", write="tuesday")
        save(frame.limit(1), log_url, "named", write="wednesday")
        assert len(bodies(log_url, "named")) == 11
        with pytest.raises(PipelineError, match=r"'tuesday' .* was used for 10 rows"), spark_errors_explained("write"):
            save(frame.limit(9), log_url, "named", write="tuesday")
        assert len(bodies(log_url, "named")) == 11

    def test_columns_that_a_log_does_not_have_are_named(self, spark: SparkSession, log_url: str) -> None:
        with (
            pytest.raises(PipelineError, match="'body' has the type int; a log takes binary or string"),
            spark_errors_explained("write"),
        ):
            save(spark.sql("select 1 as body"), log_url, "bad")
        with pytest.raises(PipelineError, match="at least body"), spark_errors_explained("write"):
            save(spark.sql("select 'x' as body, 1 as zeal"), log_url, "bad")
        with (
            pytest.raises(PipelineError, match=r"'headers' has the type array<string>; a log takes array<struct<name"),
            spark_errors_explained("write"),
        ):
            save(spark.sql("select 'x' as body, array('a', 'b') as headers"), log_url, "bad")

    def test_a_second_writer_is_refused_and_nothing_is_left_behind(self, spark: SparkSession, log_url: str) -> None:
        frame = spark.sql("select 'x' as body")
        with (
            open_store(log_url) as store,
            store.log(LogSpec("busy")).writer(),
            pytest.raises(PipelineError, match="busy"),
            spark_errors_explained("write"),
        ):
            save(frame, log_url, "busy", write="later")
        assert left_over(log_url) == []
        save(frame, log_url, "busy", write="later")
        assert bodies(log_url, "busy") == [b"x"]

    def test_a_stream_is_appended_once_over_restarts_and_a_repeated_trigger(
        self, spark: SparkSession, log_url: str, untidy: Untidy, write_log: WriteLog, tmp_path: Path
    ) -> None:
        checkpoint = tmp_path / "checkpoint"
        written: list[Message] = []
        for turn in range(3):
            written = write_log(log_url, "first", untidy(turn, 300))
            follow(spark, log_url, checkpoint)
            last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()  # as if the driver had died after it appended, and before Spark knew
            last.with_name(f".{last.name}.crc").unlink()
        follow(spark, log_url, checkpoint)
        assert without_ids(read_all(log_url, "second")) == without_ids(written)
        assert left_over(log_url) == []


def follow(spark: SparkSession, url: str, checkpoint: Path) -> None:
    stream = follow_log(spark, url, "first", per_trigger=200).writeStream.format(NAME)
    stream = stream.option("store", url).option("log", "second").option("checkpointLocation", str(checkpoint))
    stream.trigger(availableNow=True).start().awaitTermination()


def left_over(url: str) -> list[str]:
    store = LocalStore(Path(beside(url).removeprefix("file://")))
    return [entry.content_id for entry in all_entries(store, SPACE)] if store.has_space(SPACE) else []


# Without Spark: the driver dies at every point of a commit.

ROWS = st.lists(st.lists(st.integers(1, 40), max_size=4), max_size=4)


class DiedError(Exception):
    """The driver, at the point that the test chose."""


def store_part(staging: Staging, sizes: Sequence[Sequence[int]], salt: int) -> list[StagedPart]:
    """A part for each of *sizes*, whose record batches have so many rows; *salt* makes their order differ."""
    parts = []
    for partition, batches in enumerate(sizes):
        names = [f"{partition}-{number}".encode() for number in range(sum(batches))]
        random.Random(salt).shuffle(names)
        cuts = iter(names)
        made = [pa.RecordBatch.from_pydict({"body": [next(cuts) for _ in range(size)]}) for size in batches]
        parts.append(staging.store_part(partition, made))
    return parts


@settings(max_examples=40, deadline=None)
@given(sizes=ROWS, fatal=st.lists(st.integers(0, 6), max_size=3))
def test_a_commit_is_finished_once_wherever_drivers_died_and_whatever_order_tasks_gave_later(
    sizes: list[list[int]], fatal: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    wanted = sorted(f"{p}-{n}".encode() for p, batches in enumerate(sizes) for n in range(sum(batches)))
    with open_store("memory://") as store:
        log = store.log(LogSpec("made"))
        for salt, steps in enumerate(fatal):
            staging = Staging(folder.as_uri(), "w")
            parts = store_part(staging, sizes, salt)
            with pytest.MonkeyPatch.context() as patch:
                die_after(patch, steps)
                try:
                    staging.commit(log, "w", 0, parts)
                except DiedError:
                    continue
        for salt in (100, 101):
            staging = Staging(folder.as_uri(), "w")
            staging.commit(log, "w", 0, store_part(staging, sizes, salt))
        found = [message.body for batch in log.read() for message in batch]
    assert sorted(found) == wanted


@pytest.mark.parametrize("steps", range(4))
def test_a_commit_of_as_many_pieces_as_one_may_have_is_finished_wherever_its_driver_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(staging_module, "_PIECES", 4)
    staging = Staging(tmp_path.as_uri(), "w")
    parts = store_part(staging, [[1], [1], [1]], 0)
    with open_store("memory://") as store:
        log = store.log(LogSpec("made"))
        with monkeypatch.context() as patch, pytest.raises(DiedError):
            die_after(patch, steps)
            staging.commit(log, "w", 0, parts)
        staging.commit(log, "w", 0, parts)
        assert [message.body for batch in log.read() for message in batch] == [b"0-0", b"1-0", b"2-0"]
        with pytest.raises(PipelineInputError, match=r"the write .* has 4 pieces, and one commit can have at most"):
            staging.commit(log, "w", 1, store_part(staging, [[1], [1], [1], [1]], 0))


def die_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let the driver die at its *steps*-th append or removal."""
    left = iter(range(steps))

    def dying(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                raise DiedError
            return step(*args, **kwargs)

        return run

    patch.setattr(Writer, "append", dying(Writer.append))
    patch.setattr(LocalStore, "delete", dying(LocalStore.delete))


def test_a_part_that_rotted_is_refused_before_any_of_it_is_appended(tmp_path: Path, log_url: str) -> None:
    staging = Staging(tmp_path.as_uri(), "w")
    (part,) = store_part(staging, [[5, 5]], 1)
    flip_bit(LocalStore(tmp_path).path_of(SPACE, part.name))
    with open_store(log_url) as store:
        log = store.log(LogSpec("made"))
        with pytest.raises(PipelineError, match="is damaged"):
            staging.commit(log, "w", 0, [part])
        assert log.last_id == 0


def test_a_commit_that_was_begun_elsewhere_is_not_begun_again_here(tmp_path: Path, log_url: str) -> None:
    with open_store(log_url) as store:
        log: Log = store.log(LogSpec("made"))
        with log.writer("spark.w") as writer:
            writer.append([b"begun"], sequence=1)
        staging = Staging(tmp_path.as_uri(), "w")
        with pytest.raises(PipelineError, match="started by another driver"):
            staging.commit(log, "w", 0, store_part(staging, [[2, 2]], 1))


def test_a_log_has_a_prefix_for_staging_that_no_other_log_has_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    with open_store(urls[0]) as first, open_store(urls[1]) as second:
        logs = [first.log(LogSpec("a")), first.log(LogSpec("b")), second.log(LogSpec("a"))]
        prefixes = [staging_prefix(log, "w") for log in logs]
        assert len(set(prefixes)) == 3
        assert [staging_prefix(log, "w") for log in logs] == prefixes
        replace, others = Log.replace_metadata, []

        def overtaken(log: Log, key: str, value: bytes, *, version: int) -> bool:
            monkeypatch.undo()
            others.append(staging_prefix(log, "w"))
            return replace(log, key, value, version=version)

        monkeypatch.setattr(Log, "replace_metadata", overtaken)
        assert [staging_prefix(second.log(LogSpec("b")), "w")] == others


def test_large_rows_are_appended_in_pieces(tmp_path: Path, log_url: str) -> None:
    staging = Staging(tmp_path.as_uri(), "w")
    part = staging.store_part(0, [pa.RecordBatch.from_pydict({"body": [b"x" * (5 << 20)] * 9})])
    assert (part.rows, part.pieces) == (9, 3)
    with open_store(log_url) as store:
        assert staging.commit(store.log(LogSpec("made")), "w", 3, [part]) == 9


@pytest.mark.parametrize("url", ["mysql://root@127.0.0.1/x", "postgresql://root@127.0.0.1/x"])
def test_a_log_in_a_database_needs_a_place_to_stage(url: str) -> None:
    with pytest.raises(PipelineInputError, match="option 'staging' is missing"):
        beside(url)


def test_files_are_staged_beside_the_store() -> None:
    assert beside("sqlite:////data/log.db?durability=os") == "file:///data/log.db.staging"
    assert beside("segments:////data/logs") == "file:///data/logs.staging"


def test_ids_are_the_logs_to_give() -> None:
    assert check_schema(SPARK_SCHEMA) == [name for name in MESSAGE_SCHEMA.names if name != "id"]


BAD: Sequence[tuple[Mapping[str, str], bool, str]] = [
    ({"store": "sqlite:///x"}, False, "'log' is missing"),
    ({"store": "sqlite:///x", "log": "x"}, True, "append"),
    ({"store": "sqlite:///x", "log": "x", "write": "a/b"}, False, "'write'"),
]


@pytest.mark.parametrize(("options", "overwrite", "named"), BAD)
def test_options_that_cannot_be_used_are_named(options: Mapping[str, str], overwrite: bool, named: str) -> None:
    with pytest.raises(PipelineInputError, match=named):
        LogWriter(options, SPARK_SCHEMA, overwrite=overwrite)


def test_a_stream_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(PipelineInputError, match="checkpointLocation"):
        LogStreamWriter({"store": "sqlite:///x", "log": "x"}, SPARK_SCHEMA, overwrite=False)
