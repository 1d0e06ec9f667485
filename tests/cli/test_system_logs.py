"""Nobody but Millstream writes to its own logs, by whatever way; users' logs may have any other name."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import LogSpec, Message, open_store
from millstream.node import Node
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batch
from support.commands import run_command

WAYS = [
    "log create NAME",
    "log append NAME {file}",
    "log trim NAME --below 2",
    "log trim NAME --max-count 1 --keep-policy",
    "log tier NAME --to file://{folder}/cold",
    "log seek NAME --to 1 --consumer worker",
    "log relay sqlite:///{folder}/app.db --log NAME",
    "batch serve --log in --output NAME",
    "ingest mqtt mqtt://127.0.0.1:1 --topic a --log NAME",
    "ingest mqtt mqtt://127.0.0.1:1 --topic a --log fresh --rejects NAME",
    "topic create NAME",
    "anchor feed in NAME",
    "pipeline batch in --stream --output NAME",
    "pipeline batch in --hand-over NAME",
    "pipeline ingest {file} --log NAME",
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with one anchor, a task in the queue ``repair``, and the log ``in``."""
    with Node.open(Settings(data=str(tmp_path / "node")), create=True) as found:
        found.anchoring.batch_writer.add("in", [make_batch([500, 501])], config=CONFIG)
        found.anchoring.batch_writer.cut(force=True)
        found.queues.open("repair").put([b"task"])
        with found.logs.store.log(LogSpec("in")).writer() as writer:
            writer.append([Message(b"1", "k", "s", 1_000_000)])
        yield found


@pytest.mark.parametrize("name", ["system:ledger", "system:queue.repair", "system:not-there"])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_into_a_system_log(node: Node, tmp_path: Path, way: str, name: str) -> None:
    folder, file = tmp_path / "node", tmp_path / "lines.jsonl"
    file.write_text('{"body":"hello"}\n')
    app = f"sqlite:///{folder}/app.db"
    sqlite3.connect(folder / "app.db").close()
    assert run_command("log", "relay", app, "--log", "in", "--create-table", "--data", str(folder)).code == 0
    before = {log: node.logs.store.log(LogSpec(log), create=False).info() for log in node.logs.store.logs()}
    words = way.replace("NAME", name).format(file=file, folder=folder).split()
    answer = run_command(*words, "--data", str(folder))
    assert answer.code in ((2, 3) if name.endswith("not-there") else (2,)), answer
    assert re.search("it can be read, but not|there is no log|invalid topic name", answer.err), answer.err
    after = {log: node.logs.store.log(LogSpec(log), create=False).info() for log in node.logs.store.logs()}
    assert {log: info for log, info in after.items() if log.startswith("system:")} == {
        log: info for log, info in before.items() if log.startswith("system:")
    }


def test_users_may_call_their_logs_as_system_logs_were_called(node: Node, tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "node")]
    command = [sys.executable, "-m", "millstream", "serve", "--broker", "127.0.0.1:0", *data]
    with node:
        pass  # closed: what follows opens it in processes of their own
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = ["--broker", process.stdout.readline().split()[3]]
        for name in ("ledger", "queue.repair"):
            made = run_command("topic", "create", name, *endpoint)
            assert made.code == (0 if name == "ledger" else 2), made  # topics have no dots
        assert run_command("send", "ledger", "hello", *endpoint).code == 0
        process.terminate()
        assert process.wait(30) == 0
    assert run_command("log", "append", "queue.repair", "-", *data, stdin=b"an order\n").code == 0
    assert run_command("log", "append", "broker.journal", "-", *data, stdin=b"a note\n").code == 0
    for words in ("anchor ledger", "anchor cut --force", "anchor replay", "anchor status", "queue depth repair"):
        assert run_command(*words.split(), *data).code == 0
    assert run_command("prove", "in", "500", *data).code == 0
    listed = [json.loads(line) for line in run_command("log", "list", "--json", *data).out.splitlines()]
    assert {row["name"]: (row["kind"], row["count"]) for row in listed} == {
        "broker.journal": ("application", 1),
        "in": ("application", 1),
        "ledger": ("topic", 1),
        "queue.repair": ("application", 1),
        "system:broker.held": ("journal", 0),
        "system:broker.journal": ("journal", 1),
        "system:ledger": ("ledger", 1),
        "system:registry.ledger": ("ledger", 0),
        "system:queue.repair": ("queue", 1),
    }


def test_system_logs_are_read_and_copied_by_name(node: Node, tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "node")]
    assert (
        run_command("log", "read", "system:ledger", *data).out == run_command("anchor", "ledger", "--json", *data).out
    )
    assert run_command("log", "verify", "system:queue.repair", *data).code == 0
    for name, kind, trimmed in (
        ("ledger", "ledger", "never: its policy is to keep all"),
        ("queue.repair", "queue", "by M"),
    ):
        told = run_command("log", "describe", f"system:{name}", *data).out
        assert f"\nkind      {kind}\n" in told and f"\ntrimmed   {trimmed}" in told
    missing = run_command("log", "read", "ledger", *data)
    assert (missing.code, "the system log is called 'system:ledger'" in missing.err) == (3, True)
    with node:
        pass  # closed: what follows opens it in processes of their own
    target = f"segments:///{tmp_path / 'copy'}"
    assert run_command("log", "copy", f"sqlite:///{tmp_path}/node/log.db", target, "system:ledger").code == 0
    with open_store(target) as store:
        assert dict(store.kinds()) == {"system:ledger": "ledger"}
