"""A node whose ledgers are time-stamped by real authorities, any of which may be away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import millstream.cli.node_roles
from millstream.anchoring.transparency.checkpoint import parse_checkpoint
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.cli.serve_roles import ServeRoles
from millstream.core.clock import SystemClock, VirtualClock
from millstream.testing.ledgers import some_anchor
from millstream.testing.waiting import until
from support.stamped_node import StampedNode
from support.timestamp_authority import TimestampAuthority, TimestampRoot

DAY = 86_400


@pytest.fixture
def root(tmp_path: Path) -> TimestampRoot:
    return TimestampRoot(tmp_path / "authorities")


@pytest.fixture
def one(root: TimestampRoot) -> Iterator[TimestampAuthority]:
    with TimestampAuthority(root, "One TSA") as running:
        yield running


@pytest.fixture
def two(root: TimestampRoot) -> Iterator[TimestampAuthority]:
    with TimestampAuthority(root, "Two TSA", digests="sha512, sha256") as running:
        yield running


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(SystemClock().now())


def test_each_authority_stamps_the_newest_checkpoint_once(
    one: TimestampAuthority, two: TimestampAuthority, root: TimestampRoot, tmp_path: Path
) -> None:
    node = StampedNode(tmp_path / "node", [one, two], f"timestamp_certificates = '{root.path}'")
    node.append(1, 2)
    code, answer = node.stamp()
    assert (code, answer["problems"]) == (0, {})
    records = sorted(answer["new"], key=lambda record: str(record["name"]))
    assert [(each["name"], each["size"], each["authority"]) for each in records] == [
        ("CN=One TSA", 2, one.url),
        ("CN=Two TSA", 2, two.url),
    ]
    code, again = node.stamp()
    assert (code, again, one.requests, two.requests) == (0, {"new": [], "problems": {}}, 1, 1)
    assert sorted(node.timestamps()["timestamps"], key=lambda record: str(record["name"])) == records
    text = node.command("anchor", "timestamps").out
    assert "2 entries: not later than 20" in text and "by CN=One TSA (valid until 2079-12-17T00:00:00Z)" in text
    assert "nothing to stamp" in node.command("anchor", "timestamp").out
    document = node.data / "cas" / records[0]["document"]
    assert parse_checkpoint(parse_note(document.read_bytes())).size == 2
    words = [
        "openssl",
        "ts",
        "-verify",
        "-token_in",
        "-in",
        records[0]["token"],
        "-data",
        document,
        "-CAfile",
        root.path,
    ]
    done = subprocess.run(words, cwd=node.data / "cas", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_authority_that_is_away_is_named_and_the_other_stamps(
    one: TimestampAuthority, two: TimestampAuthority, tmp_path: Path
) -> None:
    one.answer = lambda _, __: (503, b"")
    node = StampedNode(tmp_path / "node", [one, two])
    node.append(1)
    code, answer = node.stamp()
    assert (code, [each["name"] for each in answer["new"]]) == (1, ["CN=Two TSA"])
    assert answer["problems"] == {one.url: f"{one.url}: the server answered with status 503"}
    text = node.command("anchor", "timestamps").out
    assert "no time stamp at 20" in text and "the server answered with status 503" in text
    one.answer = lambda _, real: (200, real)
    code, answer = node.stamp()
    assert (code, [each["name"] for each in answer["new"]]) == (0, ["CN=One TSA"])
    assert node.timestamps()["authorities"][one.url]["problem"] is None


def test_a_token_that_the_certificates_do_not_verify_is_not_kept(one: TimestampAuthority, tmp_path: Path) -> None:
    other = TimestampRoot(tmp_path / "other")
    node = StampedNode(tmp_path / "node", [one], f"timestamp_certificates = '{other.path}'")
    node.append(1)
    answer = node.command("anchor", "timestamp")
    assert (answer.code, "CN=One TSA is not valid: certificate signature failure" in answer.out) == (1, True)
    assert node.timestamps()["timestamps"] == []
    assert not list((node.data / "cas").glob("*")), "nothing of it is kept"


def test_faults_of_the_settings_are_named(one: TimestampAuthority, tmp_path: Path) -> None:
    node = StampedNode(tmp_path / "none", [])
    node.append(1)
    answer = node.command("anchor", "timestamp")
    assert answer.code == 2 and "set anchoring.timestamp_authorities" in answer.err
    assert node.command("anchor", "timestamps").out == "no time stamps\n"
    node = StampedNode(tmp_path / "node", [one], "timestamp_certificates = '/nowhere/ca.pem'")
    node.append(1)
    answer = node.command("anchor", "timestamp")
    assert answer.code == 2 and "/nowhere/ca.pem: No such file or directory" in answer.err
    for line in ("timestamp_digest = 'md5'", "timestamp_interval = '0s'"):
        wrong = StampedNode(tmp_path / "wrong", [one], line)
        assert line.split()[0] in wrong.command("anchor", "timestamps").err
    (wrong.data / "millstream.toml").write_text("[anchoring]\ntimestamp_authorities = ['ftp://x']\n", "utf-8")
    assert (
        "scheme is neither http nor https: write http://HOST/PATH or https://HOST/PATH"
        in wrong.command("anchor", "timestamps").err
    )


def test_without_the_package_the_command_names_the_extra(
    one: TimestampAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = StampedNode(tmp_path / "node", [one])
    node.append(1)
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)
    answer = node.command("anchor", "timestamp")
    assert (answer.code, "pip install 'millstream[timestamps]'" in answer.err) == (2, True)


def test_an_empty_ledger_is_not_stamped(one: TimestampAuthority, tmp_path: Path) -> None:
    node = StampedNode(tmp_path / "node", [one])
    node.append()
    assert "the ledger is empty" in node.command("anchor", "timestamp").out
    assert one.requests == 0


def test_a_ledger_that_grew_is_stamped_once_in_an_interval(
    one: TimestampAuthority, clock: VirtualClock, tmp_path: Path
) -> None:
    with StampedNode(tmp_path / "node", [one]).open(clock) as node:
        collector = node.ledgers.timestamps.required_collector("anchors")
        assert collector.collect() == []
        node.anchoring.ledger.append(some_anchor(1))
        assert [record.size for record in collector.collect()] == [1]
        clock.jump(3 * DAY)
        assert collector.collect() == [], "the ledger has not grown"
        node.anchoring.ledger.append(some_anchor(2))
        assert [record.size for record in collector.collect()] == [2]
        node.anchoring.ledger.append(some_anchor(3))
        clock.advance(DAY - 1)
        assert collector.collect() == []
        clock.advance(1)
        assert [record.size for record in collector.collect()] == [3]
        assert one.requests == 3


def test_an_authority_that_fails_is_asked_again_after_longer_pauses(
    one: TimestampAuthority, clock: VirtualClock, tmp_path: Path
) -> None:
    one.answer = lambda _, __: (500, b"")
    with StampedNode(tmp_path / "node", [one]).open(clock) as node:
        node.anchoring.ledger.append(some_anchor(1))
        collector = node.ledgers.timestamps.required_collector("anchors")
        for asked in (1, 1, 2, 2, 3):
            collector.collect()
            assert one.requests == asked
            clock.advance(4 if asked == 1 else 9)
        one.answer = lambda _, real: (200, real)
        assert collector.collect(now=True)[0].size == 1, "an operator does not wait for the pause"
        assert collector.problems() == {}


def test_a_certificate_that_has_ended_gives_no_token_that_is_kept(root: TimestampRoot, tmp_path: Path) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    with TimestampAuthority(root, "Past TSA", end=past) as ended:
        node = StampedNode(tmp_path / "node", [ended], f"timestamp_certificates = '{root.path}'")
        node.append(1)
        code, answer = node.stamp()
    assert code == 1 and "certificate has expired" in answer["problems"][ended.url]


def test_a_serving_node_has_its_ledgers_stamped(
    one: TimestampAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and then every few seconds."""
    node = StampedNode(tmp_path / "first", [one])
    node.append(1)
    with node.open() as opened, ServeRoles(opened, lambda: None):
        until(opened.ledgers.timestamps.table("anchors").records, "a time stamp", seconds=4)
    one.requests = 0
    monkeypatch.setattr(millstream.cli.node_roles, "_STAMP_SECONDS", 0.01)
    one.answer = lambda _, real: (500, b"") if one.requests == 1 else (200, real)
    monkeypatch.setattr("millstream.anchoring.timestamps.collector._FIRST_PAUSE", 0.01)
    with StampedNode(tmp_path / "node", [one]).open() as node, ServeRoles(node, lambda: None):
        node.anchoring.ledger.append(some_anchor(1))
        node.registry.ledger.append(some_anchor(1))
        for ledger in ("anchors", "registry"):
            until(node.ledgers.timestamps.table(ledger).records, "a time stamp")
        assert one.requests == 3


