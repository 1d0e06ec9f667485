"""``millstream serve`` as a whole node in one process: it batches, anchors, copies and checks, and drains."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
from serving_nodes import Serving, open_node

from millstream.anchoring import AnchorIndex, replay
from millstream.anchoring.errors import CasError
from millstream.batching.rule_changes import RULES_METADATA
from millstream.batching.settings import BatchingSettings
from millstream.cli.main import run
from millstream.cli.node_roles import NodeRoles
from millstream.cli.role_run import RoleRun
from millstream.cli.serve_roles import ServeRoles
from millstream.core.canonical import canonical_json
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.message import Message
from millstream.core.passwords import hash_password
from millstream.log import LogSpec
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import IngestRole, RelayRole, Settings
from millstream.settings.serving import ServeSettings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.verdict.judge import judge
from millstream.status.verdict.models import Issue
from millstream.status.verdict.process import look_at_process
from millstream.testing.dids import DidOwner
from millstream.testing.waiting import until
from support.mqtt import publish
from support.outboxes import connect_application, count, insert, make_outbox
from support.scripted_mqtt_broker import (
    CONNECT,
    PUBACK,
    SUBSCRIBE,
    Answer,
    ScriptedBroker,
    granted,
    message,
    packet,
    welcome,
)

SETTINGS = """
[serve]
workers = ["all"]
producers = true
registry = true
anchor_every = "200ms"
[serve.batching]
weather = "weather.batches"
[registry]
batch_writer_timeout = 0.2
[batching]
window = "200ms"
max_delay = "5s"
[stores.primary]
url = "file://{data}/stores/primary"
[stores.second]
url = "file://{data}/stores/second"
"""
INTAKE = """
[serve]
registry_http = "127.0.0.1:0"
anchor_every = "200ms"
[serve.batching]
pumps = "pumps.batches"
orders = "orders.batches"
[serve.ingest.pumps]
url = "{mosquitto}"
topics = ["{topic}/#"]
[serve.relay.orders]
url = "{application}"
poll = "20ms"
[registry]
batch_writer_timeout = "200ms"
[batching]
window = "200ms"
max_delay = "3s"
"""
POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "millstream.toml").write_text(SETTINGS, "utf-8")
    (tmp_path / "policy.json").write_text(json.dumps(POLICY), "utf-8")
    assert run(["mill", "policy", "save", "local", str(tmp_path / "policy.json"), "--data", str(tmp_path)]) == 0
    with open_node(tmp_path) as node:
        node.logs.store.log(LogSpec("weather"))
        store = node.stores.providers["primary"]
        store.create_space("photos")
        for number in range(5):
            store.put("photos", f"{number}.txt", io.BytesIO(b"photo %d" % number))
    return tmp_path


def test_one_process_is_a_whole_node_and_drains_when_it_is_asked(folder: Path) -> None:
    with Serving(folder) as node:
        _append(folder, 50)
        until(lambda: node.ask("overview")["anchors"]["anchors"] >= 1, "an anchor")
        until(lambda: node.ask("overview")["copies"]["copies"] >= 10, "copies")
        until(lambda: node.ask("overview")["checks"]["checked"] >= 5, "copies that were checked")
        with open_node(folder) as other:
            (operation,) = other.registry.instance.acceptance.submit_many(
                [canonical_json(DidOwner("ada").create.request)]
            )
        until(lambda: node.ask(f"operations/{operation.status.id}")["state"] == "observed", "an anchored operation")
        _append(folder, 50)
        with urlopen(f"{node.ready['console']}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'millstream_batching_batches_total{cut="' in metrics
        assert 'millstream_mill_tasks_done_total{queue="duplication' in metrics
        node.drain()
    assert any(line.startswith("workers have ended") for line in node.said)
    assert any(line.startswith("batching weather has ended") for line in node.said) and node.said[-1] == "stopped"
    with open_node(folder) as after:
        assert after.queues.open(QueueName.DUPLICATION_LOW).depth().leased == 0
        assert len(list((folder / "stores/second/photos").rglob("*.txt"))) == 5
        assert after.anchoring.journal.totals().accepted == 0, "what was batched is anchored in the end"
        assert after.anchoring.observer.index.totals().batches > 0
        assert replay(after.anchoring.cas, after.anchoring.ledger).findings == ()


def test_the_console_names_the_settings_file_and_the_options_that_the_process_was_given(tmp_path: Path) -> None:
    file, folder = tmp_path / "settings.toml", tmp_path / "data"
    file.write_text("[mill]\nworkers = 2\n", "utf-8")
    folder.mkdir()
    (folder / "millstream.toml").write_text("damaged", "utf-8")
    with Serving(folder, arguments=["--config", str(file)]) as node:
        origins = {row["setting"]: row["origin"] for row in node.ask("system/settings")["items"]}
        node.drain()
    assert (origins["mill.workers"], origins["console.address"]) == (str(file), "flag")


def test_devices_an_outbox_and_identifiers_come_in_and_are_anchored_though_nothing_follows(
    tmp_path: Path, mosquitto: str
) -> None:
    application, topic = f"sqlite:///{tmp_path / 'application.db'}", f"{tmp_path.name}-{os.getpid()}"
    sqlite3.connect(tmp_path / "application.db").close()
    make_outbox(application)
    settings = INTAKE.format(mosquitto=mosquitto, topic=topic, application=application)
    (tmp_path / "millstream.toml").write_text(settings, "utf-8")
    with Serving(tmp_path) as node:
        until(lambda: any("connected as" in line for line in node.said), "a connection to the broker")
        publish(mosquitto, [(f"{topic}/pump/level", b'{"n":%d}' % number) for number in range(20)])
        with contextlib.closing(connect_application(application)) as session:
            for number in range(30):
                insert(session, b"order %d" % number)
            until(lambda: count(session) == 0, "an empty outbox")
        request = Request(
            f"{node.ready['registry']}/sidetree/v1/operations",
            canonical_json(DidOwner("ada").create.request),
            {"Content-Type": "application/json"},
        )
        with urlopen(request) as answer:
            operation = answer.headers["operation-id"]
        until(lambda: node.ask(f"operations/{operation}")["state"] == "observed", "an anchored operation")
        with open_node(tmp_path) as other:
            index = other.anchoring.observer.index
            until(lambda: _anchored(index) == 50, "all messages anchored, though nothing follows them")
        node.drain()
    assert "ingest into pumps: it has ended: 20 records, 0 messages rejected" in node.said
    assert "relaying into orders has ended: 30 messages, 0 dead rows" in node.said


def test_what_clients_send_to_a_topic_is_anchored_though_nothing_follows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("grpc")
    sent = [str(number) for number in range(20)]
    with Serving(folder, broker=True) as node:
        there = ["--broker", node.ready["broker"]]
        assert run(["topic", "create", "weather", *there]) == 0
        assert run(["send", "weather", *sent, *there]) == 0
        with open_node(folder) as other:
            until(lambda: _anchored(other.anchoring.observer.index) == len(sent), "all that was sent anchored")
        capsys.readouterr()
        assert run(["receive", "weather", "--group", "readers", *there]) == 0
        assert capsys.readouterr().out.split() == sent, "and no tick"
        node.drain()


def test_topics_groups_and_clients_are_administered_over_the_url_of_a_node_with_its_users(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("grpc")
    with (folder / "millstream.toml").open("a", encoding="utf-8") as file:
        for name, role in (("vera", "viewer"), ("otto", "operator")):
            (tmp_path / name).write_text(f"secret of {name}\n", "utf-8")
            file.write(f'[console.users.{name}]\npassword = "{hash_password(f"secret of {name}")}"\nrole = "{role}"\n')
    with Serving(folder, broker=True) as node:

        def ask(user: str, *arguments: str) -> tuple[int, str]:
            signed = ["--user", user, "--password-file", str(tmp_path / user)] if user else []
            code = run([*arguments, "--url", node.ready["console"], *signed])
            return code, "".join(capsys.readouterr())

        assert ask("otto", "topic", "create", "orders", "--queues", "2") == (
            0, "orders  NORMAL  2 queues  0 messages  no group\n",
        )  # fmt: skip
        code, text = ask("vera", "topic", "delete", "orders")
        assert (code, "requires the role operator, but the user vera has the role viewer" in text) == (1, True)
        assert ask("", "topic", "list")[0] == 1
        assert run(["send", "orders", "one", "two", "--broker", node.ready["broker"]]) == 0
        capsys.readouterr()
        assert ask("otto", "group", "reset", "billing", "--topic", "orders", "--to", "2")[0] == 0
        assert ask("otto", "group", "configure", "billing", "--max-attempts", "3", "--backoff", "1s")[0] == 0
        assert ask("vera", "topic", "describe", "orders") == (0, (
            "orders  NORMAL  2 queues  2 messages  billing\nmessages 1 to 2; 0 held back\n"
            "billing  orders  lag 1, 0 in flight, all done up to 1, 0 consumers\n"
        ))  # fmt: skip
        assert "billing  dead after 3 attempts; waits 1 s" in ask("vera", "group", "describe", "billing")[1]
        assert ask("vera", "client", "list") == (0, "")
        code, text = ask("otto", "client", "verify", "nobody", "orders", "1")
        assert (code, "unknown client nobody" in text) == (3, True)
        assert ask("otto", "topic", "delete", "orders") == (0, "topic orders is deleted; its log stays\n")
        assert ask("vera", "topic", "describe", "orders")[0] == 3
        node.drain()
    assert ask("vera", "topic", "list")[0] == 1


def test_a_log_that_is_to_be_batched_and_is_not_there_is_made_and_may_become_a_topic(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), serve=ServeSettings(batching={"orders": "orders.batches"}))
    failures: list[str] = []
    with Node.open(settings, create=True) as node, ServeRoles(node, lambda: failures.append("failed")):
        assert list(node.logs.store.logs()) == ["orders", "orders.batches", "system:ledger"]
    assert run(["topic", "create", "orders", "--type", "FIFO", "--data", str(tmp_path)]) == 0
    assert failures == []


def batch_events(node: Node) -> None:
    """Batch what the log ``events`` has into the log ``out``."""
    with contextlib.closing(node.batching.service("events", "out")) as service:
        service.step()


def test_a_log_that_cannot_be_batched_suspends_its_own_batching_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.1)
    names = ("unordered", "uncounted", "good")
    settings = Settings(data=str(tmp_path), serve=ServeSettings(batching={name: f"{name}.batches" for name in names}))
    failures: list[str] = []
    hour = 3600 * MICROSECONDS
    with Node.open(settings, create=True) as node:
        for name, times in (("unordered", (9 * hour, hour)), ("good", (hour, 9 * hour))):
            with node.logs.store.log(LogSpec(name)).writer() as writer:
                writer.append([Message(b"", "a", "pump", time, time) for time in times])
        good, other = (
            node.logs.store.log(LogSpec(f"{name}.batches", kind="batches")) for name in ("good", "uncounted")
        )
        with other.writer() as writer:
            writer.append([b"of another program"])
        with ServeRoles(node, lambda: failures.append("failed")):
            until(lambda: "batching unordered is suspended" in caplog.text, "the first log suspended")
            until(lambda: "batching uncounted is suspended" in caplog.text, "the second log suspended")
            until(lambda: good.last_id == 1, "the third log batched")
            until(lambda: ("batching_open_sources", (("log", "good"),)) in node.metrics.figures().gauges, "its gauges")
        assert not [name for name, _ in node.metrics.figures().gauges if name.startswith("batching_")]
    assert "message 2 of log 'unordered' has the receive time" in caplog.text
    assert "log 'uncounted.batches' has messages 1 to 1" in caplog.text
    assert failures == []


def test_batching_stays_suspended_while_a_command_uses_the_log_of_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.05)
    settings = Settings(data=str(tmp_path), serve=ServeSettings(batching={"events": "out"}))
    failures: list[str] = []
    with Node.open(settings, create=True) as node:
        output = node.logs.store.log(LogSpec("out", kind="batches"))
        with output.writer() as writer:
            writer.append([b"of another program"])
        with ServeRoles(node, lambda: failures.append("failed")):
            until(lambda: "log 'out' has messages 1 to 1" in caplog.text, "batching suspended")
            with output.writer():
                until(lambda: failures or "'out' is being written by" in caplog.text, "the next try")
    assert failures == []


@pytest.mark.parametrize("spoil", ["state", "rules", "recorded rules"])
def test_a_state_or_rules_that_do_not_fit_suspend_the_batching_of_their_log_alone(
    spoil: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data=str(tmp_path), serve=ServeSettings(batching={"events": "out"}))
    with Node.open(settings, create=True) as node:
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"", "a", "pump", time, time) for time in (0, 3600 * MICROSECONDS)])
        batch_events(node)
        if spoil == "state":
            node.batching.state("out").write(b"damaged")
        if spoil == "recorded rules":
            node.logs.store.log(LogSpec("out", kind="batches")).put_metadata(RULES_METADATA, b"damaged")
    failures: list[str] = []
    if spoil == "rules":
        settings = msgspec.structs.replace(settings, batching=BatchingSettings(window=7 * MICROSECONDS))
    with Node.open(settings) as node, ServeRoles(node, lambda: failures.append("failed")):
        until(lambda: "batching events is suspended" in caplog.text, "batching suspended")
    assert failures == []


def test_a_log_is_batched_on_while_its_batches_cannot_be_anchored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve = ServeSettings(batching={"events": "out"}, anchor_every=1000)
    settings = Settings(data=str(tmp_path), serve=serve)
    hour = 3600 * MICROSECONDS
    failures: list[str] = []
    with Node.open(settings, create=True) as node:
        output = node.logs.store.log(LogSpec("out", kind="batches"))
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"", "a", "pump", time, time) for time in (hour, 9 * hour)])
            batch_events(node)
            with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as database, database:
                number = database.execute("SELECT number FROM logs WHERE name = 'out'").fetchone()[0]
                database.execute(f"UPDATE blocks_{number} SET data = zeroblob(length(data))")
            with ServeRoles(node, lambda: failures.append("failed")):
                until(lambda: "anchoring the batches of events failed" in caplog.text, "an error of anchoring")
                writer.append([Message(b"", "a", "pump", 99 * hour, 99 * hour)])
                until(lambda: failures or output.last_id == 2, "the next batch")
    assert failures == [] and "is suspended" not in caplog.text


def test_a_ledger_from_an_older_backup_ends_neither_batching_nor_the_rest_of_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve = ServeSettings(batching={"events": "out"}, anchor_every=1000)
    settings = Settings(data=str(tmp_path), serve=serve)
    hour = 3600 * MICROSECONDS
    with Node.open(settings, create=True) as node:
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"", "a", "pump", time, time) for time in (hour, 9 * hour)])
        batch_events(node)
    shutil.copy(tmp_path / "log.db", tmp_path / "backup.db")
    with Node.open(settings) as node:
        assert node.anchoring.feed("events", "out").step(force=True).anchors == 1
    for left in tmp_path.glob("log.db-*"):
        left.unlink()
    shutil.move(tmp_path / "backup.db", tmp_path / "log.db")
    failures: list[str] = []
    with (
        Node.open(settings) as node,
        node.logs.store.log(LogSpec("events")).writer() as writer,
        ServeRoles(node, lambda: failures.append("failed")),
    ):
        until(lambda: failures or "anchoring the batches of events failed" in caplog.text, "an error of anchoring")
        writer.append([Message(b"", "a", "pump", 99 * hour, 99 * hour)])
        until(lambda: failures or node.logs.store.log(LogSpec("out", kind="batches")).last_id == 2, "the next batch")
    assert failures == []


def test_an_mqtt_broker_that_refuses_suspends_its_own_ingest_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paho.mqtt")
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 1.0)
    monkeypatch.setattr("millstream.cli.role_run._STEADY_SECONDS", 0.1)
    refusal: dict[int, Answer] = {CONNECT: lambda _: packet(0x20, bytes([0, 0x87, 0]))}
    forbidden: dict[int, Answer] = {CONNECT: welcome(), SUBSCRIBE: granted(0x87)}
    arrival = message(1, 1, payload=b'{"n":1}')
    let_in: dict[int, Answer] = {CONNECT: welcome(arrival), SUBSCRIBE: granted(1), PUBACK: lambda _: b""}
    broker = ScriptedBroker([refusal, forbidden, let_in])
    settings = Settings(data=str(tmp_path), serve=ServeSettings(ingest={"pumps": IngestRole(broker.url, ("a/#",))}))
    failures: list[str] = []
    with Node.open(settings, create=True) as node:
        with ServeRoles(node, lambda: failures.append("failed")):
            issues = until(lambda: failures or _suspension_issues(node), "an issue")
            assert failures == [] and issues is not None
            (issue,) = issues
            assert isinstance(issue, Issue)
            assert issue.kind == "ingest-disconnected" and "refused the connection: Not authorized; check" in issue.what
            until(lambda: failures or node.logs.store.log(LogSpec("pumps")).last_id == 1, "a message of the broker")
            until(lambda: failures or not _suspension_issues(node), "no issue")
        assert ("ingest_connected", (("log", "pumps"),)) not in node.metrics.figures().gauges, "the role has ended"
    broker.close()
    assert failures == []
    assert "refused the subscription to 'a/#'" in caplog.text
    assert caplog.text.count("ingest pumps is suspended, and tried again every minute: mqtt://") == 2


def test_a_row_of_an_outbox_that_is_no_message_suspends_its_own_relay_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 1.0)
    monkeypatch.setattr("millstream.cli.role_run._STEADY_SECONDS", 0.1)
    url = f"sqlite:///{tmp_path / 'application.db'}"
    sqlite3.connect(tmp_path / "application.db").close()
    make_outbox(url)
    settings = Settings(data=str(tmp_path / "node"), serve=ServeSettings(relay={"orders": RelayRole(url)}))
    failures: list[str] = []
    with contextlib.closing(connect_application(url)) as session, Node.open(settings, create=True) as node:
        insert(session, b"good")
        insert(session, b"bad")
        session.execute("UPDATE outbox SET headers = '[1]' WHERE id = 2")
        with ServeRoles(node, lambda: failures.append("failed")):
            issues = until(lambda: failures or _suspension_issues(node), "an issue")
            assert failures == [] and issues is not None
            (issue,) = issues
            assert isinstance(issue, Issue)
            assert issue.kind == "outbox" and "is not read: row 2 of outbox" in issue.what
            session.execute("UPDATE outbox SET headers = NULL WHERE id = 2")
            until(lambda: failures or node.logs.store.log(LogSpec("orders")).last_id == 2, "both rows")
            until(lambda: not _suspension_issues(node), "no issue")
        assert node.metrics.figures().gauges == {}
    assert failures == []


def test_a_store_of_anchored_files_that_is_away_does_not_end_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve = ServeSettings(batching={"events": "out"}, anchor_every=1000)
    hour = 3600 * MICROSECONDS
    failures: list[str] = []
    with Node.open(Settings(data=str(tmp_path), serve=serve), create=True) as node:
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"", "a", "pump", time, time) for time in (hour, 9 * hour)])
        batch_events(node)
        (tmp_path / "cas").rmdir()
        (tmp_path / "cas").write_bytes(b"")
        with ServeRoles(node, lambda: failures.append("failed")):
            until(lambda: failures or "anchoring the batches of events failed" in caplog.text, "an error of anchoring")
            (tmp_path / "cas").unlink()
            until(lambda: failures or node.anchoring.journal.totals().observed, "an anchored batch")
    assert failures == []


@pytest.mark.parametrize("fence", [None, contextlib.nullcontext])
def test_a_role_begins_and_batches_on_while_the_store_of_anchored_files_is_away(
    fence: Callable[[], AbstractContextManager[object]] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve = ServeSettings(batching={"events": "out"}, anchor_every=1000)
    hour = 3600 * MICROSECONDS
    failed: list[Exception] = []
    with Node.open(Settings(data=str(tmp_path), serve=serve), create=True) as node:
        output = node.logs.store.log(LogSpec("out", kind="batches"))
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"", "a", "pump", time, time) for time in (hour, 9 * hour)])
            batch_events(node)
            (tmp_path / "cas").rmdir()
            (tmp_path / "cas").write_bytes(b"")
            with pytest.raises(CasError):
                node.anchoring.feed("events", "out").step(force=True)
            assert node.anchoring.journal.open_cuts()
            role = RoleRun("batching events", failed.append, fence)
            role.open(NodeRoles(node).owned()["batching events"]).start()
            try:
                until(lambda: failed or "anchoring the batches of events failed" in caplog.text, "an error")
                writer.append([Message(b"", "a", "pump", 99 * hour, 99 * hour)])
                until(lambda: failed or role.is_lost or output.last_id == 2, "the next batch")
                (tmp_path / "cas").unlink()
                until(lambda: failed or role.is_lost or node.anchoring.journal.totals().observed, "an anchored batch")
            finally:
                role.end()
    assert failed == [] and not role.is_lost


def test_a_log_that_two_roles_would_write_is_refused_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "millstream.toml").open("a", encoding="utf-8") as file:
        file.write('[serve.ingest.a]\nurl = "mqtt://h"\ntopics = ["a"]\n[serve.relay.a]\nurl = "sqlite:///a"\n')
    assert run(["serve", "--data", str(folder)]) == 2
    assert "ingest and relay both write the log 'a'" in capsys.readouterr().err


def test_a_role_that_cannot_begin_ends_the_process_with_its_reason(folder: Path) -> None:
    with open_node(folder) as node, node.logs.store.log(LogSpec("weather.batches")).writer("another publisher"):
        command = [sys.executable, "-m", "millstream", "serve", "--no-broker", "--data", str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 4 and "weather.batches' is being written by" in ended.stderr


def test_a_pool_that_there_is_not_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (folder / "millstream.toml").read_text("utf-8").replace('["all"]', '["al"]')
    (folder / "millstream.toml").write_text(settings, "utf-8")
    assert run(["serve", "--no-broker", "--data", str(folder)]) == 2
    assert "'al'" in capsys.readouterr().err


def _suspension_issues(node: Node) -> list[Issue]:
    """The issues of what brings messages into logs of *node*."""
    facts = StatusPoller(NodeView(node)).facts()
    verdict = judge(msgspec.structs.replace(facts, process=look_at_process(node)))
    return [issue for issue in verdict.issues if issue.kind in ("ingest-disconnected", "outbox")]


def _append(folder: Path, count: int) -> None:
    with open_node(folder) as node, node.logs.store.log(LogSpec("weather")).writer("test") as writer:
        now = SystemClock().now()
        writer.append([Message(b"%d" % n, "k", "s", now - n * MICROSECONDS // 1000) for n in range(count)])


def _anchored(index: AnchorIndex) -> int:
    """Messages in batches, and those that were refused (of one source, key and time there can be but one)."""
    totals = index.totals()
    return totals.messages + totals.rejects
