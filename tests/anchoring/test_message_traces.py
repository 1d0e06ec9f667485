"""One trace leads from the producer of a message over the broker and its batch to the anchor, in whatever process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

TRACES = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millstream.batching.ticks import idle_log_ticker
from millstream.core.message import Message as Plain
from millstream.log import LogSpec
from millstream.core.address import Address
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import Message, Producer, PushConsumer, SimpleConsumer
from millstream.node import Node
from millstream.settings import load_settings

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)

async def produce(node):
    async with node.messaging.broker(Address("127.0.0.1", 0)) as broker:
        await broker.supervisor.core.create_topic(TopicSpec("weather"))
        async with Producer(f"127.0.0.1:{broker.port}", ["weather"]) as producer:
            with trace.get_tracer("shop").start_as_current_span("order"):
                await producer.send(Message("weather", b"17", keys=("a",)))
            await producer.send_many([Message("weather", b"18", keys=("b",)), Message("weather", b"19", keys=("c",))])
        await consume(f"127.0.0.1:{broker.port}")

async def consume(endpoints):
    handled, all_handled = [], asyncio.Event()

    async def handle(message):
        with trace.get_tracer("kitchen").start_as_current_span("cook"):
            handled.append(message)
        if len(handled) == 3:
            all_handled.set()

    async with PushConsumer(endpoints, "kitchen", {"weather": "*"}, handle), asyncio.timeout(30):
        await all_handled.wait()
    async with SimpleConsumer(endpoints, "cellar", {"weather": "*"}, await_duration=5) as consumer, asyncio.timeout(30):
        received = 0
        while received < 3:
            messages = await consumer.receive(32)
            await consumer.ack(*messages)
            received += len(messages)

settings, _ = load_settings({"data": sys.argv[1]})
with Node.open(settings, create=True) as node:
    asyncio.run(produce(node))
    log = node.logs.store.log(LogSpec("weather"))
    with log.writer() as writer:
        writer.append([Plain(b"untraced", "k", "s")])
    service = node.batching.service("weather", "weather.batches", ticks=idle_log_ticker(log, node.clock))
    feed = node.anchoring.feed("weather", "weather.batches")

    def all_anchored():
        feed.step(force=True)
        return feed.total.messages + feed.total.rejects == 4

    service.run(all_anchored)
for span in kept.get_finished_spans():
    parent = format(span.parent.span_id, "016x") if span.parent else None
    print(json.dumps([span.name, format(span.context.trace_id, "032x"), format(span.context.span_id, "016x"), parent,
                      dict(span.attributes)]))
"""


def test_without_a_provider_nothing_is_traced_and_nothing_imported() -> None:
    program = (
        "import sys; from millstream.core import tracing\n"
        "with tracing.span('x', parent='nonsense', links=['y']) as made: assert made is None\n"
        "with tracing.exporting(): assert not tracing.is_on()\n"
        "sys.exit('opentelemetry' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_trace_leads_from_the_producer_to_the_anchor(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    (tmp_path / "millstream.toml").write_text('[batching]\nwindow = "50ms"\nmax_delay = "3s"\n', "utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", TRACES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    spans = [json.loads(line) for line in ran.stdout.splitlines()]
    (order,) = [span for span in spans if span[0] == "order"]
    of_order = {name: (own, parent, facts) for name, trace, own, parent, facts in spans if trace == order[1]}
    assert {"order", "send", "store", "consume", "cook", "batch", "anchor"} <= set(of_order)
    relations = [("send", "order"), ("store", "send"), ("consume", "send"), ("cook", "consume")]
    for name, parent in (*relations, ("batch", "send"), ("anchor", "batch")):
        assert of_order[name][1] == of_order[parent][0], name
    facts = of_order["anchor"][2]
    assert facts["millstream.log"] == "weather" and facts["millstream.anchor"] >= 1
    assert facts["millstream.batch"] == of_order["batch"][2]["millstream.batch"]
    assert of_order["consume"][2]["millstream.group"] == "kitchen"
    names = Counter(span[0] for span in spans)
    assert names["consume"] == 3
    assert sum(span[4].get("millstream.messages", 0) for span in spans if span[0] == "receive") == 3
    assert (names["send"], names["batch"], names["anchor"]) == (2, 3, 3), "the untraced message has no part in it"
    assert names["cut"] == names["append to the ledger"] == names["read back"] >= 1


def test_asking_for_traces_without_the_packages_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("", "utf-8")
    command = [sys.executable, "-m", "millstream", "config", "show", "--data", str(tmp_path)]
    environment = {"PYTHONPATH": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "PATH": ""}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 2 and "millstream[telemetry]" in ran.stderr