def test_entries_without_a_time_stamp_become_an_issue(one: TimestampAuthority, tmp_path: Path) -> None:
    late = ["timestamp_interval = '1ms'", "timestamp_alarm = '0s'"]
    one.answer = lambda _, __: (502, b"")
    node = StampedNode(tmp_path / "node", [one], *late)
    node.append(1, 2)
    assert _issue(node) == "2 entries of the ledger anchors without a time stamp"
    node.stamp()
    assert _issue(node).endswith(f"without a time stamp: {one.url}: the server answered with status 502")
    one.answer = lambda _, real: (200, real)
    node.stamp()
    assert _issue(node) == ""
    node.append(3)
    assert _issue(node) == "1 entry of the ledger anchors without a time stamp"
    patient = StampedNode(tmp_path / "node", [one])
    assert _issue(patient) == "", "it is not late yet"


@pytest.mark.crash
def test_a_process_killed_before_its_token_is_listed_leaves_no_harm(one: TimestampAuthority, tmp_path: Path) -> None:
    node = StampedNode(tmp_path / "node", [one])
    node.append(1)
    script = """
import os, signal, sys
from millstream.anchoring.timestamps.timestamp_tables import TimestampTable
from millstream.cli.main import run
TimestampTable.add = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run(["anchor", "timestamp", "--data", sys.argv[1]])
"""
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", script, str(node.data)]
    killed = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert (killed.returncode, one.requests) == (-9, 1)
    assert len(list((node.data / "cas").glob("*"))) == 2, "the checkpoint and the token, which nothing names"
    assert node.timestamps()["timestamps"] == []
    assert [each["number"] for each in node.stamp()[1]["new"]] == [1]
    assert len(node.timestamps()["timestamps"]) == 1


def _issue(node: StampedNode) -> str:
    issues = json.loads(node.command("status", "--json").out.splitlines()[-1])["issues"]
    return next((str(issue["what"]) for issue in issues if issue["kind"] == "timestamps-missing"), "")
