"""Changes on the command line are in the operator audit log, with the account of the operating system."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from in_process import asked_in_process

from millstream.cli.main import run
from millstream.core.errors import BusyError
from millstream.core.retry import RetryPolicy
from millstream.log import open_store
from millstream.mill.repair.repairer import Repairer
from millstream.mill.tasks import Duplicate, encode_task
from millstream.node import Node
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import load_settings

ME = f"os:{pwd.getpwuid(os.geteuid()).pw_name}"
SETTINGS = (
    '[stores.primary]\nurl = "file://{data}/stores/primary"\n[stores.second]\nurl = "file://{data}/stores/second"\n'
)
POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node with a policy, a message, and two dead tasks."""
    node = tmp_path / "node"
    node.mkdir()
    (node / "millstream.toml").write_text(SETTINGS, "utf-8")
    (tmp_path / "policy.json").write_text(json.dumps(POLICY), "utf-8")
    run_in(node, "mill", "policy", "save", "local", str(tmp_path / "policy.json"))
    return node


def run_in(folder: Path, *words: str) -> None:
    assert run([*words, "--data", str(folder)]) == 0


def events(folder: Path) -> Sequence[tuple[str, str, str]]:
    """User, action and target of every event, the first one first."""
    with Node.open(load_settings({"data": str(folder)}, environment={})[0]) as node:
        found = OperatorAuditLog(node.databases.own, node.clock).last(100)
    return [(event.user, event.action, event.target) for event in reversed(found)]


