"""``millstream serve`` as a whole node in one process: it batches, anchors, copies and checks, and drains."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from millstream.anchoring import replay
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.dids import Person
from millstream.testing.waiting import until

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
max_delay = "100ms"
[stores.primary]
url = "file://{data}/stores/primary"
[stores.second]
url = "file://{data}/stores/second"
"""
POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "millstream.toml").write_text(SETTINGS, "utf-8")
    (tmp_path / "policy.json").write_text(json.dumps(POLICY), "utf-8")
    assert run(["mill", "policy", "save", "local", str(tmp_path / "policy.json"), "--data", str(tmp_path)]) == 0
    with _open(tmp_path) as node:
        node.store.log(LogSpec("weather"))
        store = node.providers["primary"]
        store.create_space("photos")
        for number in range(5):
            store.put("photos", f"{number}.txt", io.BytesIO(b"photo %d" % number))
    return tmp_path


def test_one_process_is_a_whole_node_and_drains_when_it_is_asked(folder: Path) -> None:
    with _serving(folder) as (process, url):
        _append(folder, 50)
        until(lambda: _ask(url, "overview")["anchors"]["anchors"] >= 1, "an anchor")
        until(lambda: _ask(url, "overview")["copies"]["copies"] >= 10, "copies")
        until(lambda: _ask(url, "overview")["checks"]["checked"] >= 5, "copies that were checked")
        with _open(folder) as node:
            (operation,) = node.registry.acceptance.submit_many([canonical_json(Person("ada").create.request)])
        until(lambda: _ask(url, f"operations/{operation.status.id}")["state"] == "observed", "an anchored operation")
        _append(folder, 50)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert "workers have ended" in err and "batching weather has ended" in err and err.endswith("stopped\n")
    with _open(folder) as node:
        assert node.queue(QueueName.DUPLICATION_LOW).depth().leased == 0
        assert len(list((folder / "stores/second/photos").rglob("*.txt"))) == 5
        assert node.journal.totals().accepted == 0, "what was batched is anchored in the end"
        assert node.observer.index.totals().batches > 0
        assert replay(node.cas, node.ledger).findings == ()


def test_a_role_that_cannot_begin_ends_the_process_with_its_reason(folder: Path) -> None:
    with _open(folder) as node, node.store.log(LogSpec("weather.batches")).writer("somebody else"):
        command = [sys.executable, "-m", "millstream", "serve", "--no-broker", "--data", str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 4 and "weather.batches' is being written by" in ended.stderr


def test_a_pool_that_there_is_not_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (folder / "millstream.toml").read_text("utf-8").replace('["all"]', '["al"]')
    (folder / "millstream.toml").write_text(settings, "utf-8")
    assert run(["serve", "--no-broker", "--data", str(folder)]) == 2
    assert "'al'" in capsys.readouterr().err


def _open(folder: Path) -> Node:
    settings, _ = load_settings({"data": str(folder)})
    return Node.open(settings, create=True)


def _append(folder: Path, count: int) -> None:
    with _open(folder) as node, node.store.log(LogSpec("weather")).writer("test") as writer:
        now = SystemClock().now()
        writer.append([Message(b"%d" % n, "k", "s", now - n * MICROSECONDS // 1000) for n in range(count)])


def _ask(url: str, path: str) -> dict:
    with urlopen(f"{url}/api/v1/{path}") as answer:
        return json.load(answer)


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "millstream", "serve", "--no-broker", "--console", "127.0.0.1:0"]
    command += ["--data", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("console ready on "), process.communicate()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()
