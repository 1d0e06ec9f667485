"""``millstream batch rules``: an operator changes the rules of a log that is batched and anchored."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from millstream.anchoring import replay, verify_proof
from millstream.anchoring.content import read_manifest
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.message import Message
from millstream.core.timestamps import format_timestamp
from millstream.log import LogSpec, open_store
from millstream.node import Node
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import load_settings
from support.commands import run_command

RULES = '[batching]\nwindow = "{}"\nmax_delay = "2s"\n'
BEGIN = SystemClock().now() // MICROSECONDS * MICROSECONDS - 1000 * MICROSECONDS


def write_rules(data, window):
    (data / "millstream.toml").write_text(RULES.format(window))


def append(data, first, last):
    """A message each second, received at once."""
    with open_store(f"sqlite:///{data / 'log.db'}") as store, store.log(LogSpec("in")).writer() as writer:
        times = [BEGIN + second * MICROSECONDS for second in range(first, last)]
        writer.append([Message(b"%d" % time, f"k{time}", "pump", time, time) for time in times])


def append_late(data, received):
    """A message that is rejected as late."""
    with open_store(f"sqlite:///{data / 'log.db'}") as store, store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"late", "k", "pump", BEGIN, BEGIN + received * MICROSECONDS)])


def command(data, *words):
    return run_command("batch", *words, "--data", str(data))


def serve(data):
    return command(data, "serve", "--log", "in", "--output", "out", "--once", "--no-ticks", "--anchor")


def spans(data):
    """The first and last second of each batch in the log of batches."""
    with open_store(f"sqlite:///{data / 'log.db'}", read_only=True) as store:
        bodies = [json.loads(message.body) for batch in store.log(LogSpec("out")).read() for message in batch]
    batches = [body for body in bodies if "batch" in body]
    return [tuple((body[name] - BEGIN) // MICROSECONDS for name in ("start", "end")) for body in batches]


@pytest.fixture
def data(tmp_path):
    write_rules(tmp_path, "9s")
    append(tmp_path, 0, 45)
    assert serve(tmp_path).code == 0
    return tmp_path


def test_the_rules_are_shown_changed_from_a_time_on_and_anchored(data):
    before = spans(data)
    assert before == [(0, 9), (10, 19), (20, 29), (30, 39)]
    append_late(data, received=44)
    assert serve(data).code == 0
    assert waiting_rejects(data) == 1  # until there is a new batch
    write_rules(data, "4s")
    refused = serve(data)
    assert (refused.code, "millstream batch rules" in refused.err) == (2, True)
    shown = command(data, "rules", "out")
    assert "rules 1, from the first message: 1 window=9000000 " in shown.out
    assert "rules in the settings, not in use: 1 window=4000000 " in shown.out
    since = format_timestamp(BEGIN + 62 * MICROSECONDS)
    changed = command(data, "rules", "out", "--change", "--from", since)
    assert (changed.code, changed.err) == (0, "")
    assert f"rules 2, from {since}: 1 window=4000000 " in changed.out
    append(data, 45, 80)
    assert serve(data).code == 0
    assert spans(data) == [*before, (40, 49), (50, 59), (62, 66), (60, 61), (67, 71), (72, 76)]  # by closing time
    settings, _ = load_settings({"data": str(data)}, environment={})
    with Node.open(settings) as node:
        assert len(OperatorAuditLog(node.databases.own, node.clock).of("change batching rules", "out")) == 1
        assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()
        assert verify_proof(node.proofs.prove("in", 65), node.anchoring.cas).message.id == 65
        manifests = [read_manifest(node.anchoring.cas, e.anchor_string)[1] for e in node.anchoring.ledger.entries()]
        assert [len(manifest.config.get("changes", ())) for manifest in manifests] == [0, 1]
    assert waiting_rejects(data) == 0


def waiting_rejects(data):
    settings, _ = load_settings({"data": str(data)}, environment={})
    with Node.open(settings) as node:
        return node.anchoring.journal.totals().waiting_rejects


def test_the_json_numbers_the_rules_and_says_when_others_may_begin(data):
    clock = BEGIN + 44 * MICROSECONDS
    found = json.loads(command(data, "rules", "out", "--json").out)
    assert (found["log"], found["as_in_settings"]) == ("in", True)
    assert found["batched_to"] == format_timestamp(clock)
    assert found["earliest_change"] == format_timestamp(clock + 2 * MICROSECONDS + 1)
    write_rules(data, "4s")
    changed = json.loads(command(data, "rules", "out", "--change", "--json").out)
    told = [(rules["number"], rules["since"], rules["rules"]["window"]) for rules in changed["rules"]]
    assert told == [(1, None, 9_000_000), (2, found["earliest_change"], 4_000_000)]
    assert changed["as_in_settings"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["other", "--change"], "add LOG = 'other' to the section serve.batching"),
        (["out", "--change"], "has the rules in the settings already"),
        (["out", "--from", "2026-12-01T00:00Z"], "add --change"),
    ],
)
def test_what_cannot_be_changed_is_refused(data, words, what):
    refused = command(data, "rules", *words)
    assert (refused.code, what in refused.err) == (2, True)


@pytest.mark.parametrize("anchored", ["already", "and read again", "in a copy", "later by serve"])
def test_rules_that_amend_batches_are_refused_for_a_log_whose_batches_are_anchored(data, anchored):
    amending, served, output = RULES.format("4s") + 'late = "amend"\ngrace = "10s"\n', "", "out"
    if anchored == "later by serve":
        served, output = '[serve.batching]\nin = "other"\n', "other"
        assert command(data, "serve", "--log", "in", "--output", output, "--once", "--no-ticks").code == 0
    if anchored == "and read again":
        assert run_command("log", "seek", "out", "--consumer", "anchor", "--to", "1", "--data", str(data)).code == 0
    if anchored == "in a copy":
        with contextlib.closing(sqlite3.connect(data / "log.db")) as database, database:
            assert database.execute("DELETE FROM states WHERE key = 'consumer/anchor'").rowcount == 1
    (data / "millstream.toml").write_text(amending + served)
    refused = command(data, "rules", output, "--change")
    assert refused.code != 0
    assert "anchored batches are final" in refused.err
    assert "rules 2" not in command(data, "rules", output).out


def test_a_change_of_what_is_batched_already_names_the_earliest_time(data):
    write_rules(data, "4s")
    refused = command(data, "rules", "out", "--change", "--from", format_timestamp(BEGIN))
    assert refused.code == 2
    assert f"choose {format_timestamp(BEGIN + 46 * MICROSECONDS + 1)} or a later time" in refused.err
    assert "rules 2" not in command(data, "rules", "out").out
