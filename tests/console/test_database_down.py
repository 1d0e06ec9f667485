"""The interface for programs while the database of the node fails: 503, and no fault of the console."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

from in_process import asked_in_process

from millstream.node import Node
from millstream.settings import load_settings


def test_changes_and_pages_that_need_a_failing_database_say_when_to_try_again(tmp_path: Path) -> None:
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        assert node.stores.manifest is not None
    with asked_in_process(tmp_path) as asked:
        assert asked.ask("GET", "/readyz")[0] == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database, database:
            database.execute("ALTER TABLE console_trail RENAME TO hidden_trail")
            database.execute("ALTER TABLE anchor_batches RENAME TO hidden_batches")
        item = {"space": "s", "content_id": "a", "reason": "test"}
        status, text = asked.ask("POST", "/api/v1/integrity/repair", item)
        told = json.loads(text)
        assert (status, told["code"]) == (503, "busy")
        assert told["message"].startswith("the database failed (no such table: console_trail)")
        assert asked.headers[b"retry-after"] == b"5"
        assert asked.ask("GET", "/readyz")[0] == 503
        assert asked.headers[b"retry-after"] == b"5"
        status, text = asked.ask("GET", "/audit")
        assert (status, "no such table: console_trail" in text) == (503, True)
        assert asked.headers[b"retry-after"] == b"5"
