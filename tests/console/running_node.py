"""Nodes that are served for the fault table, and how each fault is caused on them.

There are five: ``plain`` and ``mounts`` on a clock that the test moves, the latter in a mount namespace, where its data
folder and second store are file systems of their own, ``witnessed``, whose ledgers a witness cosigns, ``servers``,
whose log, queues, messages and third store need servers, and ``shared``, which several processes serve.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from faulty_node import FAULTS, SETTINGS, FaultyNode, make_node
from shifted_node import ShiftedClock
from witness_faults import LocalWitness, anchor, another_history, ask_witness
from world import Served, serving

from millstream.cli.main import run
from millstream.mill.tasks import Duplicate, encode_task
from millstream.node import Node
from millstream.settings import load_settings
from millstream.status.serving_node import find_serving_node
from millstream.testing import services
from millstream.testing.databases import connected
from millstream.testing.s3 import S3Server
from millstream.testing.waiting import until
from support.outboxes import make_outbox

PLAIN = SETTINGS.replace('[serve.batching]\nreadings = "readings.batches"\n', "")
PLAIN = PLAIN[: PLAIN.index("[mill.alarms]")] + PLAIN[PLAIN.index("[broker]") :]
PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
SHIFTED = str(Path(__file__).with_name("shifted_node.py"))


class Hook:
    """A webhook that can be switched off: it then refuses connections."""

    def __init__(self) -> None:
        self.port, self._server = 0, None
        self.start()

    def start(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Requests are not logged."""

        self._server = http.server.HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class RunningNode(FaultyNode):
    """A node in *folder* that *served* serves; faults are caused from this process, as by its operators and its disks.

    *clock* is the node's own; *parts* are what else a fault acts on.
    """

    def __init__(self, folder: Path, served: Served, clock: ShiftedClock, parts: Mapping[str, Any]) -> None:
        self.folder, self.served, self.clock, self.parts = folder, served, clock, parts  # type: ignore[assignment]
        settings, _ = load_settings({"data": str(folder)})
        self.node = Node.open(settings, clock)

    def status(self) -> tuple[int, dict[str, Any]]:
        """The exit code of `millstream status`, and the last line that it prints."""
        arguments = ["status", "--json", "--data", str(self.parts.get("place", self.folder))]
        if "place" in self.parts:  # SQLite does not find files by the way on which this process sees them
            done = subprocess.run(
                [*self._entering, sys.executable, "-m", "millstream", *arguments], check=False, capture_output=True
            )
            return done.returncode, json.loads(done.stdout.splitlines()[-1])
        printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(printed):
            code = run(arguments)
        printed.flush()
        return code, json.loads(printed.buffer.getvalue().splitlines()[-1])  # type: ignore[attr-defined]

    @property
    def _entering(self) -> list[str]:
        """What a command begins with that runs in the mount namespace of the node."""
        return ["nsenter", "-t", str(self.served.process.pid), "--user", "--mount", "--preserve-credentials"]

    def inside(self, command: str) -> None:
        """Run *command* in the mount namespace of the node."""
        subprocess.run([*self._entering, "sh", "-ec", command], check=True, capture_output=True)

    @contextlib.contextmanager
    def changed_inside(self, cause: str, repair: str) -> Iterator[None]:
        self.inside(cause.replace("NODE", self.parts["place"]))
        yield
        self.inside(repair.replace("NODE", self.parts["place"]))


@contextlib.contextmanager
def plain_node(folder: Path) -> Iterator[Callable[[], RunningNode]]:
    """Makes a view of a served node for each test; its alarms go to a webhook."""
    hook = Hook()
    text = f'{PLAIN}[mill.alarms]\nwebhook = "http://127.0.0.1:{hook.port}/"\n'
    node, clock = make_node(folder / "node", text), folder / "clock"
    with serving(node, broker=True, program=[sys.executable, SHIFTED, str(clock)]) as served:
        yield lambda: RunningNode(node, served, ShiftedClock(clock), {"hook": hook})
    hook.stop()


