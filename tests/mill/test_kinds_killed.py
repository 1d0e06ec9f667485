"""Promise P6 for each kind of task: real workers are killed in the midst of tasks, and all ends as if none had been.

At the long size there are 5,000 tasks of each kind, and 60 kills.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import Log
from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.merge_join import groups
from millstream.mill.tasks import BitCheck, QueueName, Repair, Task, encode_task
from millstream.node import Node
from millstream.queue import queue_log
from millstream.queue.events import PUT, Acked, Died, Leased, Nacked, read_event
from millstream.settings import Settings, load_settings
from millstream.stores import ItemInfo, LocalStore, all_entries
from millstream.stores.audit import AuditAction
from millstream.stores.bulk import NewItem, bulk_of
from millstream.testing.damage import flip_bit
from suite.sizes import SIZE, sized

pytestmark = pytest.mark.crash

WORKER = """
import os, signal, sys, threading
from millstream.cli.main import run
from millstream.mill.task_processor import ProcessorRegistry

left, seconds = int(sys.argv[1]), float(sys.argv[2])

def mortal(act):
    def begin(registry, what, *more):
        global left
        left -= len(what) if isinstance(what, list) else 1
        if left >= 0:
            return act(registry, what, *more)
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        act(registry, what, *more)
        threading.Event().wait()  # for the kill: else a fast worker has settled everything before
    return begin

