"""Damage in a log that Spark reads: it fails the query, or is put down in a quarantine and the rest is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.core.message import Message, from_arrow
from millstream.log import CorruptBlockError, LogSpec, MissingBlockError, TrimmedError, open_store
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.source import SPARK_SCHEMA, LogReader, LogStreamReader, follow_log, read_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.unreadable import Quarantine, UnreadableRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriteLog = Callable[..., list[Message]]

BLOCK = 97


@pytest.fixture
def written(log_url: str, write_log: WriteLog) -> list[Message]:
    """A log of eleven blocks."""
    return write_log(log_url, "in", [Message(b"%d" % number, f"key-{number}") for number in range(1000)])


@pytest.fixture
def quarantine(tmp_path: Path) -> str:
    return (tmp_path / "kept").as_uri()


def change(url: str, statement: str, *values: int) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def lose(url: str, block: int) -> None:
    """Take the block away, as a careless hand would."""
    change(url, "DELETE FROM blocks_1 WHERE first_id = ?", BLOCK * block + 1)


def damage(url: str, block: int) -> None:
    """Clear a byte of the block, as a failing disk would."""
    cleared = "CAST(substr(data, 1, 100) || x'00' || substr(data, 102) AS BLOB)"
    change(url, f"UPDATE blocks_1 SET data = {cleared} WHERE first_id = ?", BLOCK * block + 1)


def read(url: str, **options: object) -> list[Message]:
    request = LogReadOptions({"store": url, "log": "in", **{name: str(value) for name, value in options.items()}})
    reader = LogReader(request, SPARK_SCHEMA)
    return [message for part in reader.partitions() for batch in reader.read(part) for message in from_arrow(batch)]


def without(written: Sequence[Message], *blocks: int) -> list[Message]:
    gone = {number for block in blocks for number in range(BLOCK * block, BLOCK * (block + 1))}
    return [message for number, message in enumerate(written) if number not in gone]


@pytest.mark.parametrize("block", [0, 5, 10])
@pytest.mark.parametrize("partition_bytes", [1, 10**9])
def test_a_block_that_is_gone_is_never_passed_over(
    log_url: str, written: list[Message], block: int, partition_bytes: int
) -> None:
    """Also where it lies between two tasks, or before the first or after the last of them."""
    lose(log_url, block)
    with pytest.raises(MissingBlockError, match=f"ids {BLOCK * block + 1} to {min(BLOCK * (block + 1), len(written))}"):
        read(log_url, partitionBytes=partition_bytes)


def test_damage_fails_a_read_by_default(log_url: str, written: list[Message]) -> None:
    damage(log_url, 3)
    with pytest.raises(CorruptBlockError, match=f"begins at id {3 * BLOCK + 1} is damaged"):
        read(log_url)
    assert read(log_url, to=3 * BLOCK) == written[: 3 * BLOCK]


@pytest.mark.parametrize("partition_bytes", [1, 10**9])
def test_what_cannot_be_read_is_noted_and_the_rest_is_read(
    log_url: str, written: list[Message], quarantine: str, partition_bytes: int
) -> None:
    lose(log_url, 7)
    damage(log_url, 2)
    options = {"partitionBytes": partition_bytes, "quarantine": quarantine}
    for _ in range(2):  # a task may run twice
        assert read(log_url, **options) == without(written, 2, 7)
    corrupt, missing = Quarantine(quarantine, "in").notes()
    assert (corrupt.first_id, corrupt.last_id, corrupt.reason) == (2 * BLOCK + 1, 3 * BLOCK, "corrupt")
    assert "CRC32C" in corrupt.error
    assert (missing.first_id, missing.last_id, missing.reason) == (7 * BLOCK + 1, 8 * BLOCK, "missing")
    assert list(Quarantine(quarantine, "other").notes()) == []


def test_what_was_trimmed_is_no_damage(log_url: str, written: list[Message], quarantine: str) -> None:
    options = {"store": log_url, "log": "in", "partitionBytes": str(10**9), "quarantine": quarantine}
    reader = LogReader(LogReadOptions(options), SPARK_SCHEMA)
    parts = reader.partitions()
    with open_store(log_url) as store:
        store.log(LogSpec("in")).trim(BLOCK + 1)
    with pytest.raises(TrimmedError):
        [batch for part in parts for batch in reader.read(part)]
    assert read(log_url, quarantine=quarantine) == written[BLOCK:]
    assert list(Quarantine(quarantine, "in").notes()) == []


def test_a_trigger_of_a_stream_has_no_holes_either(log_url: str, written: list[Message], quarantine: str) -> None:
    lose(log_url, 4)
    options = {"store": log_url, "log": "in", "partitionBytes": "1"}
    plain = LogStreamReader(LogReadOptions(options), SPARK_SCHEMA)
    with pytest.raises(MissingBlockError):
        [batch for part in plain.partitions({"id": 0}, {"id": 1000}) for batch in plain.read(part)]
    noting = LogStreamReader(LogReadOptions({**options, "quarantine": quarantine}), SPARK_SCHEMA)
    batches = [batch for part in noting.partitions({"id": 0}, {"id": 1000}) for batch in noting.read(part)]
    assert [message for batch in batches for message in from_arrow(batch)] == without(written, 4)


@pytest.mark.spark
def test_spark_is_told_of_damage_or_goes_on_past_it(
    spark: SparkSession, log_url: str, written: list[Message], quarantine: str, tmp_path: Path
) -> None:
    damage(log_url, 9)
    failed = pytest.raises(PipelineError, match=r"^the job 'count' failed: the block of log 'in' .* is damaged")
    with failed, spark_errors_explained("count"):
        read_log(spark, log_url, "in").count()
    wanted = [message.id for message in without(written, 9)]
    found = read_log(spark, log_url, "in", columns=["id"], quarantine=quarantine)
    assert [row.id for row in found.orderBy("id").collect()] == wanted
    stream = follow_log(spark, log_url, "in", columns=["id"], quarantine=quarantine).writeStream.format("parquet")
    folder = tmp_path / "out"
    query = stream.option("checkpointLocation", f"{folder}-checkpoint").trigger(availableNow=True).start(str(folder))
    query.awaitTermination()
    assert [row.id for row in spark.read.parquet(str(folder)).orderBy("id").collect()] == wanted
    (note,) = Quarantine(quarantine, "in").notes()
    assert note == UnreadableRange("in", 9 * BLOCK + 1, 10 * BLOCK, "corrupt", note.error)
