"""What tests of jobs rely on: that tasks die in this session, once each, and that Spark tries them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.testing.mortal_tasks import LONGEST, seconds_to_live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_some_tasks_of_a_session_die_once_and_its_results_are_whole(spark: SparkSession) -> None:
    def attempts(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for part in parts:
            tries = [TaskContext.get().attemptNumber()] * part.num_rows
            yield pa.RecordBatch.from_arrays([part.column("id"), pa.array(tries, pa.int32())], names=["id", "attempt"])

    found = spark.range(0, 60, 1, 60).mapInArrow(attempts, "id long, attempt int").toArrow()
    assert sorted(found["id"].to_pylist()) == list(range(60))
    assert set(found["attempt"].to_pylist()) == {0, 1}


def test_who_dies_is_decided_by_place_alone_and_nobody_dies_twice() -> None:
    first = [seconds_to_live(stage, partition, 0) for stage in range(20) for partition in range(50)]
    assert first == [seconds_to_live(stage, partition, 0) for stage in range(20) for partition in range(50)]
    assert 200 < sum(left is not None for left in first) < 300
    assert all(0 < left <= LONGEST for left in first if left is not None)
    assert {seconds_to_live(3, partition, 1) for partition in range(100)} == {None}
