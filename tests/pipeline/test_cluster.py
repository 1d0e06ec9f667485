"""A standalone Spark cluster with a database for logs and S3 for content: the same results, also without a worker."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import sqlalchemy as sa

from millstream.batching.message_events import event_from_message
from millstream.testing.batching_oracle import plain_batches
from millstream.testing.services import LocalServerMissingError, private
from millstream.testing.spark import OWN_DISKS

if TYPE_CHECKING:
    from types import ModuleType

    from millstream.testing.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("cluster_road.py")


@pytest.fixture
def database(mariadb: str) -> str:
    name = f"cluster_road_{secrets.token_hex(4)}"
    engine = sa.create_engine(mariadb.replace("mysql:", "mysql+pymysql:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    engine.dispose()
    return f"{mariadb}{name}"


@pytest.mark.parametrize("apart", [False, True], ids=["shared-folder", "own-disks"])
@pytest.mark.parametrize("job", ["batch", "copies", "integrity"])
def test_a_cluster_that_loses_a_worker_in_mid_job_gives_the_same(
    tmp_path: Path, database: str, swift: S3Server, size: str, job: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that share no folder keep results at a URL: then nothing but its record lies in the folder of jobs."""
    if size != "long":
        pytest.skip("a cluster is six Java machines; at the long size only")
    results = [swift.new_url()] if apart else []
    if apart:
        (tmp_path / "jobs").mkdir()
        monkeypatch.setenv(OWN_DISKS, str(tmp_path / "jobs"))
    try:
        with private("spark") as cluster:
            worker = cluster.processes[-1]
            command = [sys.executable, PROGRAM, tmp_path, cluster.url, database, swift.new_url(), str(worker), job]
            command += results
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    except LocalServerMissingError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert bool(list((tmp_path / "jobs").rglob("part-*.parquet"))) is not apart
    road = load_program()
    batches = by_the_plain_rule(road)
    assert found["batches"] == sorted(batches)
    assert found["anchored"] == len(batches)
    assert found["audit"] == [sum(batches.values()), 0]
    assert (found["copied"], found["messages"]) == (road.ITEMS, 3000)
    assert found["reports"] == [["a", "SUCCESS", road.ITEMS], ["b", "SUCCESS", road.ITEMS]]


def load_program() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("cluster_road", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_the_plain_rule(road: ModuleType) -> dict[str, int]:
    """The batches of the same messages by the plain rule: how many messages each has."""
    sent = [msgspec.structs.replace(message, id=number) for number, message in enumerate(road.messages(3000), 1)]
    return {batch.batch: len(batch.events) for batch in plain_batches(map(event_from_message, sent), road.RULES)[0]}