def test_a_policy_saved_on_the_command_line_has_an_author(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    run_in(folder, "mill", "policy", "withdraw", "local")
    assert events(folder) == [(ME, "save policy", "local"), (ME, "withdraw policy", "local")]
    with asked_in_process(folder) as asked:
        (version,) = asked.api("/policies/local/versions")["items"]
        assert version["saved_by"] == ME and version["saved_at"]
        assert ME in asked.page("/policies/local")


def test_who_called_sudo_is_recorded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    run_in(folder, "mill", "policy", "save", "local", str(tmp_path / "policy.json"))
    with asked_in_process(folder) as asked:
        assert asked.api("/system/audit-log")["items"][0]["facts"]["sudo_user"] == "ada"


def test_new_keys_of_ledgers_are_recorded(folder: Path) -> None:
    before = len(events(folder))
    run_in(folder, "anchor", "key", "create", "--ledger", "reports")
    run_in(folder, "anchor", "key", "rotate", "--ledger", "reports")
    changes = [(ME, action, "ledger reports") for action in ("create key", "rotate key")]
    assert events(folder)[before:] == changes


def test_actions_on_dead_tasks_are_recorded_and_those_on_a_bare_store_are_not(folder: Path, tmp_path: Path) -> None:
    with Node.open(load_settings({"data": str(folder)}, environment={})[0]) as node:
        queue = node.queues.open("duplication-high")
        queue.put([encode_task(Duplicate("primary", "second", "photos", name)) for name in ("a", "b", "c")])
        for lease in queue.lease(3, visibility=60):
            queue.dead_letter(lease, cause="no answer")
    (tmp_path / "task.json").write_bytes(encode_task(Duplicate("primary", "second", "photos", "d")))
    before = len(events(folder))
    run_in(folder, "queue", "amend", "duplication-high", "1", str(tmp_path / "task.json"))
    run_in(folder, "queue", "discard", "duplication-high", "2")
    run_in(folder, "queue", "redrive", "duplication-high", "1")
    made = events(folder)[before:]
    assert made == [
        (ME, "amend", "queue duplication-high, task 1"),
        (ME, "discard", "queue duplication-high"),
        (ME, "redrive", "queue duplication-high"),
    ]
    run_in(folder, "queue", "discard", "duplication-high", "3", "--store", f"sqlite:///{folder / 'log.db'}")
    assert len(events(folder)) == before + 3


def test_a_trim_is_recorded_and_a_dry_run_is_not(folder: Path) -> None:
    run_in(folder, "log", "create", "weather")
    run_in(folder, "log", "append", "weather", str(folder / "millstream.toml"))
    run_in(folder, "log", "trim", "weather", "--below", "2", "--dry-run")
    run_in(folder, "log", "trim", "weather", "--below", "2")
    assert [event for event in events(folder) if event[1] == "trim"] == [(ME, "trim", "log weather")]


def test_changes_of_a_log_are_recorded_and_reads_are_not(folder: Path, tmp_path: Path) -> None:
    before = len(events(folder))
    for _ in range(2):  # the second one creates nothing
        run_in(folder, "log", "create", "weather")
    run_in(folder, "log", "append", "weather", str(folder / "millstream.toml"))
    run_in(folder, "log", "describe", "weather")
    run_in(folder, "log", "seek", "weather", "--consumer", "job", "--to", "2")
    run_in(folder, "log", "tier", "weather", "--to", f"file://{tmp_path}/tier", "--partial")
    run_in(folder, "log", "tier", "weather", "--leftovers")
    run_in(folder, "log", "tier", "weather", "--remove-leftovers")
    run_in(folder, "log", "vacuum", "weather")
    actions = ["create log", "seek", "tier", "remove leftovers", "vacuum"]
    assert events(folder)[before:] == [(ME, action, "log weather") for action in actions]


def test_repairs_of_tables_ledgers_and_operations_are_recorded(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", "utf-8")
    run_in(folder, "store", "put", "primary", "photos", str(tmp_path / "a.txt"), "--create")
    before = len(events(folder))
    run_in(folder, "mill", "rebuild", "content-index", "primary")
    run_in(folder, "mill", "audit", "--recover")
    run_in(folder, "anchor", "ledger", "--repair")
    run_in(folder, "anchor", "redrive")
    assert events(folder)[before:] == [
        (ME, "rebuild", "content-index of primary/photos"),
        (ME, "recover audit", "open changes of all stores"),
        (ME, "repair ledger", "ledger anchors"),
        (ME, "redrive", "operations on identifiers"),
    ]


def test_a_repair_that_fails_after_some_copies_is_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise BusyError("store second does not answer")

    monkeypatch.setattr(Repairer, "repair", fail)
    assert run(["mill", "repair", "space", "a", "--data", str(folder)]) == BusyError.exit_code
    assert events(folder)[-1] == (ME, "repair", "space/a")


def test_changes_of_topics_and_groups_without_a_broker_are_recorded(folder: Path) -> None:
    before = len(events(folder))
    for _ in range(2):  # the second one creates nothing
        run_in(folder, "topic", "create", "orders")
    run_in(folder, "topic", "list")
    run_in(folder, "group", "configure", "billing", "--max-attempts", "3")
    run_in(folder, "topic", "delete", "orders")
    assert events(folder)[before:] == [
        (ME, "create topic", "topic orders"),
        (ME, "configure group", "group billing"),
        (ME, "delete topic", "topic orders"),
    ]


def test_nothing_is_changed_while_the_database_of_the_node_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.core.sql.ANSWERS", RetryPolicy(attempts=1))
    store, keys = f"sqlite:///{tmp_path / 'log.db'}", tmp_path / "keys"
    assert run(["log", "create", "weather", "--store", store]) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = f'[node]\ndatabase = "postgresql://ada:grain@{place}/away"\n[log]\nstore = "{store}"\n'
        (tmp_path / "millstream.toml").write_text(settings, "utf-8")
        for words in (
            ["log", "create", "rain"],
            ["log", "seek", "weather", "--consumer", "job", "--to", "1"],
            ["topic", "create", "orders"],
            ["anchor", "key", "create"],
        ):
            assert run([*words, "--data", str(tmp_path)]) == BusyError.exit_code, words
            assert f"{place} did not answer" in capsys.readouterr().err
        assert run(["log", "trim", "weather", "--below", "1", "--data", str(tmp_path)]) == 0, "it frees space"
        assert "not recorded in the operator audit log" in capsys.readouterr().err
    with open_store(store) as opened:
        assert opened.logs() == ["weather"]
    assert not keys.exists() or not list(keys.iterdir())


def test_a_deletion_that_is_recorded_has_an_author(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("a", "utf-8")
    run_in(folder, "store", "put", "primary", "photos", str(tmp_path / "photos"), "--create")
    run_in(folder, "mill", "duplicate")
    run_in(folder, "mill", "repair", "photos", "a.txt")
    run_in(folder, "store", "delete", "primary", "photos", "a.txt")
    run_in(folder, "mill", "forget", "primary", "photos", "a.txt")
    assert events(folder)[-2:] == [(ME, "repair", "photos/a.txt"), (ME, "forget", "photos in primary")]
