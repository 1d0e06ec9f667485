"""The package as one file: all that tasks import, the same bytes each time, and enough for executors without it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.pipeline.package_zip import write_package
from millstream.testing.services import LocalServerMissingError, private
from support.spark_submit import SparkSubmit


def test_the_archive_is_a_function_of_the_package_and_can_be_imported_from(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        assert write_package(tmp_path / name) > 100
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    names = zipfile.ZipFile(tmp_path / "one.zip").namelist()
    assert "millstream/pipeline/tasks/sweep_task.py" in names
    assert not any("__pycache__" in name or name.startswith("millstream/console/") for name in names)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import millstream.pipeline.tasks.sweep_task as job, millstream.pipeline.tasks.shard_task;"
        "print(job.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "one.zip")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{tmp_path / 'one.zip'}/millstream")


def test_an_archive_that_python_would_not_import_from_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "package", str(tmp_path / "package.tar")]) == 2
    assert "ends in .zip" in capfd.readouterr().err
    assert run(["pipeline", "package", str(tmp_path / "nowhere" / "package.zip")]) == 2
    assert run(["pipeline", "package", str(tmp_path / "package.zip")]) == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_submitted_job_reads_writes_and_streams_where_python_has_not_the_package(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    fill_log(url)
    found = submit(tmp_path, "local[2]", url)
    assert found["counts"] == {f"s{number}": 100 for number in range(4)}
    assert found["written"] == [500, 500]
    assert all("millstream.zip/millstream/" in place for place in found["places"])


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_file_is_submitted_to_a_cluster_whose_executors_import_what_was_shipped(
    tmp_path: Path, mariadb: str, size: str
) -> None:
    if size != "long":
        pytest.skip("a cluster is six Java machines; at the long size only")
    url = log_in(mariadb)
    try:
        with private("spark") as cluster:
            found = submit(tmp_path, cluster.url, url)
    except LocalServerMissingError as error:
        pytest.skip(str(error))
    assert found["counts"] == {f"s{number}": 100 for number in range(4)}
    assert found["written"] == [500, 500]
    assert found["places"]
    assert all("millstream.zip/millstream/" in place for place in found["places"])


def submit(folder: Path, master: str, url: str) -> Any:
    """Submit the job with the package as an archive, with a Python that has its dependencies alone; what it printed."""
    spark = SparkSubmit(folder)
    program = Path(__file__).with_name("submitted_job.py")
    command = spark.command(master, program, [url, "in", str(folder)], {})
    done = subprocess.run(command, env=spark.environment(), capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def log_in(mariadb: str) -> str:
    """A log of 500 messages of four sources."""
    import sqlalchemy as sa

    engine = sa.create_engine(mariadb.replace("mysql:", "mysql+pymysql:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text("create database if not exists submitted"))
    engine.dispose()
    url = f"{mariadb}submitted"
    fill_log(url)
    return url


def fill_log(url: str) -> None:
    """The log ``in`` of 500 messages of four sources."""
    with open_store(url) as store, store.log(LogSpec("in", block_messages=50)).writer() as writer:
        writer.append([Message(b"%d" % number, "k", f"s{number % 4}", number, number) for number in range(500)])
