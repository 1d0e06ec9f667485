"""A standalone Spark cluster with a database for logs and S3 for content: the same results, also without a worker."""

from __future__ import annotations

import io
import json
import random
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import sqlalchemy as sa

from millstream.batching.message_events import event_from_message
from millstream.core.message import encode_line
from millstream.log import LogSpec, open_store
from millstream.stores import open_provider
from millstream.testing.batching_oracle import plain_batches
from millstream.testing.services import LocalServerMissingError, private
from millstream.testing.spark import OWN_DISKS
from suite.sizes import SIZE
from support.programs import load_program
from support.separate_cluster import Victim, separate_cluster

if TYPE_CHECKING:
    from types import ModuleType

    from millstream.testing.s3 import S3Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SIZE == "quick", reason="a cluster is six Java machines; at the sizes ci and long only"),
]

at_the_long_size = pytest.mark.skipif(
    SIZE != "long", reason="many clusters, one after the other; at the size long only"
)

PROGRAM = Path(__file__).with_name("cluster_jobs.py")


@pytest.fixture
def database(mariadb: str) -> str:
    return new_database(mariadb)


def new_database(mariadb: str) -> str:
    """The URL of a database that nobody has used."""
    name = f"cluster_jobs_{secrets.token_hex(4)}"
    engine = sa.create_engine(mariadb.replace("mysql:", "mysql+pymysql:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    engine.dispose()
    return f"{mariadb}{name}"


@pytest.mark.long
@at_the_long_size
@pytest.mark.parametrize("apart", [False, True], ids=["shared-folder", "own-disks"])
@pytest.mark.parametrize("job", ["batch", "copies", "integrity"])
def test_a_cluster_that_loses_a_worker_in_mid_job_gives_the_same(
    tmp_path: Path, database: str, swift: S3Server, job: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that share no folder keep results at a URL: then nothing but its record lies in the folder of jobs."""
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
    program = load_program(PROGRAM)
    batches = by_the_plain_rule(program)
    assert found["batches"] == sorted(batches)
    assert found["anchored"] == len(batches)
    assert found["audit"] == [sum(batches.values()), 0]
    assert (found["copied"], found["messages"]) == (program.ITEMS, 3000)
    assert found["reports"] == [["a", "SUCCESS", program.ITEMS], ["b", "SUCCESS", program.ITEMS]]


def test_hosts_that_share_only_the_network_lose_a_worker_and_their_driver_and_give_the_same_anchors(
    tmp_path: Path, urls: dict[str, str]
) -> None:
    jobs = ["batch", "anchor", "anchors_without_spark"]
    with separate_cluster(tmp_path / "driver", urls) as cluster:
        found = cluster.run(jobs, [("batch", "worker"), ("anchor", "driver")])
    assert found["batch"] == [sorted(by_the_plain_rule(load_program(PROGRAM))), []]
    assert len(found["anchor"]) > 1
    assert found["anchor"] == found["anchors_without_spark"]


BEFORE = {
    "batch": ["batch"],
    "anchor": ["batch", "anchor"],
    "audit": ["batch", "anchor", "audit"],
    "ingest": ["ingest"],
    "sink": ["sink"],
    "inventory": ["inventory"],
    "integrity": ["integrity"],
    "duplication": ["duplication"],
}
"""What is run for a job: those before it make its input."""

KILLS_A_CLUSTER: dict[Victim, int] = {"worker": 2, "executor": 4, "driver": 4}
"""Nobody starts a killed worker again, and of three one must be left; executors and drivers are replaced."""

ROUNDS: list[tuple[Victim, tuple[str, ...]]] = [
    (victim, tuple(BEFORE)[first : first + kills])
    for victim, kills in KILLS_A_CLUSTER.items()
    for first in range(0, len(BEFORE), kills)
]
"""The jobs in each of which such a victim dies, on one cluster: together all victims in all jobs."""


Run = Callable[[list[str], list[tuple[str, Victim]]], dict[str, Any]]


@pytest.fixture(scope="module")
def run_jobs(tmp_path_factory: pytest.TempPathFactory, mariadb: str, swift: S3Server) -> Run:
    """Runs jobs, with kills, on a cluster of their own with new data."""

    def run(jobs: list[str], kills: list[tuple[str, Victim]]) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("jobs")
        urls = prepared(folder, new_database(mariadb), swift)
        with separate_cluster(folder / "driver", urls) as cluster:
            return cluster.run(jobs, kills)

    return run


@pytest.fixture(scope="module")
def unkilled(run_jobs: Run) -> dict[str, Any]:
    """What all jobs give where nothing dies."""
    return run_jobs(list(BEFORE), [])


@pytest.mark.long
@at_the_long_size
@pytest.mark.timeout(1800, func_only=True)
@pytest.mark.parametrize(("victim", "killed"), ROUNDS, ids=["-".join((victim, *jobs)) for victim, jobs in ROUNDS])
def test_jobs_give_the_same_on_hosts_that_share_only_the_network_whichever_of_them_dies(
    run_jobs: Run, unkilled: dict[str, Any], victim: Victim, killed: tuple[str, ...]
) -> None:
    jobs = list(dict.fromkeys(name for job in killed for name in BEFORE[job]))
    found = run_jobs(jobs, [(job, victim) for job in killed])
    lost = found.pop("lost")
    assert victim == "driver" or lost >= len(killed)
    assert found == {name: unkilled[name] for name in jobs}
    assert all(found.values())


@pytest.fixture
def urls(database: str, swift: S3Server) -> dict[str, str]:
    """The log ``in`` at *database*, and places on the S3 server; URLs by name."""
    with open_store(database) as store, store.log(LogSpec("in", block_messages=200)).writer() as writer:
        writer.append(load_program(PROGRAM).messages(3000))
    return {"log": database, "cas": swift.new_url(), "results": swift.new_url()}


def prepared(folder: Path, database: str, swift: S3Server) -> dict[str, str]:
    """The log ``in`` at *database*, items in a store, and files in a folder that all hosts see; URLs by name."""
    urls = {name: swift.new_url() for name in ("cas", "a", "b", "staging", "results")} | {"log": database}
    program = load_program(PROGRAM)
    with open_store(database) as store, store.log(LogSpec("in", block_messages=200)).writer() as writer:
        writer.append(program.messages(3000))
    source = open_provider(urls["a"])
    draw = random.Random(6)
    source.create_space("docs")
    for number in range(program.ITEMS):
        source.put("docs", f"item-{number}", io.BytesIO(draw.randbytes(draw.randrange(100_000))))
    files = folder / "files"
    files.mkdir()
    for number in range(6):
        lines = (encode_line(message) + b"\n" for message in program.messages(1000)[number * 100 :])
        (files / f"{number}.jsonl").write_bytes(b"".join(lines))
    return urls | {"files": str(files)}


def by_the_plain_rule(program: ModuleType) -> dict[str, int]:
    """The batches of the same messages by the plain rule: how many messages each has."""
    sent = [msgspec.structs.replace(message, id=number) for number, message in enumerate(program.messages(3000), 1)]
    return {batch.batch: len(batch.events) for batch in plain_batches(map(event_from_message, sent), program.RULES)[0]}
