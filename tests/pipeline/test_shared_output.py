"""What tasks write for the driver is found whole by it, or the job fails and says why."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.pipeline import reachable
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.output import shared_output
from millstream.pipeline.output.shared_output import probe_part, require_shared, rows_in, write_output
from millstream.pipeline.reachable import ask_hosts, check_files
from millstream.testing.services import LocalServerMissingError, private
from millstream.testing.spark import OWN_DISKS

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

BATCH = """
    import sys
    from pathlib import Path
    from millstream.pipeline.errors import PipelineError
    from millstream.pipeline.output.shared_output import require_shared, write_output
    from millstream.pipeline.session import SparkOptions, spark_session

    folder, master = Path(sys.argv[1]), sys.argv[2]
    (folder / "jobs").mkdir(exist_ok=True)
    confs = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    with spark_session(folder / "work", SparkOptions(master=master, confs=confs)) as spark:
        try:
            print(write_output(spark.range(1000).repartition(4), folder / "jobs" / "data"))
        except PipelineError as error:
            print(error)
"""


@pytest.mark.spark
@pytest.mark.parametrize("rows", [0, 1000])
def test_the_rows_that_tasks_wrote_are_compared_with_those_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    assert write_output(spark.range(rows).repartition(3), tmp_path / "one") == rows
    if rows:
        monkeypatch.setattr(shared_output, "rows_at", lambda _: 250)  # as if the other files were on another host
        with pytest.raises(PipelineError, match=r"wrote 1,000 rows into .*, but 750 were found: executors on"):
            write_output(spark.range(rows).repartition(3), tmp_path / "two")


@pytest.mark.spark
def test_each_host_is_asked_about_folders_and_files_by_tasks_of_one_kind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(*question: Any) -> list[Row]:
        rows = ask_hosts(*question)
        asked.append(len(rows))
        return rows

    for module in (reachable, shared_output):
        monkeypatch.setattr(module, "on_this_host", lambda _: False)  # as if it were a cluster of this host alone
        monkeypatch.setattr(module, "ask_hosts", counted)
    require_shared(spark, tmp_path)
    check_files(spark, [str(tmp_path)])
    assert asked == [4 * spark.sparkContext.defaultParallelism] * 2
    assert list(tmp_path.iterdir()) == []


def test_footers_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)
    monkeypatch.setattr(shared_output, "rows_at", lambda place: both.wait() * 0 + int(place))
    assert rows_in(["3", "4"]) == [3, 4]
    assert rows_in([]) == []


def test_a_probe_shows_whether_a_folder_is_the_drivers(tmp_path: Path) -> None:
    probe = tmp_path / ".probe"
    task = [pa.RecordBatch.from_pydict({"id": [1]})]
    assert [batch.column("shared")[0].as_py() for batch in probe_part(task, probe)] == [False]
    assert list(tmp_path.iterdir()) == []
    probe.write_bytes(b"")
    assert [batch.column("shared")[0].as_py() for batch in probe_part(task, probe)] == [True]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("apart", [True, False])
def test_a_cluster_whose_hosts_share_no_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, apart: bool
) -> None:
    if size != "long":
        pytest.skip("a cluster is six Java machines; at the long size only")
    (tmp_path / "jobs").mkdir()
    if apart:
        monkeypatch.setenv(OWN_DISKS, str(tmp_path / "jobs"))
    try:
        with private("spark") as cluster:
            command = [sys.executable, "-c", textwrap.dedent(BATCH), str(tmp_path), cluster.url]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    except LocalServerMissingError as error:
        pytest.skip(str(error))
    expected = "of this host is not shared with" if apart else "1000"
    assert expected in done.stdout, done.stderr[-4000:]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ([] if apart else ["data"])
