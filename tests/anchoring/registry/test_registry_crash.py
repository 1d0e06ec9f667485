"""Three instances, one MariaDB, one RabbitMQ; all of them are killed at random, and nothing is lost or done twice."""

from __future__ import annotations

import http.client
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.anchoring.registry import OperationState
from millstream.anchoring.sidetree import Operation
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing import services
from millstream.testing.dids import DidOwner
from suite.sizes import sized
from support.forked_commands import ForkedCommand

CLOCK = SystemClock()


class Place:
    """What the instances share."""

    def __init__(self, folder: Path, server: services.Server, rabbitmq: services.Server) -> None:
        self.folder, self.server, self.rabbitmq = folder, server, rabbitmq
        self.database = f"{server.url}registry"
        self.environment = {
            "MILLSTREAM_DATA": str(folder),
            "MILLSTREAM_LOG__STORE": self.database,
            "MILLSTREAM_REGISTRY__DATABASE": self.database,
            "MILLSTREAM_REGISTRY__BATCH_WRITER_TIMEOUT": "300ms",
            "MILLSTREAM_REGISTRY__OP_QUEUE_TASK_EXPIRATION": "3s",
            "MILLSTREAM_REGISTRY__OP_QUEUE_TASK_MONITOR_INTERVAL": "1s",
            "MILLSTREAM_REGISTRY__TASK_MANAGER_CHECK_INTERVAL": "1s",
            "MILLSTREAM_QUEUE__BROKER": rabbitmq.url,
            "MILLSTREAM_QUEUE__DATABASE": self.database,
        }


class Instance:
    """One process of the registry, which may be killed and started anew."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.start()

    def start(self) -> None:
        environment = {**os.environ, **self._place.environment}
        with Path(os.devnull).open("wb") as nothing:
            words = ("anchor", "serve", "--http", "127.0.0.1:0")
            self.process = ForkedCommand(*words, errors=nothing, environment=environment)
        self.port = int(self.process.stdout.readline().rpartition(":")[2] or 0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Client:
    """Sends operations to whatever instance answers, over and over until each is taken."""

    def __init__(self, instances: list[Instance], seed: int) -> None:
        self._instances = instances
        self._random = random.Random(seed)

    def submit(self, operation: Operation) -> str:
        body = canonical_json(operation.request)
        while True:
            try:
                connection = http.client.HTTPConnection(
                    "127.0.0.1", self._random.choice(self._instances).port, timeout=60
                )
                connection.request("POST", "/sidetree/v1/operations", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                if response.status == 200:
                    return str(response.headers["operation-id"])
                assert response.status in (429, 503), response.status
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            CLOCK.sleep(0.05)


@pytest.fixture(params=["mariadb", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with services.private(request.param) as server, services.private("rabbitmq") as rabbitmq:
        made = Place(tmp_path, server, rabbitmq)
        with open_node(made) as node:
            node.registry.instance.store.counts()  # makes the tables before all three instances do
        yield made


def open_node(place: Place) -> Node:
    settings, _ = load_settings({}, environment={**place.environment})
    return Node.open(settings, create=True)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_p7_every_accepted_operation_is_anchored_once_whoever_is_killed(place: Place) -> None:
    suffixes, each, kills = sized(ci=(24, 4, 3), long=(5_000, 4, 40))
    instances = [Instance(place) for _ in range(3)]
    taken: dict[str, list[str]] = {}
    progress, finished = threading.Semaphore(0), threading.Event()

    def client(number: int) -> None:
        sender = Client(instances, seed=number)
        for n in range(number, suffixes, 4):
            person = DidOwner(f"crash-{n}")
            history = [person.create, *(person.update() for _ in range(each - 2)), person.recover()]
            taken[person.suffix] = [sender.submit(operation) for operation in history]
            progress.release(each)

    def havoc() -> None:
        dice, total = random.Random(7), suffixes * each
        outages = {kills // 3: place.server, 2 * kills // 3: place.rabbitmq}
        for turn in range(kills):
            for _ in range(total // (kills + 1)):
                progress.acquire()
            if turn in outages:
                outages[turn].kill()
                outages[turn].start()
            victim = dice.choice(instances)
            victim.kill()
            victim.start()
        finished.set()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)] + [threading.Thread(target=havoc)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished.is_set()
    try:
        check_the_end(place, taken)
    finally:
        for instance in instances:
            instance.kill()


def check_the_end(place: Place, taken: dict[str, list[str]]) -> None:
    operations = [name for history in taken.values() for name in history]
    with open_node(place) as node:
        registry = node.registry.instance
        deadline = CLOCK.monotonic() + 240
        while CLOCK.monotonic() < deadline and registry.store.open_count():
            CLOCK.sleep(0.1)
        assert registry.store.counts() == {
            **dict.fromkeys(map(str, OperationState), 0),
            "observed": len(operations),
        }
        anchored: Counter[str] = Counter()
        for suffix, history in taken.items():
            found = registry.history.operations(suffix)
            assert [entry.operation.type for entry in found] == ["create", *["update"] * (len(history) - 2), "recover"]
            places = [(entry.number, entry.index) for entry in found]
            assert places == sorted(set(places)), "in the order of the DID"
            anchored[suffix] += len(found)
            state = registry.history.state(suffix)
            assert state is not None
            assert [service["id"] for service in state.document["services"]] == [f"r{len(history) + 2}"]
        assert sum(anchored.values()) == len(operations)
        assert registry.observer.observe() == 0
        check_the_ledger(node, len(operations))


def check_the_ledger(node: Node, count: int) -> None:
    """The ledger is one chain, and its anchors count each operation once."""
    head = node.registry.ledger.verify()
    assert head is not None
    entries = list(node.registry.ledger.entries())
    assert len({entry.anchor_string for entry in entries}) == len(entries)
    assert sum(int(entry.anchor_string.partition(".")[0]) for entry in entries) == count
