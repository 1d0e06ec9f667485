"""The whole way: a fleet's measurements over MQTT, out of order, twice and late, become the batches of sorting."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys

import pytest

from millstream.batching import Batcher
from millstream.batching.default_limits import LIMITS_OF_NEW_NODES
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.log import LogSpec, open_store
from millstream.settings import load_settings
from support.commands import run_command
from support.mqtt import publish

SETTINGS = """
[batching]
window = "400ms"
max_delay = "7s"
max_count = 6
[[batching.override]]
key = "flow"
conflict_cut = "midpoint"
"""
HOUR = 3600 * MICROSECONDS


def fleet(now, seed):
    """What some devices measured in the last second, in order of time; a few said things an hour ago."""
    draw = random.Random(seed)
    times = sorted(now - draw.randrange(MICROSECONDS) for _ in range(400))
    times[:10] = [time - HOUR for time in times[:10]]
    return [
        {
            "device": f"pump-{draw.randrange(8)}",
            "kind": draw.choice(["flow", "level", "heat"]),
            "time": time,
            "value": n,
        }
        for n, time in enumerate(times)
    ]


def arrival(measured, seed):
    """Another order, and some of it twice."""
    draw = random.Random(seed)
    sent = measured + draw.sample(measured, 80)
    draw.shuffle(sent)
    return [json.dumps(one).encode() for one in sent]


def arguments(url, data, topic, *options):
    return ["ingest", "mqtt", url, "--topic", f"{topic}/#", "--log", "in", "--data", str(data),
            "--source", "$.device", "--key", "$.kind", "--unit", "us", "--value", "$.value",
            "--json", "--status", "0.2", *options]  # fmt: skip


def ingest(url, data, topic, *options):
    command = [sys.executable, "-m", "millstream", *arguments(url, data, topic, *options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def status_until(child, holds):
    for line in child.stdout:
        if holds(status := json.loads(line)):
            return status
    raise AssertionError(child.stderr.read())


def read(data, name):
    with open_store(f"sqlite:///{data / 'log.db'}", read_only=True) as store:
        return [message for batch in store.log(LogSpec(name)).read() for message in batch]


def given(data):
    items = [json.loads(message.body) for message in read(data, "out")]
    reasons = sorted(item["reason"] for item in items if "reason" in item)
    return sorted(item["batch"] for item in items if "batch" in item), reasons


def expected(data):
    """What the batcher gives in process for the records of the log, sorted by the time they happened."""
    settings, _ = load_settings({"data": str(data)}, environment={})
    messages, batcher = read(data, "in"), Batcher.of(settings.batching.rules_with(LIMITS_OF_NEW_NODES))
    events = sorted(
        (event_from_message(m) for m in messages if m.source != TICK_SOURCE), key=lambda event: event.event_time
    )
    outcomes = [batcher.receive_many(events), batcher.advance(messages[-1].received_at)]
    batches = sorted(batch.batch for outcome in outcomes for batch in outcome.batches)
    return batches, sorted(reject.reason for outcome in outcomes for reject in outcome.rejects)


@pytest.fixture
def folders(tmp_path):
    found = [tmp_path / name for name in ("one", "other")]
    for folder in found:
        folder.mkdir()
        (folder / "millstream.toml").write_text(SETTINGS)
    return found


def test_p5_a_fleets_batches_are_those_that_sorting_gives_whatever_the_order_of_arrival(mosquitto, folders, root):
    children = [
        ingest(mosquitto.url, folder, f"{root}/{folder.name}", "--batches", "out", "--qos", str(qos))
        for qos, folder in zip((1, 2), folders, strict=True)
    ]
    for child in children:
        status_until(child, lambda status: status["connected"])
    measured = fleet(SystemClock().now(), 1)
    for seed, (qos, folder) in enumerate(zip((1, 2), folders, strict=True)):
        payloads = arrival(measured, seed)
        publish(mosquitto.url, [(f"{root}/{folder.name}/x", payload) for payload in payloads], qos)
    for child in children:
        found = status_until(child, lambda s: sum(s["batches"].values()) and not s["open_sources"])
        assert found["records"] == 480
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err.count("\n")) == (0, 1)
    for folder in folders:
        assert given(folder) == expected(folder)
    one, other = map(given, folders)
    assert one[0] == other[0]
    assert {"late", "duplicate"} == set(one[1])


def test_sigterm_leaves_nothing_taken_unacknowledged_and_the_next_run_goes_on(mosquitto, tmp_path, root):
    child = ingest(mosquitto.url, tmp_path, root, "--qos", "2")
    status_until(child, lambda status: status["connected"])
    payloads = [json.dumps({"device": "p", "kind": "k", "value": n}).encode() for n in range(3000)]
    publish(mosquitto.url, [(f"{root}/x", payload) for payload in payloads[:2000]], 2)
    status_until(child, lambda status: status["records"])
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=60)[1].count("\n") == 1
    assert child.returncode == 0
    publish(mosquitto.url, [(f"{root}/x", payload) for payload in payloads[2000:]], 2)
    child = ingest(mosquitto.url, tmp_path, root, "--qos", "2")
    status_until(child, lambda status: status["last_id"] == 3000)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert [int(message.body) for message in read(tmp_path, "in")] == list(range(3000))


@pytest.mark.parametrize(
    ("url", "options", "code", "what"),
    [
        ("http://h", (), 2, "write mqtt://"),
        ("mqtt://h", ("--topic", "a#"), 2, "invalid topic filter"),
        ("mqtt://h", ("--in-flight", "0"), 2, "in flight"),
        ("mqtt://h", ("--expiry", "soon"), 2, "invalid duration"),
        ("mqtt://h", ("--expiry", "100ms"), 2, "choose 1 to 4,294,967,295 seconds"),
        ("mqtt://h", ("--key", "kind"), 2, "key: invalid selector 'kind'"),
    ],
)
def test_what_cannot_be_ingested_is_refused_by_name(tmp_path, url, options, code, what):
    answer = run_command(*arguments(url, tmp_path, "t", *options))
    assert answer.code == code
    assert what in answer.err
    assert "Traceback" not in answer.err
