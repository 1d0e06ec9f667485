"""The interface for programs while the database of the node fails: 503, and no fault of the console."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from in_process import asked_in_process

from millstream.node import Node
from millstream.rest import api
from millstream.rest.views import system
from millstream.settings import load_settings
from millstream.testing.waiting import until


def test_a_registry_database_that_does_not_answer_holds_up_one_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, holding = f"sqlite:///{tmp_path / 'dids.db'}", threading.Event()
    engine = sa.create_engine(database)
    monkeypatch.setattr(system, "_LOOK_SECONDS", 0.01)
    with Node.open(load_settings({"data": str(tmp_path / "node")})[0], create=True) as node:
        assert node.stores.manifest is not None
    with asked_in_process(tmp_path / "node") as asked:
        monkeypatch.setattr(asked.node.databases, "at", lambda _url: engine)
        assert system._registry_problem(asked.app, database) == ""
        monkeypatch.setattr(asked.node.databases, "at", lambda _url: holding.wait(60) and engine)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(system._registry_problem, asked.app, database)
            until(system._looking.locked, "the first look")
            assert system._registry_problem(asked.app, database) == "it has not answered an earlier look yet"
            holding.set()
            assert first.result() == ""
    engine.dispose()


def test_many_probes_look_at_the_node_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, answering = list[object](), threading.Event()

    def look(app: object) -> system.Health:
        looks.append(app)
        answering.wait(60)
        return system.Health(True)

    monkeypatch.setattr(api, "look_at_health", look)
    monkeypatch.setattr(api, "READY_SECONDS", 3600.0)
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        assert node.stores.manifest is not None
    with asked_in_process(tmp_path) as asked:
        (ready,) = [one.endpoint for one in api.api_routes(asked.app) if getattr(one, "path", "") == "/readyz"]

        async def ask() -> list[int]:
            probes = [asyncio.ensure_future(ready(None)) for _ in range(100)]
            await asyncio.to_thread(until, lambda: looks, "the look")
            probes[0].cancel()  # whoever asked first has closed the connection
            answering.set()
            return [answer.status_code for answer in await asyncio.gather(*probes[1:], ready(None))]

        assert asyncio.run(ask()) == [200] * 100 and len(looks) == 1
        monkeypatch.setattr(api, "READY_SECONDS", 0.0)
        asyncio.run(ready(None))
        assert len(looks) == 2


def test_changes_and_pages_that_need_a_failing_database_say_when_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "READY_SECONDS", 0.0)
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
