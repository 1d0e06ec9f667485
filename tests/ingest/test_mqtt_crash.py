"""Processes die: the ingest between append and acknowledgement, and the broker. What is promised holds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.batching import BatchConfig, Batcher
from millstream.batching.message_events import event_from_message
from millstream.ingest.connection import MqttConnection
from millstream.log import LogSpec, open_store
from suite.sizes import sized
from support.mqtt import publish

from .conftest import Harness

pytestmark = pytest.mark.crash

MOST_QUIET_LOOKS = 240
"""About a minute without a message."""

CHILD = Path(__file__).parent / "children" / "ingest.py"
SECOND = 1_000_000


def signal_all(server, number):
    for process in server.processes:
        os.kill(process, number)


def start(url, folder, root, qos, where="never", turn=0):
    command = [sys.executable, str(CHILD), url, str(folder), f"{root}/#", str(qos), where, str(turn)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until_quiet(child, folder, count):
    """Let *child* go on until it has *count* messages and the broker no more for it, or for long nothing; end it.

    A broker with many messages and a slow disk is silent now and then for longer than two of the child's looks take.
    """
    quiet = 0
    while quiet < MOST_QUIET_LOOKS and (line := child.stdout.readline()):
        quiet = quiet + 1 if line == "0\n" else 0
        if quiet >= 2 and last_id(folder) >= count:
            break
    child.kill()
    child.communicate()


def stored(folder):
    with open_store(f"sqlite:///{folder / 'log.db'}", read_only=True) as store:
        return [message for batch in store.log(LogSpec("in")).read() for message in batch]


def last_id(folder):
    with open_store(f"sqlite:///{folder / 'log.db'}", read_only=True) as store:
        return store.log(LogSpec("in"), create=False).last_id


def numbers(messages):
    return [json.loads(message.body)["n"] for message in messages]


def sent(root, count, first=0):
    return [(f"{root}/pump/level", b'{"time":%d,"n":%d}' % (1000 + n, n)) for n in range(first, first + count)]


@pytest.mark.smoke
@pytest.mark.parametrize(("where", "qos"), [("between", 1), ("before", 2), ("between", 2), ("after", 2)])
def test_p2_an_ingest_killed_around_its_acknowledgement_loses_nothing(mosquitto, tmp_path, root, where, qos):
    harness = Harness(tmp_path, mosquitto.url)
    harness.subscribe(f"{root}/#", qos=qos)
    harness.store.close()
    publish(mosquitto.url, sent(root, 200), qos)
    for turn in (2, 1):
        child = start(mosquitto.url, tmp_path, root, qos, where, turn)
        child.communicate(timeout=60)
        assert child.returncode == -9
    until_quiet(start(mosquitto.url, tmp_path, root, qos), tmp_path, 200)
    messages = stored(tmp_path)
    assert sorted(set(numbers(messages))) == list(range(200))
    if qos == 2:
        assert numbers(messages) == list(range(200))  # each once, and in order
    elif where == "between":
        assert len(messages) > 200
    rules = BatchConfig(10 * SECOND, 2**60)
    batcher = Batcher.of(rules)
    outcomes = [batcher.receive_many(list(map(event_from_message, messages))), batcher.flush()]
    batched = [number for outcome in outcomes for batch in outcome.batches for number in batch.events]
    refused = [reject.reason for outcome in outcomes for reject in outcome.rejects]
    assert sorted(numbers([messages[number - 1] for number in batched])) == list(range(200))
    assert refused == ["duplicate"] * (len(messages) - 200)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p2_under_exactly_once_an_ingest_killed_at_any_moment_stores_each_message_once(mosquitto, tmp_path, root, size):
    """The child is killed at random moments while the broker is fed, and packet identifiers come round again."""
    rounds, each = sized(quick=(2, 200), ci=(4, 400), long=(60, 3000))
    draw = random.Random(5)
    harness = Harness(tmp_path, mosquitto.url)
    harness.subscribe(f"{root}/#", qos=2)
    harness.store.close()
    for number in range(rounds):
        publish(mosquitto.url, sent(root, each, number * each), 2)
        child = start(
            mosquitto.url, tmp_path, root, 2, draw.choice(["before", "between", "after"]), draw.randint(2, 15)
        )
        child.communicate(timeout=120)
        assert child.returncode == -9
        if number % 10 == 9:  # Mosquitto never delivers what waits beyond 65,535 messages, its packet identifiers
            until_quiet(start(mosquitto.url, tmp_path, root, 2), tmp_path, (number + 1) * each)
    until_quiet(start(mosquitto.url, tmp_path, root, 2), tmp_path, rounds * each)
    assert numbers(stored(tmp_path)) == list(range(rounds * each))


@pytest.mark.parametrize("qos", [1, 2])
def test_p2_what_a_killed_broker_had_on_its_disk_comes_when_it_is_back(careful_mosquitto, tmp_path, root, qos):
    harness = Harness(tmp_path, careful_mosquitto.url)
    harness.subscribe(f"{root}/#", qos=qos)
    publish(harness.url, sent(root, 100), qos)
    harness.take(40, f"{root}/#", qos=qos, in_flight=20)
    careful_mosquitto.kill()
    careful_mosquitto.start()
    harness.run(lambda: set(numbers(harness.records())) == set(range(100)), f"{root}/#", qos=qos)
    assert sorted(set(numbers(harness.records()))) == list(range(100))
    harness.store.close()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_an_ingest_that_leaves_waits_until_the_broker_has_its_acknowledgements(
    careful_mosquitto, tmp_path, root, monkeypatch, protocol
):
    """The broker is stopped before them, and finds a message for a client that has left before it has read them."""
    harness = Harness(tmp_path, careful_mosquitto.url)
    options = {"qos": 1, "protocol": protocol}
    harness.subscribe(f"{root}/#", **options)
    publish(harness.url, sent(root, 50), 1)
    confirm, close, left = MqttConnection.confirm, MqttConnection.close, threading.Event()
    helpers = [
        threading.Thread(target=publish, args=(harness.url, sent(root, 50, 50), 1)),
        threading.Thread(target=lambda: (left.wait(0.5), signal_all(careful_mosquitto, signal.SIGCONT))),
    ]

    def confirm_to_a_stopped_broker(self, arrivals, released):
        if harness.taken + len(arrivals) == 50:
            signal_all(careful_mosquitto, signal.SIGSTOP)
        confirm(self, arrivals, released)

    def close_while_it_is_stopped(self):
        for helper in helpers:
            helper.start()
        close(self)
        left.set()

    with monkeypatch.context() as patched:
        patched.setattr(MqttConnection, "confirm", confirm_to_a_stopped_broker)
        patched.setattr(MqttConnection, "close", close_while_it_is_stopped)
        harness.take(50, f"{root}/#", **options)
    for helper in helpers:
        helper.join()
    harness.take(50, f"{root}/#", **options)
    assert numbers(harness.records()) == list(range(100))
    harness.store.close()


def test_an_ingest_outlives_its_broker_and_goes_on_with_the_next_one(careful_mosquitto, tmp_path, root):
    harness = Harness(tmp_path, careful_mosquitto.url)
    killed = []

    def until():
        if not harness.said:
            return False
        if not killed:
            publish(harness.url, sent(root, 10))
            killed.append(careful_mosquitto.kill())
        elif len(killed) == 1 and any("was lost" in said for said in harness.said):
            killed.append(careful_mosquitto.start())
        elif len(killed) == 2 and harness.said[-1].startswith("connected"):
            killed.append(publish(harness.url, sent(root, 10, 10)))
        return len(killed) == 3 and 19 in numbers(harness.records())

    harness.run(until, f"{root}/#")
    assert set(numbers(harness.records())) >= set(range(10, 20))
    assert harness.figures.figures().by_label("ingest_connections_total", "")[""] >= 2
    harness.store.close()
