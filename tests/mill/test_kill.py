"""Promise P6 on real servers: workers, producers and the database die at any moment, and nothing is lost or made up.

Tasks travel over RabbitMQ and lie in MariaDB. At the long size there are 20,000 of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import SystemClock
from millstream.mill.tasks import Duplicate, QueueName, encode_task
from millstream.node import Node
from millstream.settings import Settings, load_settings
from millstream.stores import LocalStore
from millstream.testing import services
from millstream.testing.damage import flip_bit
from millstream.testing.waiting import until
from suite.sizes import sized

pytestmark = pytest.mark.crash

PROGRAM = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
DAMAGED = 5
POISON = 3
CLOCK = SystemClock()


class Mill:
    """A node on RabbitMQ and a MariaDB of its own, its processes, and somebody who kills them."""

    def __init__(self, folder: Path, broker: str, database: services.Server, seed: int) -> None:
        self.folder, self.database = folder, database
        self.draw = random.Random(seed)
        self.killed = {"worker": 0, "producer": 0, "database": 0}
        pair = {"srcStoreId": "one", "destStoreId": "two"}
        (folder / "policies").mkdir(parents=True)
        (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
        (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
        stores = [f'[stores.{name}]\nurl = "file://{folder}/stores/{name}"\n' for name in ("one", "two")]
        queue = f'[queue]\nbroker = "{broker}"\ndatabase = "{database.url}kill_{seed}"\n'
        limits = '[mill]\nworkers = 4\nvisibility = "4s"\n[mill.produce]\nduplication_most = 1500\nbits_most = 1500\n'
        (folder / "millstream.toml").write_text("\n".join([*stores, queue, limits]))
        for name in ("one", "two"):
            (folder / "stores" / name).mkdir(parents=True)

    @property
    def settings(self) -> Settings:
        return load_settings({"data": str(self.folder)})[0]

    def store(self, name: str) -> LocalStore:
        return LocalStore(self.folder / "stores" / name)

    def start(self, *words: str, log: str = "log.txt") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "mill", *words, "--data", str(self.folder)], stdout=file, stderr=file
            )

    def run_through(self, producer: str, *queues: str, kills: int) -> None:
        """Let a producer and two workers work, kill them and the database at random, and let the rest be done."""
        words = {"producer": ("produce", producer, "--once")}
        words |= {f"worker {number}": ("work", *queues, "--drain") for number in (1, 2)}
        fallen, state = 0, self.folder / "producers" / f"{producer}.json"
        with self.processes() as running:
            for _ in range(2 * kills + 4):
                if fallen == kills:
                    break
                for who, command in words.items():
                    if who not in running or running[who].poll() is not None:
                        if who == "producer" and not self.killed[who]:
                            state.unlink(missing_ok=True)  # its loop was done before it could be killed: it begins anew
                        running[who] = self.start(*command, log=f"{who}.txt")
                fallen += self.kill(running, state)
        self.drain(producer, *queues)

    def kill(self, running: dict[str, subprocess.Popen[bytes]], state: Path) -> bool:
        """Kill one of all, or the database, at its work; False where it ended by itself."""
        victim = self.draw.choice(["database", *running])
        least = min(self.killed, key=lambda who: self.killed[who])
        if not self.killed[least]:
            victim = least if least != "worker" else "worker 1"
        process = running.get(victim, running["worker 1"])
        worker = victim if victim.startswith("worker") else "worker 1"
        at_work = is_in_a_loop(state) if victim == "producer" else lambda: self.has_begun(worker)
        until(lambda: process.poll() is not None or at_work(), f"work of {victim}")
        if victim != "producer":
            CLOCK.sleep(self.draw.uniform(0.0, 0.5))
        if victim == "database":
            fell = process.poll() is None
            self.database.kill()
            CLOCK.sleep(self.draw.uniform(0.0, 1.0))
            self.database.start()
        else:
            process.kill()
            fell = process.wait() == -signal.SIGKILL
        self.killed[victim.split()[0]] += fell
        return fell

    def has_begun(self, worker: str) -> bool:
        """Whether *worker* has begun to work, and something is copied."""
        told = (self.folder / f"{worker}.txt").read_bytes()
        return b"working on" in told and any((self.folder / "stores" / "two").rglob("item*"))

    def drain(self, producer: str, *queues: str) -> None:
        """What is left is done without anybody being killed."""
        for _ in range(60):
            done = self.start("produce", producer, "--once").wait(300) in (0, 11)
            reports = ("bit-report",) if done and producer == "bits" else ()
            assert self.start("work", *queues, *reports, "--drain").wait(900) in (0, 1)
            if done:
                return
        raise AssertionError((self.folder / "log.txt").read_text()[-3000:])

    @contextlib.contextmanager
    def processes(self) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            yield running
        finally:
            for process in running.values():
                process.kill()
                process.wait()


def is_in_a_loop(state: Path) -> Callable[[], bool]:
    """Whether the producer with *state* has since begun a loop, or continued one, that is not done."""

    def found() -> bytes:
        return state.read_bytes() if state.exists() else b""

    before = found()

    def is_in_it() -> bool:
        now = found()
        return now != before and json.loads(now)["started_at"] is not None

    return is_in_it


@pytest.fixture
def mill(tmp_path: Path, rabbitmq: str) -> Iterator[Mill]:
    with services.private("mariadb") as database:
        yield Mill(tmp_path / "node", rabbitmq, database, CLOCK.now() % 10**9)


def dead(node: Node) -> list[Any]:
    return [task for name in QueueName for task in node.queues.open(name).dead(limit=10**6)]


@pytest.mark.timeout(5000)
def test_p6_p9_processes_and_the_database_die_and_no_task_is_lost_and_no_success_made_up(mill: Mill) -> None:
    count, kills, more_kills = sized(ci=(300, 3, 0), long=(6_700, 60, 60))
    bodies = {f"item {number:05d}": b"body %d " % number * 40 for number in range(count)}
    one = mill.store("one")
    one.create_space("s")
    for name, body in bodies.items():
        one.put("s", name, io.BytesIO(body))
    with Node.open(mill.settings) as node:
        node.queues.open(QueueName.DUPLICATION_HIGH).put(
            [encode_task(Duplicate("one", "nine", "s", f"item {number:05d}")) for number in range(POISON)]
        )

    mill.run_through("duplication", "duplication-high", "duplication-low", kills=kills)
    two = mill.store("two")
    assert {name: read(two, name) for name in bodies} == bodies
    assert {name: read(one, name) for name in bodies} == bodies
    damaged = set(mill.draw.sample(sorted(bodies), DAMAGED))
    for name in damaged:
        flip_bit(two.path_of("s", name))
    mill.run_through("bits", "bit-integrity", kills=more_kills)

    with Node.open(mill.settings) as node:
        assert [name for name in QueueName if name not in LEFT and node.queues.open(name).depth().open] == []
        assert len(dead(node)) == POISON
        assert all("unknown store 'nine'" in task.cause for task in dead(node))
        for store in ("one", "two"):
            rows = {row.content_id: row for row in node.stores.manifest.scan(store, "s")}
            assert rows.keys() == bodies.keys()
            for name, row in rows.items():
                intact = store == "one" or name not in damaged
                assert (row.outcome, row.verified_at is not None) == (
                    ("SUCCESS", True) if intact else ("FAILURE", False)
                )
                assert row.sha256 == hashlib.sha256(bodies[name]).hexdigest()
            report = node.mill.reports.archive.latest(store, "s")
            assert report is not None
            assert (report.listed, report.failed) == (count, 0 if store == "one" else DAMAGED)
            assert report.result.value == ("SUCCESS" if store == "one" else "FAILURE")
    assert all(mill.killed.values()), mill.killed


LEFT = (QueueName.REPAIR, QueueName.BIT_ERROR)
"""Queues that nobody works on in this test."""


def read(store: LocalStore, name: str) -> bytes:
    with store.open("s", name) as file:
        return file.read()
