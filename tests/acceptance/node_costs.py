"""The processor time of a message, an operation and a task when one, two or three processes serve a node.

``PYTHONPATH=tests/acceptance:tests python node_costs.py FOLDER DATABASE NODES,… SHARE [KIND…]`` starts for each
number of NODES, such as ``1,2,3,3,2,1``, servers and processes of their own as ``several_nodes.py`` does, and gives
them five kinds of work, each at once and as fast as they take it: messages appended to a log (``log``), messages sent
to a topic and received from it (``topic``), operations on identifiers over HTTP at all members in turn
(``operations``), and items that are copied (``copies``) and checked (``checks``). SHARE makes less of all of it; KINDs
choose some of it. The processor time of the processes until the work is done, less that of as many idle processes in
the same time, is divided by the number of units. The time of clients and servers is not counted; the processes have one
core, and clients and servers the others. A line of JSON is printed for each run, and last the medians and their ratios
to those with one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from several_nodes import GROUPS, LOG, OUTPUTS, SPACE, TOPIC, Cluster

from millstream.anchoring.journal_reader import JournalReader
from millstream.anchoring.registry.tables import operations
from millstream.bench.anchoring.served import post_each
from millstream.bench.processes import cpu_seconds_of, descendants
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.messaging.client import Message as OutgoingMessage
from millstream.messaging.client import Producer, PushConsumer, Received
from millstream.mill.manifest_table import manifest_table
from millstream.node import Node
from millstream.testing.dids import DidOwner
from millstream.testing.ports import free_ports

MESSAGES, SENDS, OPERATIONS, ITEMS = 1_000_000, 60_000, 60_000, 3_000
_FIRST_ITEMS = 200
"""Items that are copied and checked before the figures begin: each process opens its clients of the buckets then."""
_FIRST_OPERATIONS = 3_000
"""Operations before the figures begin, as many batches as there are processes at most."""
_ENVIRONMENT = {
    "MILLSTREAM_NODE__LEASE": "15s",  # the default; several_nodes.py has a shorter one, at a cost
    "MILLSTREAM_SERVE__REGISTRY": "true",
    "MILLSTREAM_REGISTRY__BATCH_WRITER_TIMEOUT": "10s",  # no minute of waiting for each member's last batch
    "MILLSTREAM_BATCHING__MAX_COUNT": "1000",
    "MILLSTREAM_SERVE__PRODUCERS": "false",  # the program puts the tasks itself
    "MILLSTREAM_MILL__PRODUCE__BITS_FREQUENCY": "1s",
    "MILLSTREAM_MILL__PRODUCE__DUPLICATION_FREQUENCY": "1s",
}
_THREADS = 6
"""Threads for tasks in all processes together: more of them would keep the servers, on the same machine, busier."""

_CORES = sorted(os.sched_getaffinity(0))
"""At least two. The last one is that of the processes: else their time would grow with what the servers do."""

_SETTLING, _QUIET = 45.0, 60.0
"""Seconds until the roles are shared out, and in which idle processes are measured: in so long a time they look at
everything several times."""

_APPEND = _SOURCES = 1_000
_TASKS_FIRST = 12
_AT_ONCE = 64


class Cost(NamedTuple):
    """Of one kind of work: seconds until it was done, and processor time a unit in µs, with and less that of idling."""

    seconds: float
    all_time: float
    time: float


class Members:
    """The processes of a cluster, and what they take."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self._cluster = cluster
        self.http = free_ports(nodes)
        with _on_cores(_CORES[-1:]):
            for number, port in enumerate(self.http):
                cluster.start(
                    number,
                    {
                        "MILLSTREAM_SERVE__REGISTRY_HTTP": f"127.0.0.1:{port}",
                        "MILLSTREAM_MILL__WORKERS": str(_THREADS // nodes),
                    },
                )
        cluster.create_topic()
        for port in self.http:
            self._wait(lambda port=port: _answers(port))  # type: ignore[misc]
        cluster.clock.sleep(_SETTLING)
        before = self._taken()
        cluster.clock.sleep(_QUIET)
        self.idle = (self._taken() - before) / _QUIET
        """Processor time a second without work."""

    def cost(self, units: int, work: Callable[[], object], is_done: Callable[[], bool]) -> Cost:
        """What *units* of *work* cost until it *is_done*."""
        clock = self._cluster.clock
        started, before = clock.monotonic(), self._taken()
        work()
        self._wait(is_done)
        seconds, taken = clock.monotonic() - started, self._taken() - before
        return Cost(
            round(seconds, 1), round(1e6 * taken / units, 1), round(1e6 * (taken - seconds * self.idle) / units, 1)
        )

    def _wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            assert all(process.poll() is None for process in self._cluster.processes.values()), "a process has ended"
            self._cluster.clock.sleep(0.5)

    def _taken(self) -> float:
        return cpu_seconds_of(pid for one in self._cluster.processes.values() for pid in descendants(one.pid))


@contextlib.contextmanager
def _on_cores(cores: Collection[int]) -> Iterator[None]:
    """Let processes that are started in the block run on *cores* only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    return False


class Work:
    """What the members are given, and when it is done."""

    def __init__(self, cluster: Cluster, node: Node, share: float) -> None:
        self._cluster, self._node = cluster, node
        self._reader = JournalReader(node.databases.own)
        self._folder = str(cluster.new_folder("commands"))
        counts = (round(share * count) for count in (MESSAGES, SENDS, OPERATIONS, ITEMS))
        self.messages, self.sends, self.operations, self.items = counts
        self._items = self._posted = 0

    def append(self) -> None:
        """Append messages of a thousand sources, as they happen."""
        clock = self._cluster.clock
        with self._node.logs.store.log(LogSpec(LOG)).writer("costs") as writer:
            for start in range(0, self.messages, _APPEND):
                numbers = range(start, min(start + _APPEND, self.messages))
                now = clock.now()
                writer.append([Message(b"m%d" % n, f"k{n % 4}", f"s{n % _SOURCES}", now) for n in numbers])

    def is_batched(self, log: str) -> bool:
        """Whether every message of *log* is batched and every batch anchored."""
        store = self._node.logs.store
        end, output = store.log(LogSpec(log)).last_id, store.log(LogSpec(OUTPUTS[log], kind="batches"))
        return output.sequence("batching") >= end and self._reader.first_waiting() is None

    def send(self) -> None:
        """Send to the topic and receive from it until everything came."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        received, numbers = set[bytes](), iter(range(self.sends))
        everything = asyncio.Event()

        async def listen(message: Received) -> None:
            received.add(message.body)
            if len(received) == self.sends:
                everything.set()

        async def send(producer: Producer) -> None:
            for number in numbers:
                group = f"g{number % GROUPS}"
                await producer.send(OutgoingMessage(TOPIC, b"t%d" % number, message_group=group))

        access_point = ";".join(self._cluster.brokers)
        async with (
            Producer(access_point, [TOPIC]) as producer,
            PushConsumer(access_point, "readers", {TOPIC: "*"}, listen),
        ):
            await asyncio.gather(*(send(producer) for _ in range(_AT_ONCE)))
            await everything.wait()

    def post(self, requests: Sequence[bytes], ports: Sequence[int]) -> None:
        """Post each of *requests*, to the members in turn."""
        self._posted += len(requests)
        parts = [requests[place :: len(ports)] for place in range(len(ports))]
        with ThreadPoolExecutor(len(ports)) as threads:
            list(threads.map(post_each, parts, ports))

    def are_observed(self) -> bool:
        """Whether every operation is anchored and read back."""
        return self._count(sa.select(sa.func.count()).where(operations.c.state == "observed")) == self._posted

    def put(self, count: int) -> None:
        """Put *count* more items."""
        store = self._node.stores.providers["primary"]
        if not self._items:
            store.create_space(SPACE)
        for number in range(self._items, self._items + count):
            store.put(SPACE, f"letter {number:06}", io.BytesIO(b"%06d" % number * 300))
        self._items += count

    def copy(self) -> None:
        """Put a task for the copy of each item that has none."""
        self._produce("duplication")

    def check(self) -> None:
        """Put a task for the check of each item and of each copy."""
        self._produce("bits")

    def _produce(self, kind: str) -> None:
        command = ["mill", "produce", kind, "--once", "--data", self._folder]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            while code := run(command):
                assert code == _TASKS_FIRST, (code, out.getvalue())
                self._cluster.clock.sleep(0.5)

    def are_copied(self) -> bool:
        """Whether every item has its copy."""
        return self._count(sa.select(sa.func.count()).where(manifest_table.c.store == "second")) == self._items

    def are_checked(self) -> bool:
        """Whether every item and every copy was checked."""
        return self._count(sa.select(sa.func.count()).where(manifest_table.c.outcome == "SUCCESS")) == 2 * self._items

    def _count(self, query: sa.Select[tuple[int]]) -> int:
        with self._node.databases.own.connect() as connection:
            return connection.scalar(query) or 0


def measure(
    folder: Path, database: str, nodes: int, share: float, kinds: Collection[str]
) -> Mapping[str, float | Cost]:
    """What each of *kinds* of work costs with so many *nodes*; of all kinds where none is given."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(folder, database, 0, stack, nodes)
        members = Members(cluster, nodes)
        node = stack.enter_context(cluster.opened("load"))
        work = Work(cluster, node, share)
        count = _FIRST_OPERATIONS + work.operations
        requests = [canonical_json(DidOwner(f"o{number}").create.request) for number in range(count)]
        first, requests = requests[:_FIRST_OPERATIONS], requests[_FIRST_OPERATIONS:]
        offered: Mapping[str, tuple[int, Callable[[], object], Callable[[], bool]]] = {
            "log": (work.messages, work.append, lambda: work.is_batched(LOG)),
            "topic": (work.sends, work.send, lambda: work.is_batched(TOPIC)),
            "operations": (work.operations, lambda: work.post(requests, members.http), work.are_observed),
            "copies": (work.items, work.copy, work.are_copied),
            "checks": (2 * (work.items + _FIRST_ITEMS), work.check, work.are_checked),
        }
        if not kinds or {"copies", "checks"} & set(kinds):
            work.put(_FIRST_ITEMS)
            members.cost(_FIRST_ITEMS, work.copy, work.are_copied)
            members.cost(2 * _FIRST_ITEMS, work.check, work.are_checked)
            work.put(work.items)
        if not kinds or "operations" in kinds:
            members.cost(len(first), lambda: work.post(first, members.http), work.are_observed)
        costs = {kind: members.cost(*one) for kind, one in offered.items() if not kinds or kind in kinds}
        totals = node.anchoring.journal.totals()
        return {
            "idle": round(members.idle, 3),
            "batches": totals.observed,
            "rejected batches": totals.rejected,
            **costs,
        }


def main(folder: str, database: str, nodes: str, share: str, *kinds: str) -> None:
    """Measure, and print the figures and their ratios."""
    os.environ |= _ENVIRONMENT
    os.sched_setaffinity(0, _CORES[:-1])  # this process and the servers that it starts
    found = dict[int, list[Mapping[str, float | Cost]]]()
    for turn, count in enumerate(map(int, nodes.split(","))):
        figures = measure(Path(folder) / str(turn), database, count, float(share), kinds)
        found.setdefault(count, []).append(figures)
        print(json.dumps({"nodes": count, **figures}), flush=True)
    for kind in found[min(found)][0]:
        medians = {count: statistics.median(_time(one[kind]) for one in runs) for count, runs in sorted(found.items())}
        first = medians[min(medians)]
        print(kind, {count: (median, round(median / first, 2) if first else None) for count, median in medians.items()})


def _time(figure: float | Cost) -> float:
    return figure.time if isinstance(figure, Cost) else figure


if __name__ == "__main__":
    main(*sys.argv[1:])
