from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.batching import Reject
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batch, make_batches
from support.commands import run_command


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's folder with two anchors, a reject and a batch that waits."""
    folder = tmp_path / "node"
    with Node.open(Settings(data=str(folder)), create=True) as node:
        for batches in (list(make_batches(5)), [make_batch([500, 501])]):
            node.anchoring.batch_writer.add("weather", batches, [Reject(900, "late")], config=CONFIG)
            node.anchoring.batch_writer.cut(force=True)
        node.anchoring.batch_writer.add("weather", [make_batch([600])], config=CONFIG)
    return folder


def test_the_ledger_is_printed_one_object_a_line(data: Path) -> None:
    code, out, _ = run_command("anchor", "ledger", "--json", "--data", str(data))
    entries = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [sorted(entry) for entry in entries] == [["anchor_string", "hash", "number", "previous", "time"]] * 2
    assert entries[1]["previous"] == entries[0]["hash"]
    code, out, _ = run_command("anchor", "ledger", "--from", "2", "--data", str(data))
    assert [line.split()[0] for line in out.splitlines()] == ["2"]


def test_status_counts_batches_and_names_faults(data: Path) -> None:
    code, out, _ = run_command("anchor", "status", "--json", "--data", str(data))
    status = json.loads(out)
    assert (code, status["batches"]["observed"], status["batches"]["accepted"], status["position"]) == (0, 6, 1, 2)
    assert status["faults"] == []
    code, out, _ = run_command("anchor", "status", "--data", str(data))
    assert (code, "6 observed" in out, "2 entries" in out) == (0, True, True)


def test_cut_anchors_what_waits_and_observe_finds_nothing_new(data: Path) -> None:
    assert run_command("anchor", "cut", "--data", str(data))[:2] == (0, "nothing to anchor\n")
    assert run_command("anchor", "cut", "--force", "--data", str(data))[1].startswith("3  1.bafkrei")
    assert run_command("anchor", "observe", "--data", str(data))[1] == "0 new entries; the observer stands at entry 3\n"


def test_replay_ends_with_1_and_the_name_of_what_is_damaged(data: Path) -> None:
    code, out, _ = run_command("anchor", "replay", "--data", str(data))
    assert (code, out) == (0, "2 anchors and 5 files replayed, 0 findings\n")
    damaged = sorted((data / "cas").iterdir())[2]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    code, out, _ = run_command("anchor", "replay", "--data", str(data))
    assert code == 1
    assert f"file {damaged.name} is damaged" in out
    code, out, _ = run_command("anchor", "replay", "--json", "--data", str(data))
    assert (code, json.loads(out)["findings"][0]["cid"]) == (1, damaged.name)


@pytest.fixture
def proof(data: Path, tmp_path: Path) -> Path:
    code, out, _ = run_command("prove", "weather", "3", "--data", str(data))
    assert (code, out.count("\n")) == (0, 1)
    path = tmp_path / "proof.json"
    path.write_text(out)
    return path


def test_a_proof_made_on_the_command_line_verifies(data: Path, proof: Path) -> None:
    head = json.loads(proof.read_text())["ledger"][-1]["hash"]
    code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"))
    assert (code, "is not pinned" in out) == (0, True)
    code, out, _ = run_command("verify", str(proof), "--data", str(data), "--ledger-head", head)
    assert (code, "The pinned ledger head" in out) == (0, True)
    code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"), "--ledger-head", head, "--json")
    verified = json.loads(out)
    assert (verified["id"], verified["pinned"], verified["anchor"], verified["message"]["id"]) == (3, True, 1, 3)


def test_a_proof_that_does_not_hold_ends_with_1_and_the_reason(data: Path, proof: Path) -> None:
    code, _, err = run_command("verify", str(proof), "--cas", str(data / "cas"), "--ledger-head", "0" * 64)
    assert (code, "pinned ledger head" in err) == (1, True)
    code, _, err = run_command("verify", str(proof), "--cas", str(data / "elsewhere"))
    assert (code, "no file bafkrei" in err) == (1, True)
    assert not (data / "elsewhere").exists()
    changed = bytearray(proof.read_bytes())
    changed[100] ^= 1
    proof.write_bytes(changed)
    code, _, err = run_command("verify", str(proof), "--cas", str(data / "cas"))
    assert (code, err != "") == (1, True)


@pytest.mark.parametrize(
    ("number", "reason"), [("900", "rejected as late"), ("600", "waits for the next cut"), ("12345", "no batch")]
)
def test_a_message_without_a_proof_ends_with_3_and_the_reason(data: Path, number: str, reason: str) -> None:
    code, out, err = run_command("prove", "weather", number, "--data", str(data))
    assert (code, out, reason in err) == (3, "", True)


def test_a_proof_of_a_log_or_a_message_that_does_not_exist_says_so(data: Path) -> None:
    code, out, err = run_command("prove", "wether", "1", "--data", str(data))
    assert (code, out) == (3, "")
    assert "there is no log 'wether'" in err and "millstream log list" in err
    with Node.open(Settings(data=str(data))) as node, node.logs.store.log(LogSpec("other")).writer() as writer:
        code, _, err = run_command("prove", "other", "1", "--data", str(data))
        assert (code, "log 'other' has no message 1: it has none yet" in err) == (3, True)
        writer.append([b"one"])
    code, _, err = run_command("prove", "other", "2", "--data", str(data))
    assert (code, "log 'other' has no message 2: its last one is 1" in err) == (3, True)
    code, _, err = run_command("prove", "other", "1", "--data", str(data))
    assert (code, "is not anchored" in err) == (3, True)


def test_verifying_needs_no_data_folder(
    data: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    answer = run_command("verify", str(proof), "--cas", str(data / "cas"))
    assert (answer.code, answer.err) == (0, "")
    assert list(empty.iterdir()) == []


def test_the_check_by_hand_in_the_ledger_document_works(data: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats" / "ledger.md").read_text()
    (program,) = re.findall(r"<<'END'\n(.*?)\nEND", text, re.DOTALL)
    data.rename(tmp_path / "millstream-data")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, "-c", f"{program}\nprint(entry['number'])"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")