@contextlib.contextmanager
def mounted_node(folder: Path) -> Iterator[Callable[[], RunningNode]]:
    """A node on a file system of 64 MB in a mount namespace; the store two is mounted from another of 32 MB."""
    source, place = make_node(folder / "source", PLAIN + '[verdict]\nleast_free = "4MB"\n'), folder / "node"
    place.mkdir()
    (folder / "disk").mkdir()
    steps = [
        f"mount -t tmpfs -o size=64m none {place}", f"mount -t tmpfs -o size=32m none {folder}/disk",
        f"cp -a {source}/. {place}", f"mv {place}/stores/two {folder}/disk/two", f"mkdir {place}/stores/two",
        f"sed -i s,{source},{place},g {place}/millstream.toml",
        f"mount --bind {folder}/disk/two {place}/stores/two", f"exec {sys.executable} {SHIFTED} {folder}/clock \"$@\"",
    ]  # fmt: skip
    with serving(place, program=[*PRIVATE, "sh", "-c", " && ".join(steps), "sh"]) as served:
        seen = Path(f"/proc/{served.process.pid}/root{place}")
        parts = {"place": str(place)}
        yield lambda: RunningNode(seen, served, ShiftedClock(folder / "clock"), parts)


@contextlib.contextmanager
def node_on_servers(folder: Path) -> Iterator[Callable[[], RunningNode]]:
    """A node whose log is in MariaDB, whose queues use RabbitMQ, with a store on S3 and messages from Mosquitto."""
    with contextlib.ExitStack() as stack:
        names = ("mariadb", "rabbitmq", "moto", "mosquitto")
        servers = {name: stack.enter_context(services.private(name)) for name in names}
        servers["outbox"] = stack.enter_context(services.private("mariadb"))
        outbox = f"{servers['outbox'].url}shop"
        with connected(outbox, database=False) as server:
            server.execute("CREATE DATABASE shop")
        make_outbox(outbox)
        bucket = S3Server(servers["moto"].url)
        text = (
            f'{PLAIN}[log]\nstore = "{servers["mariadb"].url}faults"\n[queue]\nbroker = "{servers["rabbitmq"].url}"\n'
            f'[stores.three]\nurl = "{bucket.new_url()}"\n'
            f'[serve.ingest.meters]\nurl = "{servers["mosquitto"].url}"\ntopics = ["meters/#"]\n'
            f'[serve.relay.orders]\nurl = "{outbox}"\n'
        )
        node = make_node(folder / "node", text)
        served = stack.enter_context(serving(node))
        yield lambda: RunningNode(node, served, ShiftedClock(folder / "clock"), servers)


@contextlib.contextmanager
def witnessed_node(folder: Path) -> Iterator[Callable[[], RunningNode]]:
    """A node whose ledgers a witness cosigns."""
    node = make_node(folder / "node", PLAIN)
    witness = LocalWitness(folder / "witness", node)
    with (node / "millstream.toml").open("a") as settings:
        settings.write(witness.settings)
    with serving(node) as served:
        yield lambda: RunningNode(node, served, ShiftedClock(folder / "clock"), {"witness": witness})
    witness.kill()


@contextlib.contextmanager
def shared_node(folder: Path) -> Iterator[Callable[[], RunningNode]]:
    """A node whose tables and logs are in PostgreSQL, so that other processes can serve it too."""
    with contextlib.ExitStack() as stack:
        postgresql, rabbitmq = (stack.enter_context(services.private(name)) for name in ("postgresql", "rabbitmq"))
        text = (
            f'{PLAIN}[node]\ndatabase = "{postgresql.url}node"\nlease = "4s"\n'
            f'[log]\nstore = "{postgresql.url}logs"\n[queue]\nbroker = "{rabbitmq.url}"\n'
            f'[anchoring]\ncas = "file://{folder}/cas"\n[verdict]\nlost_member_age = "20s"\n'
        )
        node = make_node(folder / "node", text)
        served = stack.enter_context(serving(node))
        yield lambda: RunningNode(node, served, ShiftedClock(folder / "clock"), {})


