"""Workers whose file work is done by processes of its own: they are killed, and nothing is lost or made up."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.bench.processes import children
from millstream.core.clock import SystemClock, VirtualClock
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.audit.audit_queue import AuditQueue
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.merge_join import groups
from millstream.mill.policies.policy import Pair
from millstream.mill.policies.repository import Policies
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Audit, BitCheck, Duplicate, QueueName, encode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import ItemInfo, LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import NewItem
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.testing.waiting import until
from suite.sizes import sized

PROGRAM = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
CLOCK = SystemClock()


@contextlib.contextmanager
def hunted(pids: Callable[[], list[int]], seed: int, pause: float) -> Iterator[list[int]]:
    """Kill one of *pids* again and again, up to *pause* seconds later, while the block runs; gives those killed."""
    draw, over, killed = random.Random(seed), threading.Event(), list[int]()

    def hunt() -> None:
        while not over.wait(draw.uniform(0, pause)):
            if found := pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid := draw.choice(found), signal.SIGKILL)
                    killed.append(pid)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        over.set()
        hunter.join()


def helpers(pid: int) -> list[int]:
    """The processes that do file work for *pid*."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            if b"millstream.stores.processes.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.smoke
@pytest.mark.crash
@pytest.mark.parametrize("hunting", [False, True])
def test_p6_every_copy_is_made_proven_and_audited_once_whoever_of_the_processes_is_killed(
    new_world: Callable[..., Any], tmp_path: Path, hunting: bool
) -> None:
    count, draw = sized(ci=1_200, long=20_000), random.Random(7)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'audit.db'}", connect_args={"timeout": 60})
    outbox, log = AuditOutbox(engine, VirtualClock()), AuditLog(engine)
    with BulkProcesses(3, worth=1) as processes:
        one, two = (LocalStore(tmp_path / name, processes=processes) for name in "12")
        world = new_world({"1": one, "2": AuditedStore(two, outbox, "2")})
        bodies = {f"{n % 7}/item {n}": draw.randbytes(draw.randrange(1, 6000)) for n in range(count)}
        fill(one, bodies)
        low, audit = world.queue("low"), AuditQueue(world.queue("audit"), outbox)
        low.put([encode_task(Duplicate("1", "2", "s", name)) for name in bodies])
        registry = ProcessorRegistry(
            {
                Duplicate: DuplicationProcessor(world.providers, world.manifest),
                Audit: AuditProcessor(outbox, lambda: Policies({})),
                BitCheck: BitCheckProcessor(BitChecker(world.providers, world.manifest)),
            }
        )
        sink = ResultSink(world.manifest, {name.value: low for name in QueueName}, (log, outbox))
        manager = WorkerManager([low, audit], registry, sink, CLOCK, WorkerSettings(threads=4, visibility=60.0))
        until(lambda: processes.ask(b"", 1) is None or len(processes.pids) == 3)
        me = os.getpid()
        with hunted(lambda: helpers(me) if hunting else [], 1, 0.3) as killed:
            tally = manager.run_until_drained()
        assert (tally.dead, tally.lost) == (0, 0) and tally.done >= 2 * count
        assert bool(killed) == hunting
        events = [event.content_id for event in log.events("2", "s") if event.content_id]
        assert sorted(events) == sorted(bodies), "each of them once"
        assert outbox.events() == [] and outbox.open_intents(others=True) == []
        for name, body in bodies.items():
            assert two.path_of("s", name).read_bytes() == body
            assert world.manifest.get("2", "s", name).sha256 == hashlib.sha256(body).hexdigest()
    engine.dispose()


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node with a local store of small items, and a policy that asks for an audited copy of them."""
    pair = {"srcStoreId": "one", "destStoreId": "two"}
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "duplication-accounts.json").write_text('["local"]')
    (tmp_path / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    stores = [f'[stores.{name}]\nurl = "file://{tmp_path}/stores/{name}"\n' for name in ("one", "two")]
    (tmp_path / "millstream.toml").write_text("\n".join([*stores, "audited = true"]))
    source = LocalStore(tmp_path / "stores" / "one")
    LocalStore(tmp_path / "stores" / "two")
    bodies = {f"item {n}": b"%d " % n * 400 for n in range(sized(ci=2_500, long=20_000))}
    fill(source, bodies)
    return tmp_path, bodies


def fill(store: LocalStore, bodies: dict[str, bytes]) -> None:
    store.create_space("s")
    items = [NewItem(name, body, hashlib.sha256(body).hexdigest()) for name, body in bodies.items()]
    for some in groups(items, 500):
        assert all(isinstance(one, ItemInfo) for one in store.bulk.put("s", some))


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "mill", *words, "--data", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a command; it has shown no traceback."""
    out, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors, errors
    assert process.returncode == 0, out + errors
    return process.returncode


def all_there(folder: Path, bodies: dict[str, bytes]) -> bool:
    """Whether every copy is, and a check of it says SUCCESS; the audit has each once."""
    for name, body in bodies.items():
        assert (folder / "stores" / "two" / "s" / name).read_bytes() == body
    ended(start(folder, "check", "--store", "two"))
    with Node.open(load_settings({"data": str(folder)})[0]) as opened:
        events = [event.content_id for event in opened.mill.audit.log.events("two", "s") if event.content_id]
    return sorted(events) == sorted(bodies)


@pytest.mark.crash
def test_p6_a_command_whose_processes_are_killed_does_all_of_it(node: Any) -> None:
    folder, bodies = node
    command = start(folder, "duplicate", "--processes", "2")
    with hunted(lambda: helpers(command.pid), 2, 0.5) as killed:
        ended(command)
    assert killed and all_there(folder, bodies)


@pytest.mark.crash
def test_sigterm_for_all_of_a_service_lets_what_runs_end(node: Any) -> None:
    folder, bodies = node
    settings = load_settings({"data": str(folder)})[0]
    with Node.open(settings, create=True) as opened:
        record_space(opened.stores.providers, opened.stores.manifest, "one", "s")
        queue = opened.queues.open(QueueName.DUPLICATION_LOW)
        plan_space_duplication(opened.stores.providers, opened.stores.manifest, Pair("one", "two"), "s", queue)
    service = start(folder, "work", "--processes", "2")
    pids = until(lambda: helpers(service.pid) if len(helpers(service.pid)) == 2 else [])
    for pid in (service.pid, *pids):
        os.kill(pid, signal.SIGTERM)
    ended(service)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with Node.open(settings) as opened:
        done, left = opened.stores.manifest.count("two", "s"), opened.queues.open(QueueName.DUPLICATION_LOW).depth()
        assert done + left.open >= len(bodies) and left.dead == 0
    ended(start(folder, "work", "--drain", "--processes", "2"))
    assert all_there(folder, bodies)
