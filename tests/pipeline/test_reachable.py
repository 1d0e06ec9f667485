"""Files that executors do not see are refused by all that runs on a cluster; those that all hosts share are taken."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millstream.batching import BatchConfig, Rulebook
from millstream.log import LogSpec, open_store
from millstream.pipeline.block_ranges import IdRangePartition, decode_run, encode_run
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.history import share_range
from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
from millstream.pipeline.jobs.ingest import run_ingest
from millstream.pipeline.jobs.operations import OperationsPlan, run_operations
from millstream.pipeline.planning.log_range import LogRange
from millstream.pipeline.planning.source_files import find_files
from millstream.pipeline.reachable import identity_of, is_same
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.source import SPARK_SCHEMA, LogReader, follow_log, read_log, write_log
from millstream.pipeline.task_rates import task_urls


class Cluster:
    """A session whose executors are on one other host, which has the folder *disk* where the driver has another one."""

    def __init__(self, disk: Path | None = None) -> None:
        self.sparkContext = SimpleNamespace(master="spark://head:7077", defaultParallelism=2)
        self._disk = disk

    def range(self, *_: int, **__: int) -> Cluster:
        return self

    def mapInArrow(self, work: Callable[..., Iterator[pa.RecordBatch]], _: object) -> Cluster:
        self._work = work
        return self

    def collect(self) -> list[dict[str, Any]]:
        with apart(self._disk) if self._disk else contextlib.nullcontext():
            return [row for batch in self._work([pa.RecordBatch.from_pydict({"id": [1]})]) for row in batch.to_pylist()]


@contextlib.contextmanager
def apart(disk: Path) -> Iterator[None]:
    """Within the block another folder is at the path *disk*."""
    away = disk.with_name("away")
    disk.rename(away)
    shutil.copytree(away, disk)
    try:
        yield
    finally:
        shutil.rmtree(disk)
        away.rename(disk)


RANGE = LogRange("events", 1, 9, 0, 9)
NOBODY: Any = None

JOBS: dict[str, Callable[[Any, str, Path], object]] = {
    "read": lambda spark, url, _: read_log(spark, url, "events"),
    "follow": lambda spark, url, _: follow_log(spark, url, "events"),
    "write": lambda spark, url, _: write_log(SimpleNamespace(sparkSession=spark), url, "events"),  # type: ignore[arg-type]
    "batch": lambda spark, url, _: share_range(spark, url, RANGE, None, whole=True),
    "ingest": lambda spark, url, _: run_ingest(spark, url, "events", [], NOBODY, staging=""),
    "stream": lambda spark, url, folder: run_stream(
        spark,
        StreamPlan(
            store_url=url, log="events", output="batches", rules=Rulebook(BatchConfig(1, 1)), state=folder / "state"
        ),
    ),
    "operations": lambda spark, url, folder: run_operations(
        spark, OperationsPlan(url, "events", folder / "points"), NOBODY, NOBODY
    ),
}


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
@pytest.mark.parametrize("job", JOBS)
def test_a_store_in_files_that_other_hosts_do_not_have_is_refused_on_a_cluster(
    job: str, scheme: str, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    url = f"{scheme}:///{disk / 'log'}"
    with pytest.raises(PipelineInputError, match=f"{scheme}:.*is on this host, but Spark runs on spark://head:7077"):
        JOBS[job](Cluster(disk), url, tmp_path)
    assert list(tmp_path.rglob("*")) == [disk], "and nothing is made"


@pytest.mark.parametrize("scheme", ["file", "folder", "cas"])
def test_so_is_a_provider_in_a_folder_and_a_folder_that_all_hosts_mount_is_taken(scheme: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "space").mkdir(parents=True)
    url = f"{scheme}://{disk}"
    shared: Any = Cluster()
    other: Any = Cluster(disk)
    assert task_urls(shared, {"a": url, "b": "s3://bucket"}) == {"a": url, "b": "s3://bucket"}
    with pytest.raises(
        PipelineInputError, match=rf"{url} is on this host, .* {disk} is missing or different on its hosts"
    ):
        task_urls(other, {"a": url})


def test_so_are_files_to_be_taken_in(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    paths = [disk / f"{number}.jsonl" for number in range(300)]
    for path in paths:
        path.touch()
    spark: Any = Cluster(disk)
    files = find_files([disk])
    with pytest.raises(PipelineInputError, match=r"the files to read are on this host.* all hosts mount"):
        run_ingest(spark, "memory://", "events", files, NOBODY, staging="")


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_a_task_of_the_plain_data_source_reads_only_the_files_that_the_driver_planned(
    scheme: str, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    url = f"{scheme}:///{disk / 'log'}"
    disk.mkdir()
    with open_store(url) as store, store.log(LogSpec("events")).writer() as writer:
        writer.append([b"one"])
    reader = LogReader(LogReadOptions({"store": url, "log": "events"}), SPARK_SCHEMA)
    (part,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 1
    with (
        apart(disk),
        pytest.raises(PipelineInputError, match=r"cannot read the log store .* other files than on the driver's host"),
    ):
        list(reader.read(part))


def test_a_folder_whose_name_is_no_text_does_not_identify_a_store(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    known = identity_of(tmp_path)
    assert known == (tmp_path.stat().st_ino,) and is_same(tmp_path, known)
    assert decode_run(encode_run(IdRangePartition(1, 2, known, []))).files == known