NODES = {
    "witnessed": witnessed_node,
    "plain": plain_node,
    "mounts": mounted_node,
    "servers": node_on_servers,
    "shared": shared_node,
}


class Row(NamedTuple):
    """A fault of the table: how it is caused (in words, and as done), the kind and the words that it shows."""

    fault: str
    caused: str
    kind: str
    words: str
    cause: Callable[[RunningNode], contextlib.AbstractContextManager[Any]]
    node: str = "plain"


@contextlib.contextmanager
def _worker_killed(desk: RunningNode) -> Iterator[None]:
    code = (
        "import sys\nfrom millstream.node import Node\nfrom millstream.settings import load_settings\n"
        "node = Node.open(load_settings({'data': sys.argv[1]})[0])\nqueue = node.queues.open('duplication-low')\n"
        "assert queue.lease(1, visibility=60)\nprint(flush=True)\nsys.stdin.read()"
    )
    with dead_queue(desk) as queue:
        queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
    command = [sys.executable, "-c", code, str(desk.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        worker.kill()
        worker.wait()
    yield
    with dead_queue(desk) as queue:
        queue.reclaim()
        queue.ack(queue.lease(1, visibility=60))


@contextlib.contextmanager
def dead_queue(desk: RunningNode) -> Iterator[Any]:
    """The queue of the faults, taken for as long as the block lasts."""
    from millstream.queue import LogWorkQueue, queue_log

    with LogWorkQueue(desk.node.logs.store.log(queue_log("duplication-low")), desk.clock) as queue:
        yield queue


@contextlib.contextmanager
def _alarm_undelivered(desk: RunningNode) -> Iterator[None]:
    hook = desk.parts["hook"]
    hook.stop()
    with FAULTS["a certificate expired"](desk):
        yield
        hook.start()


def _written_elsewhere(desk: RunningNode) -> contextlib.AbstractContextManager[None]:
    def publish() -> None:
        code, answer, _ = desk.served.ask("POST", "/api/v1/logs/orders/messages", {"body": "{}"})
        assert code >= 400 and "is being written by process" in answer["message"], answer

    desk.served.ask("POST", "/api/v1/topics", {"name": "orders"})

    return FAULTS["a log that another process writes"](desk, publish)  # type: ignore[call-arg]


@contextlib.contextmanager
def _served_twice(desk: RunningNode) -> Iterator[None]:
    with serving(desk.folder):
        yield
    until(lambda: (found := find_serving_node(desk.folder)) and found.pid == desk.served.process.pid)


def _then_repaired(fault: str) -> Callable[[RunningNode], contextlib.AbstractContextManager[None]]:
    """The *fault*; at its end workers take the repairs that the check has queued, which else would become too old."""

    @contextlib.contextmanager
    def cause(desk: RunningNode) -> Iterator[None]:
        with FAULTS[fault](desk):
            yield
        desk.command("mill", "work", "--drain")

    return cause


@contextlib.contextmanager
def _witness_killed(desk: RunningNode) -> Iterator[None]:
    desk.parts["witness"].kill()
    anchor(desk.node, 92_000)
    yield
    desk.parts["witness"].start()


@contextlib.contextmanager
def _ledger_forked(desk: RunningNode) -> Iterator[None]:
    with another_history(desk) as other:
        ask_witness(other)
    anchor(desk.node, 94_000)
    yield
    desk.parts["witness"].kill()
    desk.parts["witness"].start(anew=True)


def another_member(desk: RunningNode, *program: str) -> Served:
    """A second process that serves the node, from a folder of its own."""
    folder = desk.folder.with_name("another")
    folder.mkdir(exist_ok=True)
    shutil.copy(desk.folder / "millstream.toml", folder)
    return Served(folder, program=program)


@contextlib.contextmanager
def _member_killed(desk: RunningNode) -> Iterator[None]:
    other = another_member(desk)
    other.process.kill()
    yield
    other.end()


@contextlib.contextmanager
def _role_unowned(desk: RunningNode) -> Iterator[None]:
    (member,) = desk.node.databases.members.table.alive()
    desk.command("node", "drain", member.id)
    yield
    desk.command("node", "drain", member.id, "--cancel")


def _member_of(change: str) -> Callable[[RunningNode], contextlib.AbstractContextManager[None]]:
    """A second member that executes the Python statements *change* before it serves."""
    code = f"import os, sys, millstream\n{change}\nfrom millstream.cli.main import run\nsys.exit(run(sys.argv[1:]))"

    @contextlib.contextmanager
    def cause(desk: RunningNode) -> Iterator[None]:
        other = another_member(desk, sys.executable, "-c", code)
        yield
        assert other.end() == 0

    return cause


def _stopped(name: str) -> Callable[[RunningNode], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def cause(desk: RunningNode) -> Iterator[None]:
        desk.parts[name].kill()
        yield
        desk.parts[name].start()
        if name == "moto":
            S3Server(desk.parts[name].url)  # it keeps nothing: the bucket is made again

    return cause


def _frozen(name: str) -> Callable[[RunningNode], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def cause(desk: RunningNode) -> Iterator[None]:
        processes = desk.parts[name].processes
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
        for process in processes:
            os.kill(process, signal.SIGCONT)

    return cause


def _inside(cause: str, repair: str) -> Callable[[RunningNode], contextlib.AbstractContextManager[None]]:
    return lambda desk: desk.changed_inside(cause, repair)


@contextlib.contextmanager
def _disk_filling(desk: RunningNode) -> Iterator[None]:
    """A pace is known after ten minutes: those pass by the clock, and what fills the disk is real."""
    desk.clock.advance(1200)
    with desk.changed_inside("head -c 12M /dev/zero > NODE/filler", "rm NODE/filler"):
        yield


def rows(documented: Mapping[str, list[str]]) -> list[Row]:
    """The table; *documented* has the words of the faults that are caused as on a node that is not served."""
    own = {
        **{fault: (documented[fault][0], _then_repaired(fault)) for fault in ("a forged copy", "a deleted copy")},
        "a worker killed": ("`kill -9` of a process that has leased a task", _worker_killed),
        "a second process that serves the folder": ("a second `millstream serve`", _served_twice),
        "a log that another process writes": (
            "a second process that holds the log of a topic; then a message is sent",
            _written_elsewhere,
        ),
    }
    by_mounts = {
        "a store not mounted", "a store read-only", "the disk of a store full", "the disk of the node full",
        "the folder of the node read-only",
    }  # fmt: skip
    by_servers = {"a store that hangs", "the MQTT broker stopped"}
    by_members = {
        "a member lost", "a role without an owner", "members of different versions", "members with different settings",
    }  # fmt: skip
    by_witness = {"a witness that does not answer", "a ledger that was forked"}
    elsewhere = (
        by_mounts
        | by_servers
        | by_witness
        | by_members
        | {"a disk that fills", "an alarm that is not delivered", "messages not batched"}
        | {
            "a role suspended"
        }  # caused within the process alone: tests/cli/test_node_members.py has it with real errors
    )
    late = ("moving the clock", "a batch", "ending the batch service")
    found = []
    for fault, (caused, kind, words, _) in documented.items():
        if fault not in elsewhere:
            how, cause = own.get(fault, (caused, FAULTS[fault]))
            found.append(Row(fault, how, kind.strip("`"), words, cause))
    found.sort(key=lambda row: row.caused.startswith(late))  # these let hours pass
    filled, full = "a file that fills the disk, in a mount namespace", "the disk of the {} has .* free"
    fill = "head -c 200M /dev/zero > {} 2>/dev/null || true"
    unmount, mount = "umount NODE/stores/two", "mount --bind NODE/../disk/two NODE/stores/two"
    read_only, writable = (f"mount -o remount,bind,{mode} NODE/stores/two" for mode in ("ro", "rw"))
    return [
        *(row for row in found if row.kind != "held"),
        Row("an alarm that is not delivered", "a webhook that refuses connections, and an expired certificate",
            "alarm-undelivered", "1 alarm was not delivered: the webhook at 127.0.0.1", _alarm_undelivered),
        *(row for row in found if row.kind == "held"),  # the last: its items stay away
        Row("a store not mounted", "`umount` in a mount namespace", "store-not-mounted",
            documented["a store not mounted"][2], _inside(unmount, mount), "mounts"),
        Row("a store read-only", "`mount -o remount,ro` in a mount namespace", "store-read-only",
            "nothing can be written to the store two: .*Read-only", _inside(read_only, writable), "mounts"),
        Row("the disk of a store full", filled, "store-full", full.format("store two"),
            _inside(fill.format("NODE/../disk/filler"), "rm NODE/../disk/filler"), "mounts"),
        Row("the disk of the node full", filled, "disk", full.format("data folder"),
            _inside(fill.format("NODE/filler"), "rm NODE/filler"), "mounts"),
        Row("a disk that fills", "moving the clock by 20 minutes, and a file of 12 MB in a mount namespace",
            "disk-filling", r"the disk .* \(data folder, .*\) is full in \d", _disk_filling, "mounts"),
        Row("a witness that does not answer", "`kill -9` of its process, then an anchor", "cosignatures-missing",
            documented["a witness that does not answer"][2], _witness_killed, "witnessed"),
        Row("a ledger that was forked", documented["a ledger that was forked"][0], "ledger-forked",
            documented["a ledger that was forked"][2], _ledger_forked, "witnessed"),
        Row("a member lost", "`kill -9` of a second `millstream serve`", "member-lost", documented["a member lost"][2],
            _member_killed, "shared"),
        Row("members of different versions", "a second `millstream serve` of another version", "member-versions",
            documented["members of different versions"][2], _member_of("millstream.__version__ = '0.0.9'"), "shared"),
        Row("members with different settings", "a second `millstream serve` with another `mill.account`",
            "member-settings", r"members have different settings: mill \(.* differs from .*\)",
            _member_of("os.environ['MILLSTREAM_MILL__ACCOUNT'] = 'other'"), "shared"),
        Row("a role without an owner", "draining the only member", "role-unowned",
            "no member runs the role upkeep, which 1 member offers; all of them drain", _role_unowned, "shared"),
        Row("the database stopped", "`kill -9` of MariaDB, which has the log", "database",
            "the database of logs cannot be reached: ",
            _stopped("mariadb"), "servers"),
        Row("the database hangs", "`kill -STOP` of MariaDB, which has the log", "unknown", ": not updated since",
            _frozen("mariadb"), "servers"),
        Row("the broker of the queues stopped", "`kill -9` of RabbitMQ", "queue-broker", "cannot be reached: ",
            _stopped("rabbitmq"), "servers"),
        Row("the MQTT broker stopped", "`kill -9` of Mosquitto", "ingest-disconnected",
            "the MQTT broker whose messages go into the log meters is not connected", _stopped("mosquitto"), "servers"),
        Row("the database of an outbox stopped", "`kill -9` of a second MariaDB, which has the outbox", "outbox",
            "the database of the outbox whose rows go into the log orders cannot be reached: ", _stopped("outbox"),
            "servers"),
        Row("the server of a store stopped", "`kill -9` of an S3 server", "store-unreachable",
            "the store three cannot be used: ", _stopped("moto"), "servers"),
        Row("a store that hangs", "`kill -STOP` of an S3 server", "unknown", "the store three: no answer since",
            _frozen("moto"), "servers"),
    ]  # fmt: skip
