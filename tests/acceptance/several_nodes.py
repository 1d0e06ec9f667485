"""Several processes serve one node from empty folders while they, and the servers they need, are killed and stopped.

``PYTHONPATH=tests/acceptance:tests python several_nodes.py FOLDER DATABASE SECONDS SEED`` starts three processes of
``millstream serve``, each with a folder that holds nothing but the same settings, and servers of their own: DATABASE
(``postgresql`` or ``mariadb``) for tables and logs, Swift for batch files and copies, RabbitMQ for tasks. Messages are
appended to a log, sent to a topic of the broker and received from it, and items put all the time. Every few seconds
something random happens: ``kill -9`` of a process (which starts again with an empty folder), SIGSTOP beyond its lease,
the end of a server. Afterwards all work is finished, and :func:`check` compares what is there with what was confirmed.
A summary is printed as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from millstream.anchoring.journal_reader import JournalReader
from millstream.batching.service import BatchService
from millstream.cli.main import run
from millstream.core.address import parse_address
from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.errors import MillstreamError
from millstream.core.message import Message
from millstream.log import Log, LogSpec, open_store
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import ClientError, Producer, PushConsumer, Received
from millstream.messaging.client import Message as OutgoingMessage
from millstream.messaging.errors import BrokerError
from millstream.mill.policies.policy import policy_file
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing import services
from millstream.testing.ports import free_ports
from millstream.testing.s3 import S3Server

Client = TypeVar("Client", Producer, PushConsumer)

NODES, LEASE, GROUPS = 3, 4.0, 3
LOG, TOPIC, SPACE = "readings", "orders", "letters"
OUTPUTS = {LOG: f"{LOG}.batches", TOPIC: f"{TOPIC}.batches"}
SETTINGS = """
[node]
database = "{database}/node"
lease = "{lease}s"
[log]
store = "{logs}/logs"
[anchoring]
cas = "{cas}"
key_folder = "{keys}"
[stores.primary]
url = "{primary}"
[stores.second]
url = "{second}"
[queue]
broker = "{queue}"
[mill]
policies = "{policies}"
[mill.produce]
duplication_frequency = "{frequency}s"
duplication_every = "10s"
bits_frequency = "{frequency}s"
bits_every = "10s"
[batching]
window = "20s"
max_delay = "2s"
[serve]
workers = ["all"]
producers = true
anchor_every = "3s"
[serve.batching]
"""


class Cluster:
    """The servers, the processes and the folders."""

    def __init__(
        self, folder: Path, database: str, seconds: float, stack: contextlib.ExitStack, nodes: int = NODES
    ) -> None:
        self.folder, self.clock = folder, SystemClock()
        folder.mkdir(parents=True)
        names = {"database": database, "s3": "swift", "queue": "rabbitmq"}
        self.servers = {name: stack.enter_context(services.private(kind)) for name, kind in names.items()}
        s3 = S3Server(self.servers["s3"].url)
        base = self.servers["database"].url.rstrip("/")
        policies = folder / "policies"
        policies.mkdir()
        (policies / "duplication-accounts.json").write_text('["local"]')
        pairs = [{"srcStoreId": "primary", "destStoreId": "second"}]
        (policies / policy_file("local")).write_text(json.dumps({"spaceDuplicationStorePolicies": {SPACE: pairs}}))
        self.text = SETTINGS.format(
            database=base, logs=base, lease=int(LEASE), cas=s3.new_url(), keys=folder / "keys", primary=s3.new_url(),
            second=s3.new_url(), queue=self.servers["queue"].url, policies=policies,
            frequency=max(60, int(seconds / 4)),
        )  # fmt: skip
        self.text += "".join(f'{log} = "{output}"\n' for log, output in OUTPUTS.items())
        self.brokers = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._starts = 0
        stack.callback(self.end)

    def new_folder(self, name: str) -> Path:
        """An empty folder but for the settings."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "millstream.toml").write_text(self.text)
        return folder

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Node]:
        """The node, opened in this process."""
        with Node.open(load_settings({"data": str(self.new_folder(name))})[0], create=True) as node:
            yield node

    def start(self, number: int, environment: Mapping[str, str] | None = None) -> None:
        """Start the process *number* with an empty folder, and with settings in its *environment*."""
        self._starts += 1
        data = self.new_folder(f"node-{number}-{self._starts}")
        command = [sys.executable, "-m", "millstream", "serve", "--data", str(data), "--console", "127.0.0.1:0"]
        command += ["--broker", self.brokers[number], "--no-broker-tls"]
        with (self.folder / f"serve-{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
            )

    def create_topic(self) -> None:
        """Create the topic, at the process that has the broker."""
        while True:
            for broker in self.brokers:
                with contextlib.suppress(BrokerError):
                    call_broker(parse_address(broker), CREATE_TOPIC, TopicSpec(TOPIC, "FIFO", 4))
                    return
            self.clock.sleep(1.0)

    def keep_running(self) -> int:
        """Start again what has ended by itself; returns how many processes that were."""
        ended = [number for number, process in self.processes.items() if process.poll() is not None]
        for number in ended:
            self.start(number)
        return len(ended)

    def end(self) -> None:
        """End the processes in order."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Load:
    """Appends messages and puts items until it is told to end; keeps what was confirmed."""

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self.messages: list[bytes] = []
        self.items: dict[str, bytes] = {}
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.failures = 0
        self._cluster, self._deadline, self._ended = cluster, deadline, threading.Event()
        self._threads = [threading.Thread(target=self._again, args=(work,)) for work in (self._append, self._put)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._send())))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _again(self, work: Callable[[Node], object]) -> None:
        """Call *work* with the node, and open that anew after each failure."""
        name = f"load-{work.__name__.strip('_')}"
        while not self._ended.is_set():
            try:
                with self._cluster.opened(name) as node:
                    work(node)
            except (MillstreamError, OSError):
                self.failures += 1
                self._ended.wait(1.0)

    def _append(self, node: Node) -> None:
        clock = self._cluster.clock
        with node.logs.store.log(LogSpec(LOG)).writer("load") as writer:
            while not self._ended.is_set():
                sequence, now = writer.sequence, clock.now()
                bodies = [f"{sequence + number} {os.urandom(4).hex()}".encode() for number in range(1, 21)]
                messages = [Message(body, f"k{n % 4}", f"s{n % 5}", now - n) for n, body in enumerate(bodies)]
                writer.append(messages, sequence=sequence + len(messages))
                self.messages += bodies
                self._ended.wait(0.1)

    def _put(self, node: Node) -> None:
        store = node.stores.providers["primary"]
        if SPACE not in store.spaces():
            store.create_space(SPACE)
        while not self._ended.is_set():
            name, data = f"letter {len(self.items):06} {os.urandom(3).hex()}", os.urandom(2000)
            store.put(SPACE, name, io.BytesIO(data))
            self.items[name] = data
            self._ended.wait(0.3)

    async def _send(self) -> None:
        """Send to the topic, in three groups, and receive from it until all has come."""

        async def listen(message: Received) -> None:
            self.received.append(message.body)

        access_point = ";".join(self._cluster.brokers)
        async with (
            await _started(lambda: Producer(access_point, [TOPIC])) as producer,
            await _started(lambda: PushConsumer(access_point, "readers", {TOPIC: "*"}, listen)),
        ):
            while not self._ended.is_set():
                body = f"{len(self.sent)} {os.urandom(4).hex()}".encode()
                await self._send_one(
                    producer, OutgoingMessage(TOPIC, body, message_group=f"g{len(self.sent) % GROUPS}")
                )
                self.sent.append(body)
                await asyncio.sleep(0.05)
            while set(self.received) < set(self.sent) and self._cluster.clock.monotonic() < self._deadline:
                await asyncio.sleep(0.5)

    async def _send_one(self, producer: Producer, message: OutgoingMessage) -> None:
        while True:
            try:
                await producer.send(message)
            except ClientError:
                self.failures += 1
                await asyncio.sleep(0.5)
            else:
                return


async def _started(make: Callable[[], Client]) -> Client:
    """A client that has started, once a broker is there."""
    while True:
        client = make()
        try:
            await client.start()
        except ClientError:
            await asyncio.sleep(0.5)
        else:
            return client


def disturb(cluster: Cluster, seconds: float, seed: int, every: float) -> Mapping[str, int]:
    """Let something go wrong every so many seconds; how often each thing did."""
    draw, done, clock = random.Random(seed), dict[str, int](), cluster.clock
    until_then = clock.monotonic() + seconds
    while clock.monotonic() < until_then:
        clock.sleep(draw.uniform(0.5, 1.5) * every)
        done["ended by itself"] = done.get("ended by itself", 0) + cluster.keep_running()
        what = draw.choices(["kill", "stop", "database", "s3", "queue"], [6, 3, 1, 1, 1])[0]
        number = draw.randrange(NODES)
        process = cluster.processes[number]
        if what == "kill":
            process.kill()
            process.wait()
            clock.sleep(draw.uniform(0, LEASE))
            cluster.start(number)
        elif what == "stop":
            process.send_signal(signal.SIGSTOP)
            clock.sleep(draw.uniform(LEASE, 2.5 * LEASE))
            process.send_signal(signal.SIGCONT)
        else:
            cluster.servers[what].kill()
            clock.sleep(draw.uniform(0.5, 3.0))
            cluster.servers[what].start()
        done[what] = done.get(what, 0) + 1
    return done


def finish(cluster: Cluster, load: Load, seconds: float = 900.0) -> list[str]:
    """Wait until every message is batched and anchored, every item copied and checked, and no task is left; what is
    not done by then."""
    names, deadline = sorted(load.items), cluster.clock.monotonic() + seconds
    with cluster.opened("watch") as node:
        reader = JournalReader(node.databases.own)
        while True:
            cluster.keep_running()
            left = []
            for log in OUTPUTS:
                source, output = _logs(node, log)
                if output.sequence("batching") < source.last_id:
                    left.append(f"messages of {log} from {output.sequence('batching')} on are not batched")
            if reader.first_waiting() is not None or reader.last_number() == 0:
                left.append("batches are not anchored")
            copies = {name: node.stores.manifest.replicas(SPACE, name) for name in names}
            bad = [name for name, rows in copies.items() if [row.outcome for row in rows] != ["SUCCESS"] * 2]
            if bad:
                left.append(f"{len(bad)} items are not copied and checked, such as {bad[0]!r}: {copies[bad[0]]}")
            left += [
                f"{queue} has {depth.ready} tasks"
                for queue in QueueName
                if (depth := node.queues.open(queue).depth()).ready
            ]
            if not left or cluster.clock.monotonic() > deadline:
                return left
            cluster.clock.sleep(2.0)


def check(cluster: Cluster, load: Load) -> Mapping[str, Any]:
    """Compare what is there with what was confirmed."""
    folder = cluster.new_folder("check")
    codes = {line: run([*line.split(), "--data", str(folder)]) for line in ("anchor replay", "anchor verify")}
    with cluster.opened("check") as node:
        bodies = {log: _bodies(_logs(node, log)[0]) for log in OUTPUTS}
        written = [
            row["batch"] for log in OUTPUTS for row in map(json.loads, _bodies(_logs(node, log)[1])) if "batch" in row
        ]
        anchored = [name for _, names in JournalReader(node.databases.own).names() for name in names]
        dead = {str(name): depth.dead for name in QueueName if (depth := node.queues.open(name).depth()).dead}
        store = node.stores.providers["second"]
        wrong = 0
        for name, data in load.items.items():
            with store.open(SPACE, name) as file:
                wrong += file.read() != data
        confirmed = set(load.messages)
        return {
            "messages": len(load.messages),
            "items": len(load.items),
            "sent to the topic": len(load.sent),
            "failures of the load": load.failures,
            "lost": len(confirmed - set(bodies[LOG])) + len(set(load.sent) - set(bodies[TOPIC])),
            "in order and once": [body for body in bodies[LOG] if body in confirmed] == load.messages,
            "not received": len(set(load.sent) - set(load.received)),
            "received again": len(load.received) - len(set(load.received)),
            "order of groups": _groups(load.sent)
            == _groups(bodies[TOPIC], load.sent)
            == _groups(load.received, load.sent),
            "batches": len(written),
            "batches twice": len(written) - len(set(written)),
            "as on one embedded node": all(_is_as_alone(node, log, folder) for log in OUTPUTS),
            "not anchored": len(set(written) - set(anchored)),
            "anchored twice": len(anchored) - len(set(anchored)),
            "wrong copies": wrong,
            "dead tasks": dead,
            "codes": codes,
        }


def _is_as_alone(node: Node, name: str, folder: Path) -> bool:
    """Whether one embedded node batches the log *name* to the byte as the processes did.

    Where a rejected message stands among the batches depends on how many messages were read at a time.
    """
    source, output = _logs(node, name)
    with open_store(f"sqlite:///{folder / name}.db") as alone:
        again = alone.log(LogSpec("again", kind="batches"))
        state = FileDocument(folder / f"{name}.state")
        with contextlib.closing(BatchService(source, again, node.batching.rules, state)) as one:
            one.step()
        return sorted(_bodies(again)) == sorted(_bodies(output)) and _batches(again) == _batches(output)


def _groups(bodies: list[bytes], confirmed: list[bytes] | None = None) -> list[list[bytes]]:
    """The bodies sent in each group, each where it comes first; of those that were *confirmed*, if that is given."""
    kept = set(bodies if confirmed is None else confirmed)
    first = [body for body in dict.fromkeys(bodies) if body in kept]
    return [[body for body in first if int(body.split()[0]) % GROUPS == group] for group in range(GROUPS)]


def _logs(node: Node, name: str) -> tuple[Log, Log]:
    """The log *name*, and that of its batches."""
    return node.logs.store.log(LogSpec(name)), node.logs.store.log(LogSpec(OUTPUTS[name], kind="batches"))


def _batches(log: Log) -> list[bytes]:
    """The lines of the batches alone, in order."""
    return [body for body in _bodies(log) if "batch" in json.loads(body)]


def _bodies(log: Log) -> list[bytes]:
    return [body for batch in log.read() for body in batch.arrow.column("body").to_pylist()]


def walk(folder: Path, database: str, seconds: float, seed: int, every: float = 15.0) -> Mapping[str, Any]:
    """Everything: the summary."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(folder, database, seconds, stack)
        for number in range(NODES):
            cluster.start(number)
        cluster.create_topic()
        with Load(cluster, cluster.clock.monotonic() + seconds + 300) as load:
            done = disturb(cluster, seconds, seed, every)
        left = finish(cluster, load)
        given = {"database": database, "seconds": seconds, "seed": seed, "disturbed": done, "not done": left}
        return given | check(cluster, load)


def main(folder: str, database: str, seconds: str, seed: str) -> None:
    """Walk, and print the summary."""
    print(json.dumps(walk(Path(folder), database, float(seconds), int(seed)), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
