"""A small node on which all is well, and the faults that befall it, each caused and mended on real folders."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from copy_faults import (
    deleted,
    forged,
    held_plan,
    not_configured,
    policy_broken,
    rejected_plan,
    report_absent,
    report_incomplete,
    report_stale,
    uncovered,
    vanished,
)
from ledger_faults import ledger_key_lost, ledger_stuck
from witness_faults import ledger_forked, witness_away

from millstream import __version__
from millstream.anchoring.batch_records import decode_message
from millstream.cli.main import run
from millstream.core.clock import MICROSECONDS, SystemClock, VirtualClock
from millstream.core.message import Message
from millstream.core.metric_collection.hook import LabelledMetrics
from millstream.log import LogSpec, WriterBusyError
from millstream.messaging.broker.storage.topic import Topic, TopicSpec
from millstream.mill.policies.policy import policy_file
from millstream.mill.tasks import BitError, Duplicate, encode_task
from millstream.node import Node
from millstream.node.databases import DatabasesPart
from millstream.node.members.membership import Membership
from millstream.node.members.node_members import NodeMembers
from millstream.node.members.shared_settings import shared_settings
from millstream.queue import LogWorkQueue, queue_log
from millstream.settings import load_settings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.serving_node import announced
from millstream.status.verdict.alarms import verdict_alarms
from millstream.status.verdict.models import Verdict
from millstream.stores import LocalStore
from millstream.testing.batches import CONFIG, make_batches
from support.certificates import Authority

HOUR = 3600

SETTINGS = """
[stores.one]
url = "file://{data}/stores/one"
[stores.two]
url = "file://{data}/stores/two"
[serve.batching]
readings = "readings.batches"
[mill.change_guard]
least = 1
[mill.alarms]
command = ["sh", "-c", "test -e $MILLSTREAM_TEST_RECEIVER"]
[broker]
tls_certificate = "FOLDER/broker.pem"
tls_key = "FOLDER/broker.key"
"""

FREE = 50_000_000_000


def write_settings(folder: Path, text: str = SETTINGS) -> None:
    """Write *text* as the settings of the node in *folder*."""
    (folder / "millstream.toml").write_text(text.replace("FOLDER", str(folder)))


def make_node(folder: Path, settings_text: str = SETTINGS) -> Path:
    """A node in *folder* with three copied and checked items, batches that are anchored, and a log that is read."""
    folder.mkdir()
    write_settings(folder, settings_text)
    Authority(folder).issue("broker")
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings, create=True) as node:
        store = node.stores.providers["one"]
        store.create_space("photos")
        for name in ("a", "b", "c"):
            store.put("photos", name, io.BytesIO(name.encode() * 100))
        node.anchoring.batch_writer.add("weather", list(make_batches(3)), config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)
        log = node.logs.store.log(LogSpec("weather"))
        with log.writer() as writer:
            writer.append([decode_message(line) for line in next(make_batches(1)).lines.splitlines()])
        log.set_pointer("reader", log.last_id)
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "duplication-accounts.json").write_text('["local"]')
    pairs = [{"srcStoreId": "one", "destStoreId": "two"}]
    (policies / policy_file("local")).write_text(json.dumps({"spaceDuplicationStorePolicies": {"photos": pairs}}))
    assert run(["mill", "duplicate", "--data", str(folder)]) == 0
    assert run(["mill", "check", "--data", str(folder)]) == 0
    return folder


class FaultyNode:
    """The node in *folder*, watched on a clock that the test moves. Each public method is a fault: it causes it, and
    what it yields for is mended at its end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.clock = VirtualClock(SystemClock().now())
        self.free: dict[str, int] = {}
        self.open()

    def open(self, more: str = "") -> None:
        """Open the node with the settings of all tests, and with *more*."""
        write_settings(self.folder, SETTINGS + more)
        settings, _ = load_settings({"data": str(self.folder)})
        self.node = Node.open(settings, self.clock)
        self.poller = StatusPoller(NodeView(self.node), free_bytes=lambda path: self.free.get(path.name, FREE))

    def reopen(self, more: str) -> None:
        """End the node, and open it with *more* settings."""
        self.node.close()
        self.open(more)

    def seconds_until(self, holds: Callable[[Verdict], bool], most: int = 60, *, may_fail: bool = False) -> int:
        """How many seconds on the node's clock it takes until the verdict *holds*, where each look comes as late as its
        pauses allow: it has just been over when something happens. With *may_fail* a look that fails is kept for the
        verdict, as in a node that serves."""
        due = {name: self.clock.monotonic() + pause() for name, (_, pause) in self.poller.looks.items()}
        for second in range(most + 1):
            for name, (look, pause) in self.poller.looks.items():
                if self.clock.monotonic() >= due[name]:
                    self.poller._attempt(name, look) if may_fail else look()
                    due[name] = self.clock.monotonic() + pause()
            if holds(self.poller.judge_known()):
                return second
            self.clock.advance(1)
        raise AssertionError(f"not after {most} s: {self.poller.judge_known()}")

    def command(self, *arguments: str) -> None:
        """A command of an operator on this node."""
        run([*arguments, "--data", str(self.folder)])

    @property
    def two(self) -> Path:
        """The folder of the store with the copies."""
        return self.folder / "stores" / "two"

    @contextlib.contextmanager
    def moved(self, path: Path) -> Iterator[None]:
        aside = self.folder / "aside"
        path.rename(aside)
        try:
            yield
        finally:
            if path.exists():
                path.rmdir()
            aside.rename(path)


