"""Members of an older version of Millstream are replaced by this one, one after the other, under load.

``PYTHONPATH=tests/acceptance:tests python rolling_upgrade.py FOLDER DATABASE OLDER [SECONDS]``, with a checkout of the
older version at OLDER, starts three of its members as ``several_nodes.py`` does, and gives them messages, messages of
topics by clients of both versions, items, and operations on identifiers. A member is drained and started in this
version, another is killed with ``kill -9`` and started in this version, the first goes back to the older version; at
last all are of this version. Between two steps SECONDS (60) pass. What ``status`` and ``node ls`` of both versions say
meanwhile is in ``FOLDER/said``. At the end everything is compared with what was confirmed, and a summary is printed as
JSON. Set another ``__version__`` in OLDER if both versions have the same.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import several_nodes
import sqlalchemy as sa
from several_nodes import NODES, Cluster, Load, check, finish

from millstream.anchoring.registry.tables import operations
from millstream.cli.main import run
from millstream.core.address import parse_address
from millstream.core.canonical import canonical_json
from millstream.log import LogSpec
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import BrokerError
from millstream.testing.dids import DidOwner
from millstream.testing.ports import free_ports

OLDER, NEWER = "older", "newer"
OLDER_TOPIC = "older-orders"
COMMANDS = ("status", "node ls")

CLIENT = """
import asyncio, json, os, sys
from millstream.messaging.client import ClientError, Message, Producer, PushConsumer

async def started(make):
    while True:
        client = make()
        try:
            await client.start()
            return client
        except ClientError:
            await asyncio.sleep(0.5)

async def main(access_point, topic):
    sent, received, failures, ended = [], [], [], asyncio.Event()
    async def listen(message):
        received.append(message.body.decode())
    async def send(producer):
        while not ended.is_set():
            body = f"{len(sent)} {os.urandom(4).hex()}"
            while True:
                try:
                    await producer.send(Message(topic, body.encode(), message_group=f"g{len(sent) % 3}"))
                    break
                except ClientError as error:
                    failures.append(repr(error))
                    await asyncio.sleep(0.5)
            sent.append(body)
            await asyncio.sleep(0.05)
    asyncio.get_running_loop().run_in_executor(None, lambda: (sys.stdin.read(), ended.set()))
    producer = await started(lambda: Producer(access_point, [topic]))
    consumer = await started(lambda: PushConsumer(access_point, "older-readers", {topic: "*"}, listen))
    async with producer, consumer:
        await send(producer)
        for _ in range(600):
            if set(received) >= set(sent):
                break
            await asyncio.sleep(0.5)
    print(json.dumps({"sent": sent, "received": received, "failures": failures}))

asyncio.run(main(*sys.argv[1:]))
"""
"""A client of the older version: sends to a topic in three groups and receives, until its input ends."""


class Members(Cluster):
    """A cluster whose members have the version in ``versions``; each keeps its folder."""

    def __init__(self, folder: Path, database: str, older: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(folder, database, 240.0, stack)
        self.text = self.text.replace('lease = "4s"', 'lease = "15s"')
        self.environments = {OLDER: {"PYTHONPATH": str(older / "src")}, NEWER: {}}
        self.versions = dict.fromkeys(range(NODES), OLDER)
        self.http = free_ports(NODES)
        self.ended: list[str] = []

    def start(self, number: int, environment: Mapping[str, str] | None = None) -> None:
        registry = {
            "MILLSTREAM_SERVE__REGISTRY": "true",
            "MILLSTREAM_SERVE__REGISTRY_HTTP": f"127.0.0.1:{self.http[number]}",
        }
        with (self.folder / f"serve-{number}.log").open("a") as log:
            log.write(f"=== {self.versions[number]}\n")
        super().start(number, registry | self.environments[self.versions[number]] | dict(environment or {}))

    def new_folder(self, name: str) -> Path:
        """The folder that a member has kept; an empty one for others."""
        found = re.fullmatch(r"(node-\d+)-\d+", name)
        folder = self.folder / found[1] if found else super().new_folder(name)
        folder.mkdir(exist_ok=True)
        (folder / "millstream.toml").write_text(self.text)
        return folder

    def replace(self, number: int, version: str, *, kill: bool = False) -> None:
        """Stop a member, and start it in *version*."""
        begun, process = self.clock.monotonic(), self.processes[number]
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        end = f"{'killed' if kill else 'drained'}: {process.wait(300)}, {self.clock.monotonic() - begun:.1f} s"
        self.ended.append(f"{self.versions[number]} {number} {end}")
        self.versions[number] = version
        self.start(number)

    def command(self, version: str, line: str, folder: Path) -> str:
        """What a command of *version* prints, with its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "millstream", *line.split(), "--data", str(folder)],
            env={**os.environ, **self.environments[version]}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return f"$ {version}: {line}\n{done.stdout}{done.stderr}exit code {done.returncode}\n\n"

    def say(self, step: str) -> None:
        """Write down what commands of both versions say."""
        (self.folder / "said").mkdir(exist_ok=True)
        for version in (OLDER, NEWER):
            folder = self.new_folder(f"look-{version}")
            lines = "".join(self.command(version, line, folder) for line in COMMANDS)
            (self.folder / "said" / f"{step} {version}.txt").write_text(lines)

    def create_topics(self) -> None:
        """Create both topics, at the member that has the broker."""
        self.create_topic()
        for broker in self.brokers:
            with contextlib.suppress(BrokerError):
                call_broker(parse_address(broker), CREATE_TOPIC, TopicSpec(OLDER_TOPIC, "FIFO", 4))


