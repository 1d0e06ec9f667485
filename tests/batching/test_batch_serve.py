"""``millstream batch serve`` as a process: it batches while the log grows, drains when asked, survives ``kill -9``."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys

import pytest

from millstream.anchoring import replay, verify_proof
from millstream.batching import Batcher
from millstream.batching.default_limits import LIMITS_OF_NEW_NODES
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.cli.main import run
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.node import Node
from millstream.settings import Settings, load_settings
from millstream.testing.waiting import until
from support.commands import run_command

SETTINGS = """
[batching]
window = "200ms"
max_delay = "100ms"
max_count = 5
[[batching.override]]
source = "q"
window = 0
[[batching.override]]
key = "b"
late = "side"
grace = "1s"
"""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "millstream.toml").write_text(SETTINGS)
    return tmp_path


def rules_of(data):
    settings, _ = load_settings({"data": str(data)}, environment={})
    return settings.batching.rules_with(LIMITS_OF_NEW_NODES)


def start(data, *options):
    script = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "batch", "serve", "--log", "in", "--output", "out", "--data", str(data)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def append(data, count, seed=1):
    """Messages of the last second, out of order and some of them late."""
    draw, clock = random.Random(seed), SystemClock()
    with open_store(f"sqlite:///{data / 'log.db'}") as store, store.log(LogSpec("in")).writer() as writer:
        now = clock.now()
        times = [now - draw.randrange(MICROSECONDS // 8) for _ in range(count)]
        writer.append(
            [Message(b"%d" % draw.randrange(2), draw.choice(["a", "b", "c", ""]), draw.choice("pq"), t) for t in times]
        )


def read(data, name):
    with open_store(f"sqlite:///{data / 'log.db'}", read_only=True) as store:
        return [message for batch in store.log(LogSpec(name)).read() for message in batch]


def given_and_expected(data):
    """What is in the output, and what a batcher gives for the input up to its last receive time, in any order."""
    given = [json.loads(message.body) for message in read(data, "out")]
    messages, batcher = read(data, "in"), Batcher.of(rules_of(data))
    outcomes = [batcher.receive_many([event_from_message(m) for m in messages if m.source != TICK_SOURCE])]
    outcomes.append(batcher.advance(messages[-1].received_at))
    names = sorted(batch.batch for outcome in outcomes for batch in outcome.batches)
    refused = sorted((reject.rejected, reject.reason) for outcome in outcomes for reject in outcome.rejects)
    found = sorted(item["batch"] for item in given if "batch" in item)
    return (found, sorted((i["rejected"], i["reason"]) for i in given if "rejected" in i)), (names, refused)


def test_once_takes_what_is_there_and_says_how_it_went(data):
    append(data, 400)
    child = start(data, "--once", "--json", "--metrics", str(data / "batch.prom"))
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert "millstream_batching_delay_seconds_count 400\n" in (data / "batch.prom").read_text()
    status = json.loads(out.splitlines()[-1])
    given, expected = given_and_expected(data)
    assert given == expected
    assert (status["position"], status["behind"]) == (400, 0)
    assert sum(status["rejects"].values()) == len(expected[1])
    assert set(status["rejects"]) >= {"late"}
    assert status["delay_seconds"]["half"] <= status["delay_seconds"]["all"]


def test_a_single_run_that_was_stopped_is_an_interruption(data, monkeypatch, capsysbinary):
    append(data, 400)
    monkeypatch.setattr("millstream.cli.batch_serve.stop_on_signals", lambda: lambda: True)
    assert run(["batch", "serve", "--log", "in", "--output", "out", "--once", "--json", "--data", str(data)]) == 130
    assert json.loads(capsysbinary.readouterr().out)["behind"] == 400


def test_metrics_that_cannot_be_written_do_not_end_the_service(data):
    append(data, 100)
    file = data / "absent" / "batch.prom"
    child = start(data, "--once", "--json", "--metrics", str(file))
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, f"--metrics {file} could not be written: No such file or directory\n")
    assert json.loads(out.splitlines()[-1])["position"] == 100


def test_quiet_sources_close_by_ticks_and_sigterm_ends_it_in_order(data):
    append(data, 100)
    child = start(data, "--json", "--status", "0")
    for line in child.stdout:
        status = json.loads(line)
        if status["behind"] == 0 and status["open_sources"] == 0 and status["position"] > 100:
            break
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert any(message.source == TICK_SOURCE for message in read(data, "in"))
    given, expected = given_and_expected(data)
    assert given == expected
    members = sum(len(json.loads(m.body).get("events", "x")) for m in read(data, "out"))
    assert members == 100  # all are out: in a batch, or refused
    assert (data / "batching" / "out.state").exists()


@pytest.mark.crash
def test_p5_killed_while_the_log_grows_it_loses_nothing_and_gives_nothing_twice(data):
    draw = random.Random(2)
    for seed in range(4):
        append(data, 3000, seed)
        child = start(data, "--json", "--status", "0")
        for _ in range(draw.randint(1, 4)):
            assert json.loads(child.stdout.readline())["log"] == "in"
        child.kill()
        child.communicate()
    assert start(data, "--once").communicate(timeout=60)[1] == ""
    given, expected = given_and_expected(data)
    assert given == expected


@pytest.mark.parametrize(
    ("settings", "code", "what"),
    [
        ("", 3, "'in'"),
        ('[batching]\nwindow = "soon"', 2, "window"),
        ("[batching]\nmax_count = -1", 2, "invalid max_count -1"),
    ],
    ids=["no such log", "a bad duration", "a bad cap"],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path, settings, code, what):
    (tmp_path / "millstream.toml").write_text(settings)
    child = start(tmp_path)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert what in err
    assert "Traceback" not in err


def test_with_anchor_one_process_takes_a_log_to_its_proofs(data):
    (data / "millstream.toml").write_text(SETTINGS.partition("[[")[0])
    append(data, 60)
    child = start(data, "--anchor", "--anchor-every", "200ms", "--json")
    with Node.open(Settings(data=str(data)), create=True) as node:
        until(lambda: node.anchoring.observer.index.totals().batches or child.poll() is not None, "an anchored batch")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    handed = json.loads(out.splitlines()[-1])
    given = [json.loads(message.body) for message in read(data, "out")]
    batched = [number for item in given for number in item.get("events", [])]
    assert (handed["messages"], handed["rejects"]) == (len(batched), sum("rejected" in item for item in given))
    with Node.open(Settings(data=str(data))) as node:
        assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()
        assert node.anchoring.observer.index.totals().messages == len(batched)
        assert verify_proof(node.proofs.prove("in", batched[0]), node.anchoring.cas).message.id == batched[0]


def test_lines_without_keys_are_batched_together_however_many_came_at_once(tmp_path, capsys):
    (tmp_path / "lines").write_bytes(b"".join(b"line %d\n" % (number % 90) for number in range(100)))
    (tmp_path / "last").write_bytes(b"what moves the log's clock\n")
    (tmp_path / "millstream.toml").write_text("[batching]\nwindow = 0\nmax_delay = 0\n")
    there = ["--data", str(tmp_path)]
    for name in ("lines", "last"):
        assert run(["log", "append", "in", str(tmp_path / name), *there]) == 0
    assert run(["batch", "serve", "--log", "in", "--output", "out", "--once", *there]) == 0
    given = [json.loads(message.body) for message in read(tmp_path, "out")]
    assert [len(item["events"]) for item in given if "events" in item] == [90]
    assert [item["reason"] for item in given if "reason" in item] == ["duplicate"] * 10


def test_what_is_open_is_told_also_where_nothing_came_since(tmp_path):
    settings, clock = Settings(data=str(tmp_path)), SystemClock()
    with Node.open(settings, create=True) as node, node.logs.store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"", "k", source, clock.now()) for source in "abc"])
    command = ["batch", "serve", "--log", "in", "--output", "out", "--once", "--data", str(tmp_path)]
    said = [run_command(*command).out for _ in range(3)]
    assert [line.rpartition("; ")[2] for line in said] == ["3 sources open\n"] * 3


def test_a_feed_of_its_own_anchors_what_a_service_has_batched(data, capsys):
    (data / "millstream.toml").write_text(SETTINGS.partition("[[")[0])
    append(data, 60)
    start(data, "--once", "--no-ticks").communicate(timeout=60)
    with open_store(f"sqlite:///{data / 'log.db'}") as store, store.log(LogSpec("in")).writer() as writer:
        later = SystemClock().now() + MICROSECONDS // 2
        writer.append([Message(b"1", "a", "p", later, received_at=later)])  # closes the batches of those before it
    start(data, "--once", "--no-ticks").communicate(timeout=60)
    capsys.readouterr()
    for batches in (True, False):
        assert run(["anchor", "feed", "in", "out", "--once", "--json", "--data", str(data)]) == 0
        handed = json.loads(capsys.readouterr().out)
        assert bool(handed["batches"]) == bool(handed["anchors"]) == batches