Fault = Callable[[FaultyNode], contextlib.AbstractContextManager[Any]]


def moved_away(desk: FaultyNode) -> contextlib.AbstractContextManager[None]:
    return desk.moved(desk.two)


@contextlib.contextmanager
def not_mounted(desk: FaultyNode) -> Iterator[None]:
    with desk.moved(desk.two):
        desk.two.mkdir()
        yield


@contextlib.contextmanager
def space_gone(desk: FaultyNode) -> Iterator[None]:
    store = LocalStore(desk.two)
    store.create_space("more")
    store.put("more", "x", io.BytesIO(b"x"))
    with desk.moved(desk.two / "photos"):
        yield
    store.delete("more", "x")
    store.delete_space("more")


@contextlib.contextmanager
def read_only(desk: FaultyNode, name: str) -> Iterator[None]:
    """The folder *name* is."""
    real = os.open

    def refused(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE and Path(path).name == name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *more, **named)

    with desk._patch.context() as patch:
        patch.setattr(os, "open", refused)
        yield


@contextlib.contextmanager
def hanging(desk: FaultyNode) -> Iterator[None]:
    store, mended = dict(desk.node.stores.providers.items())["two"], threading.Event()
    real = type(store).spaces

    def spaces(self: Any) -> Any:
        if self.url == store.url and not mended.is_set():
            desk.clock.advance(11)  # longer than the store may take
            mended.wait(60)
        return real(self)

    with desk._patch.context() as patch:
        patch.setattr(type(store), "spaces", spaces)
        yield
        mended.set()


@contextlib.contextmanager
def store_full(desk: FaultyNode) -> Iterator[None]:
    desk.free["two"] = 1_000_000
    yield
    desk.free.clear()


@contextlib.contextmanager
def disk_full(desk: FaultyNode) -> Iterator[None]:
    desk.free[desk.folder.name] = 1_000_000
    yield
    desk.free.clear()


@contextlib.contextmanager
def disk_filling(desk: FaultyNode) -> Iterator[None]:
    desk.poller.sample()
    desk.clock.advance(1200)
    desk.free[desk.folder.name] = FREE // 4
    yield
    desk.free.clear()


@contextlib.contextmanager
def dead_letters(desk: FaultyNode) -> Iterator[None]:
    queue = desk.node.queues.open("duplication-low")
    queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
    (lease,) = queue.lease(1, visibility=60)
    queue.dead_letter(lease, cause="no permission")
    yield
    queue.discard([lease.task_id])


@contextlib.contextmanager
def waits(desk: FaultyNode) -> Iterator[None]:
    queue = desk.node.queues.open("duplication-low")
    queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
    desk.clock.advance(25 * HOUR)
    yield
    queue.ack(queue.lease(1, visibility=60))


@contextlib.contextmanager
def no_worker(desk: FaultyNode) -> Iterator[None]:
    log = desk.node.logs.store.log(queue_log("duplication-low"))
    with LogWorkQueue(log, desk.clock) as queue:
        queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
    desk.clock.advance(120)
    yield
    with LogWorkQueue(log, desk.clock) as queue:
        queue.ack(queue.lease(1, visibility=60))


@contextlib.contextmanager
def undecided(desk: FaultyNode) -> Iterator[None]:
    queue = desk.node.queues.open("bit-error")
    queue.put([encode_task(BitError("two", "photos", "b", "B7", "no majority"))])
    yield
    queue.ack(queue.lease(1, visibility=60))


