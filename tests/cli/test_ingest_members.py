"""An MQTT ingest of a node that two processes serve, each with a folder of its own: it moves when one of them fails."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from serving_nodes import Serving, open_node, soon

from millstream.log import LogSpec
from millstream.node import Node
from millstream.testing.waiting import until
from support.mqtt import publish
from support.server_databases import new_database

SETTINGS = """
[node]
database = "{database}"
lease = "6s"
[log]
store = "{logs}"
[queue]
broker = "amqp://127.0.0.1:1"
[serve.ingest.weather]
url = "{mqtt}"
topics = ["{root}/#"]
qos = {qos}
protocol = "{protocol}"
"""
PHASE = 1500


@pytest.mark.served
@pytest.mark.parametrize(("qos", "protocol"), [(2, "5"), (1, "3.1.1")])
def test_an_ingest_goes_on_elsewhere_after_its_process_was_stopped_or_killed(
    tmp_path: Path, postgresql: str, mosquitto: str, qos: int, protocol: str
) -> None:
    root = f"{tmp_path.name}-{os.getpid()}"
    with new_database(postgresql, "node") as database, new_database(postgresql, "logs") as logs:
        settings = SETTINGS.format(database=database, logs=logs, mqtt=mosquitto, root=root, qos=qos, protocol=protocol)
        folders = [tmp_path / name for name in ("one", "two", "tests")]
        for folder in folders:
            folder.mkdir()
            (folder / "millstream.toml").write_text(settings, "utf-8")
        with Serving(folders[0]) as one, Serving(folders[1]) as two, open_node(folders[2]) as node:
            processes = {each.process.pid: each for each in (one, two)}
            soon(lambda: _client(node) and _owners(node) == processes.keys(), "both with a role, and a session")
            client, first = _client(node), processes[_owner(node)]
            _interrupted(node, mosquitto, root, qos, 0, lambda: first.process.send_signal(signal.SIGSTOP))
            soon(lambda: _owner(node, but=first.process.pid), "another owner")
            soon(lambda: len(set(_numbers(node))) == PHASE, "what was sent meanwhile")
            first.process.send_signal(signal.SIGCONT)
            soon(lambda: _owners(node) == processes.keys(), "both with a role again")
            killed = processes[_owner(node)]
            _interrupted(node, mosquitto, root, qos, PHASE, killed.process.kill)
            soon(lambda: len(set(_numbers(node))) == 2 * PHASE, "what was sent meanwhile")
            assert _client(node) == client
            (left,) = (each for each in (one, two) if each is not killed)
            left.drain()
            found = _numbers(node)
        assert sorted(set(found)) == list(range(2 * PHASE))
        if qos == 2:
            assert found == sorted(found) and len(found) == 2 * PHASE, "each once, and in order"
        assert not any((folder / "ingest").exists() for folder in folders)


def _interrupted(node: Node, mqtt: str, root: str, qos: int, first: int, interrupt: Callable[[], object]) -> None:
    """Publish messages numbered from *first*, and *interrupt* when some of them are in the log."""
    messages = [(f"{root}/pump/level", b'{"n":%d}' % number) for number in range(first, first + PHASE)]
    sending = threading.Thread(target=publish, args=(mqtt, messages, qos))
    sending.start()
    log = node.logs.store.log(LogSpec("weather"))
    until(lambda: log.last_id > first + PHASE // 10, "messages in the log", seconds=60)
    interrupt()
    sending.join()


def _numbers(node: Node) -> list[int]:
    messages = [message for batch in node.logs.store.log(LogSpec("weather")).read() for message in batch]
    return [json.loads(message.body)["n"] for message in messages]


def _client(node: Node) -> str:
    """The client id of the session whose topics are subscribed, empty as long as there is none."""
    data = node.databases.documents.document("ingest/weather.json").read()
    session = {"topics": {}} if data is None else json.loads(data)
    return str(session["client"]) if session["topics"] else ""


def _owner(node: Node, but: int = 0) -> int:
    """The process that owns the ingest, 0 where there is none but *but*."""
    for member in node.databases.members.table.alive():
        if "ingest weather" in member.owns and member.details.pid != but:
            return member.details.pid
    return 0


def _owners(node: Node) -> set[int]:
    """The processes that own roles."""
    return {member.details.pid for member in node.databases.members.table.alive() if member.owns}
