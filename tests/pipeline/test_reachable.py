"""A log store in files of this host is refused by all that runs on a cluster: executors could not open it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.batching import BatchConfig, Rulebook
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
from millstream.pipeline.jobs.history import share_range
from millstream.pipeline.jobs.ingest import run_ingest
from millstream.pipeline.jobs.log_range import LogRange
from millstream.pipeline.jobs.operations import OperationsPlan, run_operations
from millstream.pipeline.source import follow_log, read_log, write_log

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://head:7077"))
RANGE = LogRange("events", 1, 9, 0, 9)
NOBODY: Any = None

JOBS: dict[str, Callable[[str, Path], object]] = {
    "read": lambda url, _: read_log(SPARK, url, "events"),
    "follow": lambda url, _: follow_log(SPARK, url, "events"),
    "write": lambda url, _: write_log(SimpleNamespace(sparkSession=SPARK), url, "events"),  # type: ignore[arg-type]
    "batch": lambda url, _: share_range(SPARK, url, RANGE, None, whole=True),
    "ingest": lambda url, _: run_ingest(SPARK, url, "events", [], NOBODY, staging=""),
    "stream": lambda url, folder: run_stream(
        SPARK,
        StreamPlan(
            store_url=url, log="events", output="batches", rules=Rulebook(BatchConfig(1, 1)), state=folder / "state"
        ),
    ),
    "operations": lambda url, folder: run_operations(
        SPARK, OperationsPlan(url, "events", folder / "points"), NOBODY, NOBODY
    ),
}


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
@pytest.mark.parametrize("job", JOBS)
def test_a_store_in_files_of_this_host_is_refused_on_a_cluster(job: str, scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path / 'log'}"
    with pytest.raises(PipelineInputError, match=f"{scheme}:.*lies on this host, and Spark runs on spark://head:7077"):
        JOBS[job](url, tmp_path)
    assert list(tmp_path.iterdir()) == [], "and nothing is made"
