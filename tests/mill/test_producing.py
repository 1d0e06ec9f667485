"""Producers within a process that works: what goes wrong is said, and ends nobody."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.cli.producer_threads import running_producers
from millstream.mill.notices.alarms import Alarms
from millstream.mill.policies.saving import save_policy
from millstream.mill.workers.monitor import EVERY, QueueMonitor
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.waiting import until

SETTINGS = """
[stores.one]
url = "file://{data}/stores/one"
[stores.two]
url = "file://{data}/stores/two"
[mill.produce]
duplication_every = "50ms"
bits_every = "50ms"
statistics_every = "50ms"
"""
POLICY = b'{"defaultPolicies": [{"srcStoreId": "one", "destStoreId": "two"}]}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "millstream.toml").write_text(SETTINGS)
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        save_policy(node.policies.location, "local", POLICY)
        yield node


def test_what_is_held_and_a_loop_that_is_done_are_said(node: Node) -> None:
    two = node.stores.providers["two"]
    for store in node.stores.providers.values():
        store.create_space("s")
    for number in range(12):
        two.put("s", f"{number}", io.BytesIO(b"body"))
    said: list[str] = []
    with running_producers(node, lambda: None, said.append):
        until(lambda: any("loop is done" in line for line in said), "a loop")
        until(lambda: any("HELD as a whole under number 1" in line for line in said), "a hold")


def test_an_error_of_any_kind_is_said_and_ends_no_producer(node: Node) -> None:
    node.stores.providers["one"].create_space("s")
    state = node.folder / "producers" / "statistics.json"
    state.parent.mkdir()
    state.write_text("no state")
    said: list[str] = []
    with running_producers(node, lambda: None, said.append):
        until(lambda: sum("is not a valid state of a producer" in line for line in said) >= 2, "two attempts")
        until(lambda: any(line == "producer of duplication: the loop is done" for line in said), "the others")
        state.unlink()
        until(lambda: any(line == "producer of statistics: the loop is done" for line in said), "the mended one")


def test_a_database_that_fails_ends_no_monitor(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue, broken = world.queue("audit"), [True]

    class Locked:
        def depth(self) -> Any:
            if broken.pop() if broken else False:
                raise sa.exc.OperationalError("SELECT", {}, Exception("database is locked"))
            return queue.depth()

    monitor = QueueMonitor({"audit": Locked()}, world.clock, Alarms(most=10, longest=3600))  # type: ignore[dict-item]
    thread = threading.Thread(target=monitor.run)
    thread.start()
    until(lambda: bool(caplog.messages), "a complaint")
    until(lambda: world.clock.advance(EVERY) or "audit" in monitor.figures.depths, "a look that works")
    monitor.stop()
    thread.join()
    assert all("the queue audit cannot be read: OperationalError" in line for line in caplog.messages)