@contextlib.contextmanager
def no_owner(desk: FaultyNode) -> Iterator[None]:
    log = desk.node.logs.store.log(queue_log("duplication-low"))
    with LogWorkQueue(log, desk.clock) as queue:
        queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
        assert queue.lease(1, visibility=60)
    yield
    desk.clock.advance(61)
    with LogWorkQueue(log, desk.clock) as queue:
        queue.ack(queue.lease(1, visibility=60))


@contextlib.contextmanager
def consumer_behind(desk: FaultyNode) -> Iterator[None]:
    log = desk.node.logs.store.log(LogSpec("weather"))
    with log.writer() as writer:
        writer.append([Message(b"{}")])
    desk.clock.advance(2 * HOUR)
    yield
    log.set_pointer("reader", log.last_id)


@contextlib.contextmanager
def not_batched(desk: FaultyNode) -> Iterator[None]:
    log = desk.node.logs.store.log(LogSpec("readings"))
    with log.writer() as writer:
        writer.append([Message(b"{}", key="k", source="s") for _ in range(3)])
    desk.clock.advance(2 * HOUR)
    yield
    from millstream.batching.ticks import idle_log_ticker

    service = desk.node.batching.service("readings", "readings.batches", ticks=idle_log_ticker(log, desk.clock))
    service.step()
    while service.tick():
        service.step()
    service.close()


@contextlib.contextmanager
def not_batched_elsewhere(desk: FaultyNode) -> Iterator[None]:
    from millstream.batching.ticks import idle_log_ticker

    log = desk.node.logs.store.log(LogSpec("events"))

    def serve() -> None:
        service = desk.node.batching.service("events", "events.batches", ticks=idle_log_ticker(log, desk.clock))
        service.step()
        while service.tick():
            service.step()
        service.close()

    def put() -> None:
        with log.writer() as writer:
            writer.append([Message(b"{}", key="k", source="s")])
        desk.clock.advance(2 * HOUR)

    put()
    serve()  # as `millstream batch serve` of another process does; then that is killed
    put()
    yield
    serve()


@contextlib.contextmanager
def clock_forward(desk: FaultyNode) -> Iterator[None]:
    desk.clock.jump(2 * HOUR)
    yield
    desk.clock.jump(-2 * HOUR)


@contextlib.contextmanager
def certificate_until(desk: FaultyNode, days: float) -> Iterator[None]:
    now = datetime.fromtimestamp(desk.clock.now() / MICROSECONDS, UTC)
    Authority(desk.folder).issue("broker", now + timedelta(days=days))
    yield
    Authority(desk.folder).issue("broker")


@contextlib.contextmanager
def alarm_undelivered(desk: FaultyNode) -> Iterator[None]:
    monitor = desk.node.mill.monitor(others=lambda: verdict_alarms(desk.poller.judge_known(), ()))
    with desk._patch.context() as patch, dead_letters(desk):
        desk.seconds_until(lambda verdict: not verdict.ok)
        patch.setenv("MILLSTREAM_TEST_RECEIVER", str(desk.folder / "nowhere"))
        monitor.look()
        yield
        patch.setenv("MILLSTREAM_TEST_RECEIVER", str(desk.folder))
        monitor.look()


@contextlib.contextmanager
def ingest_disconnected(desk: FaultyNode) -> Iterator[None]:
    metrics = LabelledMetrics(desk.node.metrics, log="readings")
    metrics.gauge("ingest_connected", 0)
    yield
    metrics.gauge("ingest_connected", 1)


@contextlib.contextmanager
def role_suspended(desk: FaultyNode) -> Iterator[None]:
    suspended = desk.node.logs.suspended_roles
    suspended["cosignatures"] = "the database has no free space"
    yield
    del suspended["cosignatures"]


