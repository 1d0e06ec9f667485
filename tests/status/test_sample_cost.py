"""What is read of the queues of a node, and by how many statements."""

from __future__ import annotations

from pathlib import Path

from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.queue import queue_log
from millstream.queue.task_rows import TaskRows
from millstream.settings import load_settings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.snapshot import take_snapshot
from support.statement_counts import statements_of


def test_the_depths_of_all_queues_take_a_handful_of_statements(tmp_path: Path) -> None:
    """They are in tables: the broker, which notifies workers, is not asked."""
    environment = {"MILLSTREAM_QUEUE__BROKER": "amqp://guest:guest@127.0.0.1:1/%2F"}
    with Node.open(load_settings({"data": str(tmp_path)}, environment=environment)[0], create=True) as node:
        poller = StatusPoller(NodeView(node))
        poller.sample()
        assert {status.queue for status in poller.queues()} == {name.value for name in QueueName}
        other = TaskRows(node.databases.own, "millstream.other", node.clock)
        other.put([b"1", b"2"], 0)
        other.put([b"3"], 60_000_000)
        other.claim([1], 60_000_000)
        with statements_of(node.databases.own) as statements:
            poller.sample()
        assert sum("queue_" in text or "outbox" in text for text in statements) <= 3
        (found,) = [status for status in poller.queues() if status.queue == "other"]
        assert (found.ready, found.leased, found.delayed, found.dead) == (1, 1, 1, 0)


def test_queues_on_a_broker_are_not_said_to_have_no_worker(tmp_path: Path) -> None:
    """Workers of other members take their tasks, and none holds a log. A log is left of the time before the broker."""
    name = QueueName.DUPLICATION_LOW
    with Node.open(load_settings({"data": str(tmp_path)}, environment={})[0], create=True) as node:
        node.queues.open(name).put([b"1"])
    environment = {"MILLSTREAM_QUEUE__BROKER": "amqp://guest:guest@127.0.0.1:1/%2F"}
    with Node.open(load_settings({"data": str(tmp_path)}, environment=environment)[0]) as node:
        TaskRows(node.databases.own, f"millstream.{name}", node.clock).put([b"2"], 0)
        snapshot = take_snapshot(NodeView(node))
    assert [row.kind for row in snapshot.logs if row.log == queue_log(name).name] == ["queue"]
    assert snapshot.former_tasks == {name: 1}
    assert not snapshot.without_worker and not snapshot.orphans and "workers" not in snapshot.troubles
