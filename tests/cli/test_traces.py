"""Traces as a collector gets them, over OTLP from real processes: from whoever sent a message to its anchor."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from serving_nodes import Serving, open_node

from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.testing.waiting import until
from support.commands import run_command
from support.outboxes import connect_application, make_outbox
from support.trace_collector import TraceCollector, collecting

SETTINGS = """
[serve]
anchor_every = "100ms"
[serve.batching]
pumps = "pumps.batches"
orders = "orders.batches"
notes = "notes.batches"
[serve.ingest.pumps]
url = "{mosquitto}"
topics = ["{topic}/#"]
[serve.relay.orders]
url = "{application}"
poll = "20ms"
[batching]
window = "50ms"
max_delay = "5s"
"""


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collecting() as found:
        yield found


def test_devices_outboxes_and_the_console_are_traced_to_the_anchor(
    tmp_path: Path, mosquitto: str, collector: TraceCollector
) -> None:
    application, topic = f"sqlite:///{tmp_path / 'application.db'}", f"{tmp_path.name}-{os.getpid()}"
    sqlite3.connect(tmp_path / "application.db").close()
    make_outbox(application)
    settings = SETTINGS.format(mosquitto=mosquitto, topic=topic, application=application)
    (tmp_path / "millstream.toml").write_text(settings, "utf-8")
    with open_node(tmp_path) as node:
        node.logs.store.log(LogSpec("notes"))
    with Serving(tmp_path, collector.environment) as served:
        until(lambda: b"connected as" in (tmp_path / "lines.jsonl").read_bytes(), "a connection to the broker")
        device, order = _traceparent(), _traceparent()
        _publish(mosquitto, f"{topic}/pump/level", device)
        with contextlib.closing(connect_application(application)) as session:
            headers = json.dumps({"traceparent": order})
            session.execute("INSERT INTO outbox (body, source, headers) VALUES (?, ?, ?)", b"tea", "a", headers)
            session.execute("INSERT INTO outbox (body, source) VALUES (?, ?)", b"no trace of its own", "b")
        _post(f"{served.ready['console']}/api/v1/logs/notes/messages", {"body": "hello"})
        for first, sender in (("ingest", device), ("relay", order)):
            trace, caller = sender.split("-")[1:3]
            until(lambda trace=trace: "anchor" in collector.of_trace(trace), f"the anchor of {first}")
            spans = collector.of_trace(trace)
            assert [spans[first].parent, spans["batch"].parent] == [caller, spans[first].id]
            assert spans["anchor"].parent == spans["batch"].id and spans["anchor"].attributes["millstream.anchor"] >= 1
            assert {span.service for span in spans.values()} == {"millstream"}
        until(lambda: _anchored(collector, "publish") == 1, "the anchor of the note")
        until(lambda: _anchored(collector, "relay") == 2, "the anchor of the order without a trace of its own")
        served.drain()


@pytest.mark.spark
def test_a_job_on_spark_that_anchors_history_ends_the_traces_of_its_messages(
    tmp_path: Path, collector: TraceCollector
) -> None:
    sender = _traceparent()
    with open_node(tmp_path) as node, node.logs.store.log(LogSpec("weather")).writer() as writer:
        traced = Message(b"1", "k", "a", headers=(("traceparent", sender.encode()),))
        writer.append([traced, Message(b"2", "k", "b")])
    command = [sys.executable, "-m", "millstream", "pipeline", "anchor", "weather", "--flush", "--data", str(tmp_path)]
    for _ in range(2):  # what was anchored before is not traced again
        ran = subprocess.run(
            command, env={**os.environ, **collector.environment}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    (anchor,) = [span for span in collector.spans if span.name == "anchor"]
    assert [anchor.trace, anchor.parent] == sender.split("-")[1:3]
    assert anchor.attributes["millstream.message"] == 1 and anchor.attributes["millstream.log"] == "weather"
    assert [span.name for span in collector.spans].count("cut") == 1


def test_a_protocol_that_traces_are_not_sent_in_is_named(tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}
    answer = run_command("config", "show", "--data", str(tmp_path), environment=environment)
    assert answer.code == 2 and "'carrier pigeon'" in answer.err and "http/protobuf" in answer.err


def _anchored(collector: TraceCollector, first: str) -> int:
    """How many traces with a span *first* have come to an anchor."""
    return sum("anchor" in collector.of_trace(span.trace) for span in list(collector.spans) if span.name == first)


def _traceparent() -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _post(url: str, body: Mapping[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers, method="POST")) as answer:
        assert answer.status == 200


def _publish(url: str, topic: str, trace: str) -> None:
    """Publish one message whose sender is part of *trace*, as devices with OpenTelemetry do."""
    import paho.mqtt.publish as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    from millstream.ingest.broker_url import parse_broker

    place, properties = parse_broker(url), Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("unit", "mm"), ("traceparent", trace)]
    properties.MessageExpiryInterval, properties.ContentType = 60, "application/json"
    client = paho.paho.Client(paho.paho.CallbackAPIVersion.VERSION2, protocol=paho.paho.MQTTv5)
    client.connect(place.host, place.port)
    client.loop_start()
    try:
        client.publish(topic, b'{"n":1}', qos=1, properties=properties).wait_for_publish(30)
    finally:
        client.disconnect()
        client.loop_stop()