@contextlib.contextmanager
def served_twice(desk: FaultyNode) -> Iterator[None]:
    code = (
        "import pathlib, sys\nfrom millstream.status.serving_node import announced\n"
        "with announced(pathlib.Path(sys.argv[1]), '127.0.0.1', 9): print(flush=True), sys.stdin.read()"
    )
    with announced(desk.folder, "127.0.0.1", 9):
        command = [sys.executable, "-c", code, str(desk.folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline()
            yield
            other.communicate()


@contextlib.contextmanager
def written_elsewhere(desk: FaultyNode, ask: Callable[[], object] | None = None) -> Iterator[None]:
    """Another process holds the log of the topic `orders`; the broker of this node wants to write to it."""
    code = (
        "import sys\nfrom millstream.log import LogSpec, open_store\nwith open_store(sys.argv[1]) as store,"
        " store.log(LogSpec('orders', kind='topic')).writer(): print(flush=True), sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, desk.node.logs.store.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        if ask is None:
            with pytest.raises(WriterBusyError):
                Topic(TopicSpec("orders"), desk.node.logs.store)
        else:
            ask()
        yield
        other.communicate()


def join(desk: FaultyNode, *roles: str, version: str = __version__) -> Membership:
    """A member of the node that offers *roles*; its heartbeats are calls of its table."""
    desk._patch.setattr(NodeMembers, "is_shared", True)
    desk._patch.setattr(DatabasesPart, "_server", property(lambda databases: databases.own))
    membership = desk.node.databases.members.membership({role: role for role in roles}, {})
    membership.details = msgspec.structs.replace(membership.details, version=version)
    membership.join()
    return membership


@contextlib.contextmanager
def member_lost(desk: FaultyNode) -> Iterator[None]:
    join(desk)
    desk.clock.advance(16)
    yield
    desk.clock.advance(HOUR)


@contextlib.contextmanager
def role_unowned(desk: FaultyNode) -> Iterator[None]:
    member = join(desk, "upkeep")
    desk.clock.advance(31)
    member.table.renew(member.id, member.details, [])
    yield
    lease = member.leases.acquire("upkeep")
    assert lease is not None
    member.leases.write(lease, unowned_since=lambda _: None)
    member.table.renew(member.id, member.details, ["upkeep"])


@contextlib.contextmanager
def member_versions(desk: FaultyNode) -> Iterator[None]:
    _, other = join(desk), join(desk, version="0.0.9")
    yield
    other.table.leave(other.id)


@contextlib.contextmanager
def member_settings(desk: FaultyNode) -> Iterator[None]:
    _, other = join(desk), join(desk)
    known = desk.node.settings
    alone = msgspec.structs.replace(known, stores={"one": known.stores["one"]})
    other.details = msgspec.structs.replace(other.details, settings=shared_settings(alone))
    assert other.renew()
    yield
    other.table.leave(other.id)


@contextlib.contextmanager
def clock_off(desk: FaultyNode) -> Iterator[None]:
    desk.clock.jump(-2 * HOUR)
    yield
    desk.clock.jump(2 * HOUR)


FAULTS: dict[str, Fault] = {
    "a store moved away": moved_away,
    "a store not mounted": not_mounted,
    "a space of a store gone": space_gone,
    "a store read-only": functools.partial(read_only, name="two"),
    "a store that hangs": hanging,
    "the disk of a store full": store_full,
    "the disk of the node full": disk_full,
    "the folder of the node read-only": functools.partial(read_only, name="node"),
    "a disk that fills": disk_filling,
    "a stale report": report_stale,
    "an incomplete report": report_incomplete,
    "no report": report_absent,
    "a forged copy": forged,
    "a deleted copy": deleted,
    "a space without a policy": uncovered,
    "a store removed from the settings": not_configured,
    "a policy that cannot be read": policy_broken,
    "an item gone from its source": vanished,
    "a plan that was rejected": rejected_plan,
    "a plan that is held": held_plan,
    "dead letters": dead_letters,
    "a task that nobody works on": waits,
    "tasks without a worker": no_worker,
    "a finding for people": undecided,
    "a worker killed": no_owner,
    "a consumer behind": consumer_behind,
    "messages not batched": not_batched,
    "messages not batched, the service in another process": not_batched_elsewhere,
    "the ledger stuck": ledger_stuck,
    "the key of a ledger lost": ledger_key_lost,
    "a witness that does not answer": witness_away,
    "a ledger that was forked": ledger_forked,
    "the MQTT broker stopped": ingest_disconnected,
    "the clock set back": clock_off,
    "the clock set forward": clock_forward,
    "a certificate about to expire": functools.partial(certificate_until, days=3),
    "a certificate expired": functools.partial(certificate_until, days=-3),
    "an alarm that is not delivered": alarm_undelivered,
    "a role suspended": role_suspended,
    "a second process that serves the folder": served_twice,
    "a log that another process writes": written_elsewhere,
    "a member lost": member_lost,
    "a role without an owner": role_unowned,
    "members of different versions": member_versions,
    "members with different settings": member_settings,
}
"""How each row of the table in ``docs/explanation/verdict.md`` is caused, and mended at the end of its block."""
