"""Answers of single views, in the process of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import AskedInProcess

from millstream.log import LogSpec, Message
from millstream.node import Node
from millstream.rest import api
from millstream.rest.views import search
from millstream.rest.views.logs import MOST_BODY_BYTES, PREVIEW_BYTES
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.open(load_settings({"data": str(tmp_path / "node")})[0], create=True) as opened:
        yield opened


def test_the_description_is_made_once_and_not_in_the_event_loop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made, describe = list[threading.Thread](), api.describe

    def counted() -> Any:
        made.append(threading.current_thread())
        return describe()

    monkeypatch.setattr(api, "describe", counted)
    asked = AskedInProcess(node)
    answers = [asked.ask("GET", "/api/v1/openapi.json") for _ in range(2)]
    assert answers[0] == answers[1] and json.loads(answers[0][1])["openapi"] == "3.1.0"
    assert len(made) == 1 and made[0] is not threading.current_thread()


def test_only_a_body_that_is_text_is_shown_as_text(node: Node) -> None:
    bodies = {
        "short": ("é".encode(), "é", "é"),
        "long": (
            b"x" + "é".encode() * PREVIEW_BYTES,
            "x" + "é" * ((PREVIEW_BYTES - 1) // 2),
            "x" + "é" * PREVIEW_BYTES,
        ),
        "binary": (b"\xff" + b"x" * PREVIEW_BYTES, None, None),
        "binary end": (b"x" * 9 + b"\xc3", None, None),
        "huge": (
            b"x" + "é".encode() * MOST_BODY_BYTES,
            "x" + "é" * ((PREVIEW_BYTES - 1) // 2),
            "x" + "é" * ((MOST_BODY_BYTES - 1) // 2),
        ),
    }
    with node.logs.store.log(LogSpec("weather")).writer("test") as writer:
        writer.append([Message(body) for body, _, _ in bodies.values()])
    asked = AskedInProcess(node)
    rows = asked.api("/logs/weather/messages")["items"]
    for number, (name, (body, shown, whole)) in enumerate(bodies.items()):
        assert rows[number]["body"] == shown, name
        found = asked.api(f"/logs/weather/messages/{number + 1}")
        assert (found["bytes"], found["body"], found["body_base64"] is None) == (len(body), whole, whole is not None)


def test_a_search_for_a_key_goes_on_after_a_log_that_was_dropped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with node.logs.store.log(LogSpec("weather")).writer("test") as writer:
        writer.append([Message(b"x", "JFK-1")])
    monkeypatch.setattr(search, "message_logs", lambda _app: ["dropped", "weather"])
    assert [row["name"] for row in AskedInProcess(node).api("/search?q=JFK-1")["items"]] == ["weather/1"]


def test_invalid_entries_of_a_ledger_are_counted_by_themselves(node: Node) -> None:
    for number in range(3):
        node.anchoring.batch_writer.add("weather", [make_batch([number + 1])], [], config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)
    node.anchoring.ledger.append(f"1.{node.anchoring.cas.put(b'nonsense')}")
    node.anchoring.observer.observe()
    asked = AskedInProcess(node)
    every, bad = (asked.api(f"/anchors?only={only}") for only in ("all", "bad"))
    assert every["total"] == 4
    assert ([row["number"] for row in bad["items"]], bad["total"]) == ([4], 1)
    assert asked.api("/anchors?before=0")["items"] == []
    status, text = asked.ask("GET", "/api/v1/anchors?only=bad&ledger=registry")
    assert (status, "leave out ledger=registry" in text) == (400, True)
