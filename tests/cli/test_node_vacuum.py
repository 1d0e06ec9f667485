"""The database of a node in its folder is vacuumed while no process serves the node."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

from millstream.node import Node
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import load_settings
from millstream.status.serving_node import announced
from support.commands import run_command


def opened(folder: Path) -> Node:
    return Node.open(load_settings({"data": str(folder)}, environment={})[0], create=True)


def with_free_space(folder: Path) -> Path:
    """The database of a node in *folder* with an event, and the space of 200 that were removed."""
    with opened(folder) as node:
        log = OperatorAuditLog(node.databases.own, node.clock)
        log.add("me", "kept", "this")
        for _ in range(200):
            log.add("me", "removed", "that", reason="x" * 10_000)
    with contextlib.closing(sqlite3.connect(folder / "node.db")) as connection:
        connection.execute("DELETE FROM console_trail WHERE action = 'removed'")
        connection.commit()
    return folder / "node.db"


def test_free_space_goes_back_to_the_file_system_and_the_rows_stay(tmp_path: Path) -> None:
    path = with_free_space(tmp_path)
    size = path.stat().st_size
    done = run_command("node", "vacuum", "--data", str(tmp_path), "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["bytes_before"] >= size > told["bytes_after"] + 1_900_000
    assert path.stat().st_size < size - 1_900_000
    with opened(tmp_path) as node:
        events = OperatorAuditLog(node.databases.own, node.clock).last()
    assert [(event.action, event.target) for event in events] == [("vacuum", "node.db"), ("kept", "this")]


def test_a_node_that_is_served_is_left_alone(tmp_path: Path) -> None:
    path = with_free_space(tmp_path)
    size = path.stat().st_size
    with announced(tmp_path, "127.0.0.1", 1):
        told = run_command("node", "vacuum", "--data", str(tmp_path))
    assert (told.code, "stop the process first" in told.err, path.stat().st_size) == (4, True, size)


def test_a_node_without_the_file_says_who_compacts_its_tables(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("")
    told = run_command("node", "vacuum", "--data", str(tmp_path))
    assert (told.code, "vacuumed by its administrator" in told.err) == (3, True)