ProcessorRegistry.process = mortal(ProcessorRegistry.process)
ProcessorRegistry.process_group = mortal(ProcessorRegistry.process_group)
sys.exit(run(sys.argv[3:]))
"""
"""``millstream``, killed so many seconds after it has begun so many tasks, of which the last ones do not end before."""

THREADS = 4


class KilledMill:
    """A node with two audited stores, of which a policy keeps "two" like "one", and a worker that is killed."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.draw = random.Random(count)
        self.bodies = {f"{n % 7}/item {n:05d}": self.draw.randbytes(self.draw.randrange(1, 3000)) for n in range(count)}
        (folder / "policies").mkdir(parents=True)
        (folder / "policies" / "duplication-accounts.json").write_text('["local"]')
        pair = {"srcStoreId": "one", "destStoreId": "two"}
        (folder / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
        lines = [f'[stores.{name}]\nurl = "file://{folder}/stores/{name}"\naudited = true\n' for name in ("one", "two")]
        (folder / "millstream.toml").write_text("\n".join([*lines, f"[mill]\nworkers = {THREADS}\n"]))
        for name in ("one", "two"):
            LocalStore(folder / "stores" / name)
        with self.opened() as node:
            bulk = bulk_of(node.stores.providers["one"])
            assert bulk is not None
            node.stores.providers.make_space("one", "s")
            for some in groups(self.bodies.items(), 500):
                new = [NewItem(name, body, hashlib.sha256(body).hexdigest()) for name, body in some]
                assert all(isinstance(one, ItemInfo) for one in bulk.put("s", new))

    @property
    def settings(self) -> Settings:
        return load_settings({"data": str(self.folder)})[0]

    def opened(self) -> Node:
        return Node.open(self.settings)

    def path(self, name: str) -> Path:
        return LocalStore(self.folder / "stores" / "two").path_of("s", name)

    def put(self, queue: QueueName, tasks: list[Task]) -> None:
        with self.opened() as node:
            node.queues.open(queue).put([encode_task(task) for task in tasks])

    def drain(self, *queues: str) -> None:
        assert run(["mill", "work", *queues, "--drain", "--data", str(self.folder)]) == 0

    def kill_workers(self, queue: QueueName, kills: int) -> int:
        """Start a worker on *queue* again and again, until *kills* were killed in a task; what they left open, in all.

        A kill counts where tasks are left that the worker had leased and not settled.
        """
        left = killed = 0
        with self.opened() as node:
            log, outbox = node.logs.store.log(queue_log(queue)), node.stores.outbox
            while killed < kills:
                before = log.last_id
                limits = [str(self.draw.randrange(30)), f"{self.draw.uniform(0, 0.03):.6f}"]
                command = ["mill", "work", queue, "--drain", "--data", str(self.folder)]
                done = subprocess.run(
                    [sys.executable, "-c", WORKER, *limits, *command], capture_output=True, timeout=300, check=False
                )
                assert done.returncode == -signal.SIGKILL, done.stderr
                killed += bool(_leased(log, before))
                left += len(outbox.open_intents(others=True))
        return left


def _events(log: Log, after: int) -> Iterator[object]:
    for batch in log.read(after + 1, log.last_id, gaps="none"):
        yield from (read_event(message) for message in batch if message.key != PUT)


def _leased(log: Log, after: int) -> set[int]:
    """The tasks that were leased after the message *after* of the queue's log, and not settled since."""
    leased: set[int] = set()
    for event in _events(log, after):
        if isinstance(event, Leased):
            leased.update(event.ids)
        elif isinstance(event, Acked | Nacked | Died):
            leased.difference_update(event.ids)
    return leased


def _dead_drafts(folder: Path) -> Iterator[Path]:
    """The folders with drafts whose writers have ended."""
    for lock in folder.rglob(".millstream/drafts/*.lock"):
        with lock.open("rb") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock


def duplication(mill: KilledMill, kills: int) -> int:
    """Every item is copied; the tasks are those that the audit of the source has made."""
    mill.drain("audit")
    return mill.kill_workers(QueueName.DUPLICATION_HIGH, kills)


def audit(mill: KilledMill, kills: int) -> int:
    """Every item that was put is on its way to the audit log."""
    return mill.kill_workers(QueueName.AUDIT, kills)


def check(mill: KilledMill, kills: int) -> int:
    """Every copy is checked; one in fifty is damaged. (A missing one is looked at again after minutes.)"""
    mill.drain()
    for name in list(mill.bodies)[::50]:
        flip_bit(mill.path(name))
    mill.put(QueueName.BIT_INTEGRITY, [BitCheck("two", "s", name) for name in mill.bodies])
    left = mill.kill_workers(QueueName.BIT_INTEGRITY, kills)
    mill.drain(QueueName.BIT_INTEGRITY.value)  # before repairs, which may be told of damage that is not recorded yet
    return left


def repair(mill: KilledMill, kills: int) -> int:
    """Every copy is damaged, and repaired."""
    mill.drain()
    for name in mill.bodies:
        flip_bit(mill.path(name))
    mill.put(QueueName.REPAIR, [Repair("s", name, "B3") for name in mill.bodies])
    return mill.kill_workers(QueueName.REPAIR, kills)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", [duplication, audit, check, repair])
def test_p6_workers_are_killed_in_tasks_of_each_kind_and_every_one_ends_right_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: Callable[[KilledMill, int], int]
) -> None:
    count, kills = sized(quick=(200, 2), ci=(300, 4), long=(5_000, 60))
    mill = KilledMill(tmp_path / "node", count)
    left = kind(mill, kills)
    mill.drain()
    capfd.readouterr()
    assert run(["mill", "reconcile", "--data", str(mill.folder)]) == 0 and capfd.readouterr().out == ""
    with mill.opened() as node:
        log, stores = node.mill.audit.log, node.stores
        assert stores.outbox.open_intents(others=True) == [] and stores.outbox.events() == []
        for name in QueueName:
            assert (node.queues.open(name).depth().open, node.queues.open(name).dead()) == (0, [])
        for store in ("one", "two"):
            added = Counter(e.content_id for e in log.events(store, "s") if e.action == AuditAction.ADD_CONTENT)
            again = {"repair": set(mill.bodies), "check": set(list(mill.bodies)[::50])}.get(kind.__name__, set())
            expected = {name: 2 if store == "two" and name in again else 1 for name in mill.bodies}
            assert added == expected, "an event for every copy that was made, and for every repair"
            for name, body in mill.bodies.items():
                assert LocalStore(mill.folder / "stores" / store).path_of("s", name).read_bytes() == body
                row = stores.manifest.get(store, "s", name)
                assert row is not None and row.sha256 == hashlib.sha256(body).hexdigest()
        if kind is check:
            checked = {(one.content_id, one.verdict.value) for one in node.mill.checks.bit_log.results("two", "s")}
            damaged = list(mill.bodies)[::50]
            assert checked >= {(name, "FAILURE" if name in damaged else "SUCCESS") for name in mill.bodies}
            assert all(verdict == "SUCCESS" or name in damaged for name, verdict in checked)
        if kind is repair:
            healed = Counter(event.content_id for event in node.mill.repairs.log.last(10 * count) if event.healed)
            assert healed == dict.fromkeys(mill.bodies, 1), "each repair was recorded once"
        two = LocalStore(mill.folder / "stores" / "two")
        aside = [one.content_id for one in all_entries(two, QUARANTINE)] if two.has_space(QUARANTINE) else []
        events = Counter(e.content_id for e in log.events("two", QUARANTINE) if e.content_id)
        assert events == Counter(aside), "each quarantined copy was recorded once"
    assert list(_dead_drafts(mill.folder / "stores")) == []
    with capfd.disabled() if SIZE == "long" else contextlib.nullcontext():
        print(f"{kind.__name__}: {count:,} tasks, {kills} kills, {left} changes left open by them")


UNRECORDED = """
import os, signal, sys
from millstream.cli.main import run
from millstream.mill.repair.repair_log import RepairLog

RepairLog.end = lambda log, begun, event: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(run(sys.argv[1:]))
"""
"""``millstream``, killed when it has repaired a copy and is to record that."""


def test_repairs_of_workers_that_are_killed_before_they_record_them_are_in_the_log_once(tmp_path: Path) -> None:
    mill = KilledMill(tmp_path / "node", 12)
    mill.drain()
    for name in mill.bodies:
        flip_bit(mill.path(name))
    mill.put(QueueName.REPAIR, [Repair("s", name, "B3") for name in mill.bodies])
    command = [sys.executable, "-c", UNRECORDED, "mill", "work", "repair", "--drain", "--data", str(mill.folder)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with mill.opened() as node:
        assert node.mill.repairs.log.left() and not node.mill.repairs.log.last()
    mill.drain()
    with mill.opened() as node:
        healed = Counter(event.content_id for event in node.mill.repairs.log.last(1000) if event.healed)
        assert (healed, node.mill.repairs.log.left()) == (dict.fromkeys(mill.bodies, 1), [])