class Operations:
    """Creates and updates identifiers over HTTP, at the members in turn, until told to end."""

    def __init__(self, cluster: Members) -> None:
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self._cluster, self._ended = cluster, threading.Event()
        self._thread = threading.Thread(target=self._post)

    def __enter__(self) -> Operations:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _post(self) -> None:
        for number in range(1_000_000):
            owner = DidOwner(f"o{number}")
            for request in (owner.create.request, owner.update().request, owner.recover().request):
                if self._ended.is_set():
                    return
                self._post_one(canonical_json(request))
                self._ended.wait(0.1)

    def _post_one(self, body: bytes) -> None:
        for turn in range(600):
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._cluster.http[(len(self.accepted) + turn) % NODES], timeout=10
            )
            try:
                connection.request("POST", "/sidetree/v1/operations", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read().decode()
            except OSError:
                self._ended.wait(0.2)
                continue
            finally:
                connection.close()
            if answer.status in (200, 202):
                self.accepted.append(text)
                return
            self.refused.append(f"{answer.status} {text[:300]}")
            if answer.status < 500 and answer.status != 429:
                return
            self._ended.wait(0.2)


@contextlib.contextmanager
def older_client(cluster: Members) -> Iterator[dict[str, Any]]:
    """A client of the older version in the block; afterwards, what it sent and received."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, ";".join(cluster.brokers), OLDER_TOPIC],
        env={**os.environ, **cluster.environments[OLDER]}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=(cluster.folder / "client.log").open("wb"),
    )  # fmt: skip
    found: dict[str, Any] = {}
    try:
        yield found
    finally:
        out, _ = process.communicate(timeout=600)
        found |= json.loads(out or b"{}")


def upgrade(cluster: Members, seconds: float) -> None:
    """Replace the members one by one."""
    step, clock = cluster.say, cluster.clock

    def rest() -> None:
        clock.sleep(seconds)
        for number, process in cluster.processes.items():
            if process.poll() is not None:
                cluster.ended.append(f"{cluster.versions[number]} {number} ended by itself: {process.returncode}")

    rest()
    step("1 all older")
    cluster.replace(0, NEWER)
    rest()
    step("2 one newer")
    cluster.replace(1, NEWER, kill=True)
    rest()
    cluster.replace(0, OLDER)
    rest()
    step("3 one back")
    cluster.replace(0, NEWER)
    cluster.replace(2, NEWER)
    rest()
    step("4 all newer")


def check_more(cluster: Members, posted: Operations, client: Mapping[str, Any]) -> Mapping[str, Any]:
    """What :func:`several_nodes.check` does not compare."""
    folder = str(cluster.new_folder("commands"))
    output = {}
    for line in ("mill reconcile", "anchor verify", "mill report --verify", "mill check", "status"):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = run([*line.split(), "--data", folder])
        output[line] = [code, *out.getvalue().splitlines()[-12:]]
    with cluster.opened("check-more") as node:
        bodies = several_nodes._bodies(node.logs.store.log(LogSpec(OLDER_TOPIC)))
        with node.databases.own.connect() as connection:
            states = connection.execute(
                sa.select(operations.c.state, sa.func.count()).group_by(operations.c.state)
            ).all()
    sent, received = ([one.encode() for one in client.get(name, ())] for name in ("sent", "received"))
    return {
        "operations accepted": len(posted.accepted),
        "operations refused": collections.Counter(posted.refused).most_common(5),
        "states of operations": {str(state): int(count) for state, count in states},
        "older client": {
            "sent": len(sent),
            "failures": collections.Counter(client.get("failures", ())).most_common(5),
            "lost": len(set(sent) - set(bodies)),
            "stored twice": len(bodies) - len(set(bodies)),
            "not received": len(set(sent) - set(received)),
            "received again": len(received) - len(set(received)),
            "order": several_nodes._groups(sent)
            == several_nodes._groups(bodies, sent)
            == several_nodes._groups(received, sent),
        },
        "ended": cluster.ended,
        "commands": output,
    }


def log_lines(folder: Path) -> Mapping[str, int]:
    """Warnings and errors in the logs of the members, without their numbers, and how often each came."""
    counts = collections.Counter[str]()
    for file in sorted(folder.glob("serve-*.log")):
        version = ""
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.startswith("=== "):
                version = line[4:]
            elif re.search(r"warning|error|Traceback|critical", line, re.IGNORECASE):
                counts[f"{version}: " + re.sub(r"[0-9a-f]{8,}|\d+", "#", line)[:260]] += 1
    return dict(counts.most_common())


def walk(folder: Path, database: str, older: Path, seconds: float) -> Mapping[str, Any]:
    """Everything: the summary."""
    several_nodes.OUTPUTS[OLDER_TOPIC] = f"{OLDER_TOPIC}.batches"
    with contextlib.ExitStack() as stack:
        cluster = Members(folder, database, older, stack)
        cluster.start(0)
        cluster.create_topics()  # when it has made the tables: early versions end if two do so at once
        for number in range(1, NODES):
            cluster.start(number)
        with (
            Load(cluster, cluster.clock.monotonic() + 8 * seconds + 300) as load,
            Operations(cluster) as posted,
            older_client(cluster) as client,
        ):
            upgrade(cluster, seconds)
        left = finish(cluster, load)
        found = check(cluster, load) | check_more(cluster, posted, client)
        return {"database": database, "not done": left} | found | {"log lines": log_lines(folder)}


def main(folder: str, database: str, older: str, seconds: str = "60") -> None:
    """Walk, and print the summary."""
    print(json.dumps(walk(Path(folder), database, Path(older), float(seconds)), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
