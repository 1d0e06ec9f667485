"""A standalone Spark cluster with a database for logs and S3 for content: the same results, also without a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from millstream.batching import Batcher
from millstream.batching.messages import event_of
from millstream.testing.services import ServiceMissingError, private

if TYPE_CHECKING:
    from types import ModuleType

    from millstream.testing.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("cluster_road.py")


@pytest.fixture
def database(mariadb: str) -> str:
    engine = sa.create_engine(mariadb.replace("mysql:", "mysql+pymysql:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text("create database if not exists cluster_road"))
    engine.dispose()
    return f"{mariadb}cluster_road"


def test_a_cluster_that_loses_a_worker_in_mid_job_gives_the_same(
    tmp_path: Path, database: str, swift: S3Server, size: str
) -> None:
    if size != "long":
        pytest.skip("a cluster is six Java machines; at the long size only")
    try:
        with private("spark") as cluster:
            worker = cluster.processes[-1]
            command = [sys.executable, PROGRAM, tmp_path, cluster.url, database, swift.new_url(), str(worker)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    except ServiceMissingError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    road = load_program()
    batches = in_process(road)
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


def in_process(road: ModuleType) -> dict[str, int]:
    """The batches that the batcher in process makes of the same messages: how many messages each has."""
    import msgspec

    sent = [msgspec.structs.replace(message, id=number) for number, message in enumerate(road.messages(3000), 1)]
    batcher = Batcher.of(road.RULES)
    steps: list[Callable[[], object]] = [
        lambda: batcher.receive_many(map(event_of, sent)),
        lambda: batcher.advance(max(message.received_at or 0 for message in sent)),
        batcher.flush,
    ]
    return {batch.batch: len(batch.events) for step in steps for batch in step().batches}  # type: ignore[attr-defined]
