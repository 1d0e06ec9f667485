"""``millstream mill produce`` and ``approve`` from the outside: exit codes for cron, a stop by signal, a held space."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.core.documents import FileDocument
from millstream.stores import LocalStore
from millstream.testing.waiting import until

Run = Callable[..., tuple[int, list[Any]]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's folder with two stores, a policy that copies from the first to the second, and twelve items."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    stores = [f'[stores.{name}]\nurl = "file://{folder}/stores/{name}"\n' for name in ("one", "two")]
    limits = "[mill.produce]\nduplication_most = 10\n[mill.change_guard]\nleast = 3\n"
    (folder / "millstream.toml").write_text("\n".join([*stores, limits]))
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    policy = {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": "two"}]}
    (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps(policy))
    for name in ("one", "two"):
        (folder / "stores" / name).mkdir(parents=True)
    local(folder, "one").create_space("s")
    for number in range(12):
        local(folder, "one").put("s", f"item {number:02d}", io.BytesIO(b"body %d" % number))
    return folder


def local(folder: Path, store: str) -> LocalStore:
    return LocalStore(folder / "stores" / store)


@pytest.fixture
def mill(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command with ``--json``; its exit code and what it printed."""

    def call(*arguments: str) -> tuple[int, list[Any]]:
        code = run(["mill", *arguments, "--data", str(data), "--json"])
        return code, [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    return call


def test_a_run_of_a_producer_says_by_its_exit_code_how_it_ended(mill: Run) -> None:
    code, (made,) = mill("produce", "duplication", "--once")
    assert (code, made["outcome"], made["tasks"]) == (0, "done", 13)
    code, (made,) = mill("produce", "duplication", "--once")
    assert (code, made["outcome"]) == (11, "not-due")
    assert mill("work", "--drain")[0] == 0


def test_a_full_queue_is_gone_on_with_when_workers_made_room(data: Path, mill: Run) -> None:
    local(data, "one").create_space("t")
    local(data, "one").put("t", "x", io.BytesIO(b"body"))
    code, (made,) = mill("produce", "duplication", "--once")
    assert (code, made["outcome"], made["left"]) == (10, "queue-full", 1)
    mill("work", "--drain")
    code, (made,) = mill("produce", "duplication", "--once")
    assert (code, made["tasks"]) == (0, 2)


def test_checks_are_waited_for_and_then_reported_on(mill: Run) -> None:
    mill("duplicate")
    code, (made,) = mill("produce", "bits", "--once")
    assert (code, made["outcome"], made["tasks"]) == (12, "waiting", 24)
    mill("work", "bit-integrity", "--drain")
    code, (made,) = mill("produce", "bits", "--once")
    assert (code, made["outcome"], made["tasks"]) == (0, "done", 2)


def test_excluded_spaces_get_no_tasks(data: Path, mill: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("/me/one/s\n/local/one/s\n")
    for producer in ("duplication", "bits"):
        assert mill("produce", producer, "--once", "--exclude", str(tmp_path / "out"))[1][0]["tasks"] == 0
    (tmp_path / "out").write_text("one/s")
    assert mill("produce", "bits", "--once", "--exclude", str(tmp_path / "out"))[0] == 2


def test_a_producer_that_was_stopped_ends_in_order(data: Path, mill: Run) -> None:
    program = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "mill", "produce", "duplication", "--data", str(data), "--json"],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout:
        assert json.loads(child.stdout.readline())["outcome"] == "done"
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_a_single_run_that_was_stopped_is_an_interruption(mill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.cli.mill.produce.stop_on_signals", lambda: lambda: True)
    code, (made,) = mill("produce", "duplication", "--once")
    assert (code, made["outcome"]) == (130, "stopped")


def test_a_producer_goes_on_after_a_run_that_another_process_kept_off(
    data: Path, mill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = data / "millstream.toml"
    settings.write_text(settings.read_text().replace("[mill.produce]", '[mill.produce]\nduplication_every = "1ms"'))
    state, other = FileDocument(data / "producers" / "duplication.json"), contextlib.ExitStack()

    def is_stopped() -> bool:
        other.close()
        return state.read() is not None

    monkeypatch.setattr("millstream.cli.mill.produce.stop_on_signals", lambda: is_stopped)
    other.enter_context(state.alone())
    code, runs = mill("produce", "duplication")
    assert (code, [one["outcome"] for one in runs]) == (0, ["stopped"])


def test_pools_and_producers_work_in_one_process_until_it_is_stopped(data: Path) -> None:
    program = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
    pools = ["--pool", "duplication", "--pool", "bits", "--pool", "bit-report", "--produce"]
    child = subprocess.Popen(
        [sys.executable, "-c", program, "mill", "work", *pools, "--data", str(data), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    with child.stdout, child.stderr:
        said = [child.stderr.readline() for _ in range(4)]
        assert b"working on duplication-high, duplication-low, audit, bit-integrity (pool duplic" in said[0]
        copies = LocalStore(data / "stores" / "two")
        until(lambda: copies.has_space("s") and len(copies.entries("s")) >= 12, "the copies")
        child.send_signal(signal.SIGTERM)
        assert json.loads(child.stdout.read())["dead"] == 0
        assert child.wait(60) == 0


def test_named_pools_drain_their_queues(mill: Run) -> None:
    mill("produce", "duplication", "--once")
    code, (tally,) = mill("work", "--pool", "duplication", "--pool", "audit", "--drain")
    assert (code, tally["done"], tally["dead"]) == (0, 13, 0)
    assert mill("work", "--pool", "nobody")[0] == 2


def test_p8_an_emptied_source_is_held_until_somebody_approves(data: Path, mill: Run) -> None:
    mill("duplicate")
    names = [entry.content_id for entry in local(data, "one").entries("s")]
    for name in names:
        local(data, "one").delete("s", name)
    mill("forget", "one", "s", *names)
    code, (plan, _) = mill("duplicate")
    assert (code, plan["deletes"], plan["hold"]) == (5, 12, 1)
    assert len(local(data, "two").entries("s")) == 12
    code, (hold,) = mill("approve")
    assert (code, hold["number"], hold["deletes"]) == (5, 1, 12)
    assert "the source lists nothing" in hold["reason"]
    assert mill("approve", "7")[0] == 3
    assert mill("approve", "1")[0] == 0
    assert mill("approve") == (0, [])
    assert mill("duplicate")[0] == 0
    assert local(data, "two").entries("s") == []


def test_what_is_held_is_said_in_plain_words(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mill", "duplicate", "--data", str(data)]) == 0
    for number in range(5):
        local(data, "one").delete("s", f"item {number:02d}")
    assert run(["mill", "duplicate", "--data", str(data)]) == 5
    assert "HELD as a whole under number 1: see `millstream mill approve`" in capsys.readouterr().out
    assert run(["mill", "approve", "--data", str(data)]) == 5
    assert "5 of 12 copies have lost their original without a record; the budget is 3" in capsys.readouterr().out
    assert run(["mill", "approve", "--all", "--data", str(data)]) == 0
    assert "`millstream mill duplicate --space s` does it now" in capsys.readouterr().out
    assert run(["mill", "produce", "duplication", "--once", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert "done: 7 tasks put on the queue, 0 spaces left; the next loop is due" in out
    assert "5 only at two, kept because no deletion is recorded: item 00" in out
