"""From an audited change to the audit log, the manifest and the copies; and back, to the event that is missing."""

from __future__ import annotations

import hashlib
import io
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.main import run
from millstream.mill.audit import audit_queue
from millstream.mill.audit.audit_log import AuditLog, tsv_lines
from millstream.mill.audit.audit_lookup import add_missed
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.audit.audit_queue import AuditQueue
from millstream.mill.audit.reconciliation import MissingEvent, missing_events
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Audit, Duplicate, QueueName, decode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.stores import LocalStore, MemoryStore
from millstream.stores.audit import AuditAction, AuditedStore, AuditEvent, AuditOutbox
from suite.engines import open_engine

POLICIES = Policies({"acme": Policy("acme", {"s": (Pair("1", "2"), Pair("1", "3"))}, (Pair("2", "3"),), ("t",))})


class Mill:
    """Store "1" is audited; its changes go to "2" and "3" by policy."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.outbox, self.log = AuditOutbox(world.engine, world.clock), AuditLog(world.engine)
        self.inner = world.stores["1"]
        self.store = AuditedStore(self.inner, self.outbox, "1", account="acme", user="ann")
        world.stores["1"] = self.store
        self.queue = AuditQueue(world.queue("audit"), self.outbox, world.clock)
        self.high = world.queue("duplication-high")

    def work(self, *, copies: bool = True) -> WorkerManager:
        registry = ProcessorRegistry(
            {
                Audit: AuditProcessor(self.outbox, lambda: POLICIES),
                Duplicate: DuplicationProcessor(self.world.providers, self.world.manifest),
            }
        )
        queues = {QueueName.AUDIT: self.queue, QueueName.DUPLICATION_HIGH: self.high}
        sink = ResultSink(self.world.manifest, queues, (self.log, self.outbox))
        settings = WorkerSettings(threads=2, linger=0, idle_first=1)
        chosen = [self.queue, self.high] if copies else [self.queue]
        manager = WorkerManager(chosen, registry, sink, self.world.clock, settings)
        tally = manager.run_until_drained()
        assert tally.dead == 0
        return manager

    def put(self, content_id: str, body: bytes = b"body", space: str = "s") -> None:
        self.store.create_space(space)
        self.store.put(space, content_id, io.BytesIO(body))

    def missing(self) -> list[tuple[str, str]]:
        found = missing_events(self.world.providers, self.log, self.outbox, "1", "s")
        return [(one.content_id, one.action.value) for one in found if isinstance(one, MissingEvent)]


@pytest.fixture
def mill(world: Any) -> Mill:
    return Mill(world)


def high_tasks(mill: Mill) -> list[Duplicate]:
    tasks = [decode_task(lease.body) for lease in mill.high.lease(1000, visibility=100)]
    return [task for task in tasks if isinstance(task, Duplicate)]


def test_a_change_is_logged_recorded_and_brought_to_every_copy(mill: Mill) -> None:
    mill.put("a", b"grain")
    mill.work()
    assert [event.action.value for event in mill.log.events()] == ["CREATE_SPACE", "ADD_CONTENT"]
    row = mill.world.manifest.get("1", "s", "a")
    assert (row.size, row.deleted) == (5, False)
    for copy in "23":
        assert mill.world.read(ItemRef(copy, "s", "a")) == b"grain"
    mill.store.delete("s", "a")
    mill.work()
    assert mill.world.manifest.get("1", "s", "a").deleted
    assert not any(mill.world.has(ItemRef(copy, "s", "a")) for copy in "23")
    assert mill.outbox.events() == [] and mill.queue.depth().open == 0


def test_tasks_are_made_by_policy_for_the_actions_that_are_duplicated(mill: Mill) -> None:
    mill.put("a")
    mill.store.set_properties("s", "a", {"p": "1"})
    mill.store.copy("s", "a", "s", "b")
    for content_id in "ab":
        mill.store.delete("s", content_id)
    mill.store.delete_space("s")
    mill.put("ignored", space="t")
    mill.put("other", space="elsewhere")
    mill.work(copies=False)
    expected = [Duplicate("1", copy, "s", name) for name in ("a", "a", "b", "a", "b", "") for copy in "23"]
    assert sorted(high_tasks(mill), key=repr) == sorted(expected, key=repr)  # in any order: the states decide
    assert len(list(mill.log.events())) == 11


def test_an_event_that_is_processed_twice_is_in_the_log_once(mill: Mill) -> None:
    mill.put("a")
    (space, added) = mill.outbox.events()
    for _ in range(2):
        mill.log.append([space, added])
    mill.queue.pump()
    mill.queue.put([b'{"type":"audit","number":2}', b'{"type":"audit","number":999}'])
    mill.work()
    assert list(mill.log.events()) == [space, added]


def test_a_lease_moves_one_batch_of_waiting_events_to_the_queue(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_queue, "MOST", 10)
    mill.outbox.add(
        [AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "acme", "1", "memory", "s", f"{n}", size=0) for n in range(25)]
    )
    assert len(mill.queue.lease(3, visibility=60)) == 3
    assert (mill.outbox.undelivered(), mill.queue.depth().ready) == (15, 22)
    assert sum(len(mill.queue.lease(10, visibility=60)) for _ in range(3)) == 22
    assert mill.outbox.undelivered() == 0


def test_a_worker_that_dies_before_the_acknowledgement_loses_nothing(mill: Mill) -> None:
    mill.put("a")
    (lease, *_) = [one for one in mill.queue.lease(2, visibility=5) if b"2" in one.body]
    processor = AuditProcessor(mill.outbox, lambda: POLICIES)
    result = processor.process(decode_task(lease.body), 1)
    ResultSink(mill.world.manifest, {QueueName.DUPLICATION_HIGH: mill.high}, (mill.log, mill.outbox)).settle([result])
    mill.world.clock.sleep(6)
    mill.work()
    assert [event.action.value for event in mill.log.events()] == ["CREATE_SPACE", "ADD_CONTENT"]
    assert mill.world.has(ItemRef("2", "s", "a")) and mill.world.has(ItemRef("3", "s", "a"))


@pytest.mark.parametrize("way", ["restored", "discarded"])
def test_an_event_whose_task_was_lost_gets_a_new_one(mill: Mill, way: str) -> None:
    mill.put("a")
    if way == "restored":  # the queue from another time than the outbox
        mill.outbox.deliver(lambda _: None)
    else:
        for lease in mill.queue.lease(2, visibility=5):
            mill.queue.dead_letter(lease, cause="refused")
        mill.work()
        dead = mill.queue.dead()
        assert len(mill.outbox.events()) == len(dead) == 2
        mill.queue.discard([task.task_id for task in dead])
        mill.world.clock.sleep(61)
    mill.work()
    assert [event.action.value for event in mill.log.events()] == ["CREATE_SPACE", "ADD_CONTENT"]
    assert mill.outbox.events() == [] and mill.world.has(ItemRef("2", "s", "a"))


def test_events_with_tasks_in_progress_get_no_second_ones(mill: Mill) -> None:
    mill.put("a")
    assert len(mill.queue.lease(5, visibility=600)) == 2
    for _ in range(3):
        mill.world.clock.sleep(61)
        assert mill.queue.lease(5, visibility=600) == []


def test_events_out_of_order_leave_the_manifest_of_the_last(mill: Mill) -> None:
    for body in (b"one", b"two", b"three"):
        mill.put("a", body)
    mill.store.delete("s", "a")
    mill.put("a", b"four")
    mill.queue.pump()
    leases = list(mill.world.queue("audit").lease(100, visibility=100))
    random.Random(5).shuffle(leases)
    processor = AuditProcessor(mill.outbox, lambda: POLICIES)
    sink = ResultSink(mill.world.manifest, {QueueName.DUPLICATION_HIGH: mill.high}, (mill.log, mill.outbox))
    for lease in leases:
        sink.settle([processor.process(decode_task(lease.body), 1)])
    row = mill.world.manifest.get("1", "s", "a")
    assert (row.size, row.deleted) == (4, False)
    assert [event.number for event in mill.log.events()] == sorted(event.number for event in mill.log.events())


def test_what_was_changed_behind_the_audit_is_named(mill: Mill) -> None:
    for content_id in ("deleted", "grown", "kept", "replaced", "thrice"):
        mill.put(content_id, b"grain")
    mill.store.delete("s", "thrice")
    mill.put("thrice", b"grain")
    mill.put("gone", b"grain")
    mill.store.delete("s", "gone")
    mill.work()
    assert mill.missing() == []
    mill.world.clock.sleep(1)
    mill.inner.delete("s", "deleted")
    mill.inner.put("s", "grown", io.BytesIO(b"grain and more"))
    mill.inner.put("s", "replaced", io.BytesIO(b"chaff"))
    mill.inner.put("s", "gone", io.BytesIO(b"grain"))
    mill.inner.put("s", "new", io.BytesIO(b"grain"))
    assert mill.missing() == [
        ("deleted", "DELETE_CONTENT"),
        ("gone", "ADD_CONTENT"),
        ("grown", "ADD_CONTENT"),
        ("new", "ADD_CONTENT"),
        ("replaced", "ADD_CONTENT"),
    ]
    mill.put("new", b"now it is known")
    assert ("new", "ADD_CONTENT") not in mill.missing()  # its event is on the way


def test_an_event_dropped_from_the_outbox_by_hand_is_named(mill: Mill) -> None:
    mill.put("a")
    mill.put("b")
    mill.outbox.remove([2])
    mill.work()
    assert mill.missing() == [("a", "ADD_CONTENT")]


def test_an_event_that_checks_miss_is_added_once_and_not_where_the_change_has_one_by_now(mill: Mill) -> None:
    mill.put("known", b"grain")
    mill.work()
    mill.put("waits", b"grain")
    sum_ = hashlib.sha256(b"grain").hexdigest()
    names = ("known", "waits", "lacking", "lacking too")
    missed = [mill.store.event(AuditAction.ADD_CONTENT, "s", name, sha256=sum_) for name in names]
    assert [add_missed(mill.outbox, mill.log, missed) for _ in range(2)] == [2, 0]
    changed = msgspec.structs.replace(missed[0], sha256="0" * 64)
    assert add_missed(mill.outbox, mill.log, [changed]) == 1
    assert [event.content_id for event in mill.outbox.events()] == ["waits", "lacking", "lacking too", "known"]


def test_many_items_are_reconciled_page_by_page(mill: Mill) -> None:
    many = [
        AuditEvent(AuditAction.ADD_CONTENT, "ann", n + 1, "acme", "1", "memory", "s", f"{n:05d}", size=0, number=n + 1)
        for n in range(2500)
    ]
    mill.log.append(many)
    mill.inner.create_space("s")
    assert [event.content_id for event in mill.log.last_events("1", "s")] == [event.content_id for event in many]
    assert len(mill.missing()) == 2500


def test_a_line_of_the_table_is_always_an_event(mill: Mill) -> None:
    odd = AuditEvent(
        AuditAction.ADD_CONTENT,
        "ann",
        1,
        "acme",
        "1",
        "file",
        "s",
        "new\nline\ttab\\",
        properties={"a": "é\n"},
        number=1,
    )
    lines = list(tsv_lines([odd]))
    assert [line.count("\n") for line in lines] == [1, 1]
    values = dict(zip(lines[0].rstrip("\n").split("\t"), lines[1].rstrip("\n").split("\t"), strict=True))
    assert values["content_id"] == "new\\nline\\ttab\\\\"
    assert (values["action"], values["at"], values["sha256"]) == ("ADD_CONTENT", "1", "")


def test_an_event_without_a_size_is_compared_by_its_checksum(mill: Mill) -> None:
    mill.put("a", b"grain")
    mill.put("b", b"grain")
    mill.inner.put("s", "b", io.BytesIO(b"chaff"))
    events = mill.outbox.events()
    mill.outbox.remove([event.number for event in events])
    mill.log.append([msgspec.structs.replace(event, size=None) for event in events])
    assert mill.missing() == [("b", "ADD_CONTENT")]


Millstream = Callable[..., tuple[int, str, str]]


@pytest.fixture
def millstream(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Millstream:
    """The command line, on a node with the audited store "first", and "second", which a policy keeps like it."""
    data = tmp_path / "data"
    (data / "policies").mkdir(parents=True)
    (data / "policies" / "duplication-accounts.json").write_text('["local"]')
    pair = {"srcStoreId": "first", "destStoreId": "second"}
    (data / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    lines = [
        '[stores.first]\nurl = "file://{data}/stores/first"\naudited = true\n',
        '[stores.second]\nurl = "file://{data}/stores/second"\n',
    ]
    (data / "millstream.toml").write_text("".join([*lines, '[mill]\naudit_log = "second:log"\n']))
    (tmp_path / "a.txt").write_bytes(b"grain")

    def millstream(*words: str) -> tuple[int, str, str]:
        code = run([*words, "--data", str(data)])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return millstream


@pytest.mark.parametrize(("host", "settled"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_commands_settle_what_ended_processes_left_open_and_name_what_they_cannot(
    tmp_path: Path, millstream: Millstream, host: str, settled: bool
) -> None:
    assert millstream("store", "put", "first", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert [millstream("mill", command)[0] for command in ("audit", "duplicate", "check")] == [0, 0, 0]
    engine = open_engine(f"sqlite:///{tmp_path / 'data' / 'node.db'}")
    inner, outbox = LocalStore(tmp_path / "data" / "stores" / "first"), AuditOutbox(engine, holder=f"{host}/1/2/ab")
    dead = AuditedStore(inner, outbox, "first")
    for name in "bc":
        sum_ = hashlib.sha256(name.encode()).hexdigest()
        outbox.begin(dead.event(AuditAction.ADD_CONTENT, "s", name, sha256=sum_))
        inner.put("s", name, io.BytesIO(name.encode()))
    said = f"first/s: 2 changes of process 1 on {host} are open since "
    for command in (("report",), ("produce", "audit-log", "--once"), ("audit",), ("reconcile",)):
        code, _, errors = millstream("mill", *command)
        assert (code, said in errors) == (0 if settled else 1, not settled), command
        assert settled or "`millstream mill audit --recover`" in errors
    code, printed, _ = millstream("mill", "audit", "--json", "--recover")
    added = [event for event in map(json.loads, printed.splitlines()) if event["action"] == "ADD_CONTENT"]
    assert [(event["content_id"], event["size"]) for event in added] == [("a.txt", 5), ("b", 1), ("c", 1)]
    assert (code, millstream("mill", "reconcile")[:2]) == (0, (0, ""))
    assert millstream("mill", "produce", "audit-log", "--once")[0] == 0


def audit_no_more(settings: Path, *, removed: bool) -> str:
    """Remove the first store from *settings*, or let no store be audited; the settings before."""
    audited = settings.read_text()
    settings.write_text(
        audited[audited.index("[stores.second]") :] if removed else audited.replace("audited = true", "")
    )
    return audited


@pytest.mark.parametrize("removed", [True, False])
def test_open_changes_of_a_store_that_is_not_audited_any_more_say_what_to_do(
    tmp_path: Path, millstream: Millstream, removed: bool
) -> None:
    data = tmp_path / "data"
    assert millstream("store", "put", "first", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert [millstream("mill", command)[0] for command in ("audit", "duplicate")] == [0, 0]
    outbox = AuditOutbox(open_engine(f"sqlite:///{data / 'node.db'}"), holder="elsewhere/1/2/ab")
    dead = AuditedStore(LocalStore(data / "stores" / "first"), outbox, "first")
    outbox.begin(dead.event(AuditAction.ADD_CONTENT, "s", "b", sha256="b" * 64))
    settings = data / "millstream.toml"
    audited = audit_no_more(settings, removed=removed)
    code, _, errors = millstream("mill", "audit", "--recover")
    why = "store 'first' is not in the settings" if removed else "store 'first' is not audited any more"
    assert (code, why in errors, "1 change of process 1 on elsewhere is open since" in errors) == (1, True, True)
    if not removed:
        settings.write_text(audited)
        code, _, errors = millstream("mill", "audit", "--recover")
        assert (code, errors) == (0, "first: 1 open change settled\n")
        return
    assert "`millstream mill retire first` ends them" in errors
    (data / "policies" / "local-duplication-policy.json").write_text('{"defaultPolicies": []}')
    assert "1 change of which it is not known" in millstream("mill", "retire", "first")[2]
    code, printed, _ = millstream("mill", "retire", "first", "--yes", "--writers-stopped", "--json")
    assert (code, json.loads(printed)["open_changes"]) == (0, 1)
    assert millstream("mill", "audit", "--recover")[::2] == (0, "")
    assert millstream("mill", "retire", "first", "--yes")[0] == 3


@pytest.mark.parametrize("removed", [True, False])
def test_a_running_process_with_earlier_settings_must_be_stopped_before_its_open_changes_can_be_settled(
    tmp_path: Path, millstream: Millstream, removed: bool
) -> None:
    data = tmp_path / "data"
    assert millstream("store", "put", "first", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert millstream("mill", "audit")[0] == 0
    outbox = AuditOutbox(open_engine(f"sqlite:///{data / 'node.db'}"))  # of this process, which runs
    running = AuditedStore(LocalStore(data / "stores" / "first"), outbox, "first")
    outbox.begin(running.event(AuditAction.ADD_CONTENT, "s", "b", sha256="b" * 64))
    assert "the process still runs, and settles them" in millstream("mill", "audit")[2]
    audit_no_more(data / "millstream.toml", removed=removed)
    why = "is not in the settings: put it back" if removed else "is not audited any more: set stores.first.audited"
    remedy = f"the process still runs with earlier settings: stop this process; then: store 'first' {why}"
    assert remedy in millstream("mill", "audit")[2]


def test_the_command_line_audits_what_the_settings_say(tmp_path: Path, millstream: Millstream) -> None:
    data = tmp_path / "data"
    assert millstream("store", "put", "second", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert millstream("store", "delete", "second", "s", "a.txt")[0] == 0
    assert millstream("store", "put", "first", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    code, printed, _ = millstream("mill", "audit", "--json")
    assert code == 0
    assert [json.loads(line)["action"] for line in printed.splitlines()] == ["CREATE_SPACE", "ADD_CONTENT"]
    assert millstream("mill", "work", "--drain")[0] == 0
    assert (data / "stores" / "second" / "s" / "a.txt").read_bytes() == b"grain"
    assert millstream("mill", "reconcile")[:2] == (0, "")
    LocalStore(data / "stores" / "first").put("s", "b.txt", io.BytesIO(b"behind"))
    code, printed, _ = millstream("mill", "reconcile")
    assert (code, printed) == (1, "first/s/b.txt: no ADD_CONTENT: it is listed and was never added\n")
    assert millstream("mill", "audit", "first", "s", "a.txt")[1].count("\n") == 2


def test_one_damaged_record_does_not_end_the_comparison_of_all_other_items_and_stores(
    tmp_path: Path, millstream: Millstream
) -> None:
    assert millstream("store", "put", "first", "s", str(tmp_path / "a.txt"), "--create")[0] == 0
    (sidecar,) = (tmp_path / "data" / "stores" / "first" / ".millstream" / "sidecars").rglob("*.json")
    sidecar.write_text("garbage")
    behind = LocalStore(tmp_path / "data" / "stores" / "first")
    behind.create_space("t")
    for space in "st":
        behind.put(space, "b.txt", io.BytesIO(b"behind"))
    code, printed, _ = millstream("mill", "reconcile")
    damaged, *missing = printed.splitlines()
    assert code == 1 and damaged.startswith("first/s/a.txt: not compared: ") and str(sidecar) in damaged
    assert missing == [f"first/{space}/b.txt: no ADD_CONTENT: it is listed and was never added" for space in "st"]


def test_a_store_that_is_not_audited_costs_nothing(world: Any) -> None:
    assert isinstance(world.stores["1"], MemoryStore)
    world.put(ItemRef("1", "s", "a"))
    assert AuditOutbox(world.engine).events() == []
