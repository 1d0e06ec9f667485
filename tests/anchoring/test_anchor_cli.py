from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import LocalCas, NotAnchoredError
from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency.policy import trusting
from millstream.anchoring.transparency.signed_note import parse_verifier_key
from millstream.anchoring.transparency.tlog_proof import verify_tlog_proof
from millstream.batching import Reject
from millstream.cli.doctor_ledgers import check_ledgers
from millstream.core.message import Message
from millstream.core.timestamps import parse_timestamp
from millstream.log import Log, LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batch, make_batches
from support.commands import run_command
from support.self_made_proof import self_made_proof
from support.witnesses import TestWitness

STRANGER = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"


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
    ((number, time, *_),) = (line.split() for line in out.splitlines())
    assert (number, parse_timestamp(time)) == ("2", entries[1]["time"])


def test_status_counts_batches_and_names_faults(data: Path) -> None:
    code, out, _ = run_command("anchor", "status", "--json", "--data", str(data))
    status = json.loads(out)
    assert (code, status["batches"]["observed"], status["batches"]["accepted"], status["position"]) == (0, 6, 1, 2)
    assert status["faults"] == []
    code, out, _ = run_command("anchor", "status", "--data", str(data))
    assert (code, "6 verified" in out, "2 entries" in out, "observed" in out) == (0, True, True, False)


def test_a_feed_goes_on_past_what_it_cannot_read_after_a_seek(data: Path) -> None:
    def batch(number: int, kind: str = "batch") -> Message:
        members = {"batch": f"b{number}", "kind": kind, "source": "pump", "start": 0, "end": 9, "cut": "time"}
        amends = {"amends": "b1"} if kind == "amendment" else {}
        return Message(json.dumps({**members, **amends, "events": [number]}).encode())

    with Node.open(Settings(data=str(data))) as node:
        source, batches = node.logs.store.log(LogSpec("in")), node.logs.store.log(LogSpec("out", kind="batches"))
        with source.writer() as writer:
            writer.append([Message(b"x", "", "pump", number) for number in range(1, 4)])
        with batches.writer() as writer:
            writer.append([batch(1)])
            assert node.anchoring.feed("in", "out").step(force=True).batches == 1
            writer.append([batch(2, "amendment"), batch(3)])
    feed = ("anchor", "feed", "in", "out", "--once", "--data", str(data))
    code, _, error = run_command(*feed)
    assert code != 0 and "batch b2 is an amendment" in error
    code, out, _ = run_command("log", "seek", "out", "--consumer", "anchor", "--to", "3", "--data", str(data))
    assert (code, out) == (0, "consumer anchor continues with id 3 of out\n")
    code, out, _ = run_command(*feed)
    assert (code, out[:25]) == (0, "1 batch of 1 message hand")


def test_a_seek_of_the_consumer_that_anchors_forgets_its_recorded_position_before_it_moves(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(BatchJournal, "forget_fed", lambda *_: calls.append("forget"))
    monkeypatch.setattr(Log, "set_pointer", lambda *_: calls.append("move"))
    with Node.open(Settings(data=str(data))) as node:
        node.logs.store.log(LogSpec("out", kind="batches"))
    assert run_command("log", "seek", "out", "--consumer", "anchor", "--to", "1", "--data", str(data)).code == 0
    assert calls == ["forget", "move"]


def test_no_message_is_proven_by_the_anchor_of_a_lost_one_with_its_id(data: Path) -> None:
    line = b'{"batch":"b1","source":"pump","start":1,"end":2,"cut":"time","events":[1,2]}'
    with Node.open(Settings(data=str(data))) as node:
        source, batches = node.logs.store.log(LogSpec("in")), node.logs.store.log(LogSpec("out", kind="batches"))
        with source.writer() as writer, batches.writer() as other:
            writer.append([Message(b"lost", "", "pump", 1, 1), Message(b"kept", "", "pump", 2, 2)])
            other.append([Message(line)])
        assert node.anchoring.feed("in", "out").step(force=True).batches == 1
        proofs = [node.proofs.prove("in", number) for number in (1, 2)]
        source.trim(2)
        assert [node.proofs.prove("in", number) for number in (1, 2)] == proofs
    with contextlib.closing(sqlite3.connect(data / "log.db")) as database, database:
        database.execute("UPDATE logs SET name = 'lost' WHERE name = 'in'")
    with Node.open(Settings(data=str(data))) as node:
        assert node.proofs.prove("in", 1) == proofs[0], "no proof needs the log"
        with node.logs.store.log(LogSpec("in")).writer() as writer:
            writer.append([Message(b"new", "", "pump", 1, 1)])
        with pytest.raises(NotAnchoredError, match=r"message 1 of log 'in' is not anchored: another .* another name"):
            node.proofs.prove("in", 1)
        assert node.proofs.prove("in", 2) == proofs[1]


def test_cut_anchors_what_waits_and_observe_finds_nothing_new(data: Path) -> None:
    assert run_command("anchor", "cut", "--data", str(data))[:2] == (0, "nothing to anchor\n")
    assert run_command("anchor", "cut", "--force", "--data", str(data))[1].startswith("3  1.bafkrei")
    assert run_command("anchor", "observe", "--data", str(data))[1] == "0 new entries; the observer is at entry 3\n"


def test_a_ledger_whose_log_was_restored_from_an_older_backup_is_named_and_read_again(
    data: Path, tmp_path: Path
) -> None:
    at = ("--data", str(data))
    with Node.open(Settings(data=str(data))) as node:
        source, batches = node.logs.store.log(LogSpec("in")), node.logs.store.log(LogSpec("out", kind="batches"))
        with source.writer() as writer:
            writer.append([Message(b"x", "", "pump", number) for number in range(1, 4)])
        with batches.writer() as writer:
            for number in (1, 2, 3):
                members = {
                    "batch": f"b{number}",
                    "kind": "batch",
                    "source": "pump",
                    "start": 0,
                    "end": 9,
                    "cut": "time",
                }
                writer.append([Message(json.dumps({**members, "events": [number]}).encode())])
    feed = ("anchor", "feed", "in", "out", "--once", *at)
    with contextlib.closing(sqlite3.connect(data / "log.db")) as log:
        log.execute("VACUUM INTO ?", [str(tmp_path / "backup.db")])
    assert run_command(*feed)[0] == 0
    for part in data.glob("log.db*"):
        part.unlink()
    shutil.copy(tmp_path / "backup.db", data / "log.db")
    for command in (feed, ("anchor", "cut", "--force", *at), ("anchor", "observe", *at)):
        code, out, error = run_command(*command)
        assert (code, out) == (1, "") and "the ledger ends at entry 2, but entry 4 was observed before" in error
        assert "`millstream anchor observe --rebuild`" in error
    lost = [check for check in check_ledgers(Settings(data=str(data))) if check.name == "entries of ledger anchors"]
    assert [(check.ok, "--rebuild" in check.fix) for check in lost] == [(False, True)]
    assert run_command("anchor", "observe", "--rebuild", *at)[:2] == (0, "2 new entries; the observer is at entry 2\n")
    shutil.move(
        data / "keys" / "anchors.json", tmp_path
    )  # a ledger with a new key, as docs/formats/ledger-tree.md says
    with contextlib.closing(sqlite3.connect(data / "node.db")) as tables:
        for table in ("anchor_trees", "anchor_tree_tiles"):
            tables.execute(f"DELETE FROM {table} WHERE ledger = 'anchors'")
        tables.commit()
    assert run_command(*feed)[0] == 0
    code, out, _ = run_command("prove", "in", "3", *at)
    assert code == 0
    (tmp_path / "proof.json").write_text(out)
    assert run_command("verify", str(tmp_path / "proof.json"), *at)[0] == 0
    assert run_command("anchor", "replay", *at)[0] == 0
    assert run_command("anchor", "verify", *at)[0] == 0


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


def test_the_signed_tree_is_compared_with_its_ledger(data: Path, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    at = ("--data", str(data))
    toml = data / "millstream.toml"
    toml.write_text(f'[anchoring]\ncheckpoint_copy = "{tmp_path / "copies"}"\ntiles = true\n')
    code, out, _ = run_command("anchor", "verify", *at)
    assert (code, out.splitlines()[1:]) == (
        0,
        ["tree        2 entries match", "checkpoint  2 entries match", "copy        none", "published   none"],
    )
    assert run_command("anchor", "checkpoint", *at).code == 0  # what is missing is copied and published
    code, out, _ = run_command("anchor", "verify", "--json", *at)
    sizes = {"entries": 2, "leaves": 2, "signed": 2, "copied": 2, "published": 2}
    assert (code, json.loads(out)) == (0, {"ledger": "anchors", **sizes})
    tile = data / "ledger-tiles" / "anchors" / "tile" / "0" / "000.p" / "2"
    tile.write_bytes(bytes(64))
    code, out, err = run_command("anchor", "verify", *at)
    assert (code, out, "tile/0/000.p/2 in" in err, "differs from the ledger" in err) == (1, "", True, True)
    shutil.rmtree(data / "ledger-tiles")
    assert run_command("anchor", "checkpoint", *at).code == 0
    assert run_command("anchor", "verify", *at).code == 0
    with contextlib.closing(sqlite3.connect(data / "node.db")) as database, database:
        database.execute("UPDATE anchor_tree_tiles SET hashes = zeroblob(64) WHERE ledger = 'anchors'")
    code, _, err = run_command("anchor", "verify", *at)
    assert (code, "entry 1 of the ledger 'anchors' differs" in err) == (1, True)


def test_a_checkpoint_that_cannot_be_used_is_named_with_its_place_and_what_to_do(data: Path, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    at = ("--data", str(data))
    (data / "millstream.toml").write_text(f'[anchoring]\ncheckpoint_copy = "{tmp_path / "copies"}"\ntiles = true\n')
    assert run_command("anchor", "checkpoint", *at).code == 0
    for folder in (tmp_path / "copies" / "anchors", data / "ledger-tiles" / "anchors"):
        (folder / "checkpoint").write_bytes(b"damaged")
        for command in ("checkpoint", "verify"):
            code, _, err = run_command("anchor", command, *at)
            assert (code, f"(file 'checkpoint' in {folder})" in err, "delete the file: " in err) == (1, True, True)
        (folder / "checkpoint").unlink()
        assert run_command("anchor", "checkpoint", *at).code == 0
    with contextlib.closing(sqlite3.connect(data / "node.db")) as database, database:
        database.execute("UPDATE anchor_trees SET checkpoint = x'00' WHERE ledger = 'anchors'")
    code, _, err = run_command("anchor", "checkpoint", *at)
    assert (code, "in the node's database is damaged" in err, "Restore the node's database" in err) == (1, True, True)


@pytest.mark.parametrize("copy", ["{data}/ledger-tiles", "file://{data}/ledger-tiles/", "s3://bucket/tiles"])
def test_the_copy_of_checkpoints_and_the_tiles_have_places_of_their_own(data: Path, copy: str) -> None:
    tiles = '"s3://bucket/tiles/"' if copy.startswith("s3") else "true"
    place = copy.format(data=data)
    (data / "millstream.toml").write_text(f'[anchoring]\ncheckpoint_copy = "{place}"\ntiles = {tiles}\n')
    code, _, err = run_command("anchor", "status", "--data", str(data))
    assert (code, f"name the same place '{place}': choose another one" in err) == (2, True)


@pytest.fixture
def proof(data: Path, tmp_path: Path) -> Path:
    code, out, _ = run_command("prove", "weather", "3", "--data", str(data))
    assert (code, out.count("\n")) == (0, 1)
    path = tmp_path / "proof.json"
    path.write_text(out)
    return path


def test_a_proof_made_on_the_command_line_verifies_with_the_published_key(
    data: Path, proof: Path, tmp_path: Path
) -> None:
    code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"))
    assert (code, "name a key or policy that you trust (--key, --policy)" in out) == (0, True)
    key = run_command("anchor", "key", "show", "--data", str(data)).out.strip()
    (tmp_path / "keys.txt").write_text(f"# of the archive\n\n{key}\n")
    (tmp_path / "policy").write_text(f"log {key}\nquorum none\n")
    checkpoint = run_command("anchor", "checkpoint", "--data", str(data)).out
    assert checkpoint.split("\n")[1] == "2"
    for trust in (("--key", key), ("--key", str(tmp_path / "keys.txt")), ("--policy", str(tmp_path / "policy"))):
        code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"), *trust)
        assert (code, f"is signed by {key}." in out) == (0, True)
    code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"), "--key", key, "--json")
    verified = json.loads(out)
    assert (verified["id"], verified["pinned"], verified["anchor"], verified["message"]["id"]) == (3, True, 1, 3)
    assert (verified["checkpoint"]["size"], verified["checkpoint"]["signed_by"]) == (2, [key])


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--key", "nonsense"], 2, "is invalid: expected"),
        (["--key", STRANGER], 1, "in the policy are of example.com/foo"),
        (["--key", "empty"], 2, "contains no key"),
        (["--policy", "empty"], 2, "no quorum line"),
        (["--policy", "none"], 2, "names no ledger"),
        (["--ledger-head", "0" * 64], 1, "millstream prove --chain"),
    ],
)  # fmt: skip
def test_a_key_or_policy_that_does_not_fit_ends_with_the_reason(
    data: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("# nothing\n")
    Path("none").write_text("quorum none\n")
    answer = run_command("verify", str(proof), "--cas", str(data / "cas"), *options)
    assert (answer.code, reason in answer.err) == (code, True), answer.err


def test_a_key_is_never_taken_for_the_name_of_a_file(
    data: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever writes into the working folder decides whom the reader trusts."""
    monkeypatch.chdir(tmp_path)
    key = run_command("anchor", "key", "show", "--data", str(data)).out.strip()
    Path(STRANGER).parent.mkdir()
    damaged = STRANGER.replace("530d903a", "530D903A")
    for name in (STRANGER, damaged):
        Path(name).write_text(f"{key}\n")
    answer = run_command("verify", str(proof), "--data", str(data), "--key", STRANGER)
    assert (answer.code, "in the policy are of example.com/foo" in answer.err) == (1, True)
    assert run_command("verify", str(proof), "--data", str(data), "--key", damaged).code == 2
    assert run_command("verify", str(proof), "--data", str(data), "--key", f" {key}\n").code == 0


def test_a_line_of_a_key_file_ends_with_a_newline_and_with_nothing_else(
    data: Path, proof: Path, tmp_path: Path
) -> None:
    key = run_command("anchor", "key", "show", "--data", str(data)).out.strip()
    file = tmp_path / "keys.txt"
    for sign in "\u2028\u2029\x85\x0b\x0c\x1c\r":
        file.write_text(f"# of the archive{sign}{key}\n{STRANGER}\n", newline="")
        answer = run_command("verify", str(proof), "--data", str(data), "--key", str(file))
        assert (answer.code, "in the policy are of example.com/foo" in answer.err) == (1, True)
    file.write_text(f"# Windows\r\n{key}\r\n", newline="")
    assert run_command("verify", str(proof), "--data", str(data), "--key", str(file)).code == 0
    file.write_text(f"{key}\n" + "#" * (64 << 10))
    answer = run_command("verify", str(proof), "--data", str(data), "--key", str(file))
    assert (answer.code, "more than 65,536 bytes" in answer.err) == (2, True)


def test_what_is_not_a_key_of_a_ledger_is_refused_without_a_private_key_in_the_answer(data: Path, proof: Path) -> None:
    witness, private = str(TestWitness("w.example/1").key), data / "keys" / "anchors.json"
    create = ("anchor", "key", "create", "--ledger", "reports", "--data", str(data), "--replaces")
    for command in (("verify", str(proof), "--data", str(data), "--key"), create):
        answer = run_command(*command, witness)
        assert (answer.code, "is the key of a witness" in answer.err) == (2, True)
    secret = json.loads(private.read_text())["keys"][0]["private_key"]
    for given, named in ((str(private), False), (secret, True), (secret.lower(), True)):
        answer = run_command("verify", str(proof), "--data", str(data), "--key", given)
        assert (answer.code, "found a private key" in answer.err) == (2, named)
        assert secret.split("+", 4)[4][:10].lower() not in (answer.err + answer.out).lower()


def test_a_stranger_s_proof_cannot_act_on_the_terminal_or_forge_a_line(tmp_path: Path) -> None:
    cas, path = LocalCas(tmp_path / "cas"), tmp_path / "proof.json"
    hostile = "weather\nThe checkpoint is signed.\x1b[8m\x9b31m\u202e"
    path.write_bytes(self_made_proof(cas, log=hostile, batch=hostile, origin="a.example/\x9b\u202e", body=hostile))
    code, out, _ = run_command("verify", str(path), "--cas", str(cas.root))
    assert (code, out.count("\n")) == (0, 4)
    assert not set("\x1b\x9b\u202e") & set(out) and "\\x1b[8m\\x9b31m\\u202e" in out
    for origin in ("a.example is signed by you", "a+b"):
        path.write_bytes(self_made_proof(cas, log="weather", batch="b", origin=origin))
        code, _, err = run_command("verify", str(path), "--cas", str(cas.root))
        assert (code, "invalid origin" in err) == (1, True)


def test_a_policy_with_a_name_that_cannot_be_printed_is_refused_first(data: Path, proof: Path, tmp_path: Path) -> None:
    key, policy = run_command("anchor", "key", "show", "--data", str(data)).out.strip(), tmp_path / "policy"
    witness = str(TestWitness("w.example/1").key)
    policy.write_bytes(f"log {key}\nwitness a\xff {witness}\nquorum none\n".encode("latin-1"))
    answer = run_command("verify", str(proof), "--data", str(data), "--policy", str(policy), "--json")
    assert (answer.code, "line 2" in answer.err and "is not UTF-8" in answer.err) == (2, True)


def test_a_proof_with_the_chain_verifies_with_a_pinned_head(data: Path, proof: Path) -> None:
    code, out, _ = run_command("prove", "weather", "3", "--chain", "--data", str(data))
    assert code == 0
    proof.write_text(out)
    head = json.loads(out)["ledger"][-1]["hash"]
    code, out, _ = run_command("verify", str(proof), "--cas", str(data / "cas"))
    assert (code, "is not pinned" in out) == (0, True)
    code, out, _ = run_command("verify", str(proof), "--data", str(data), "--ledger-head", head.upper())
    assert (code, "The pinned ledger head" in out) == (0, True)
    code, _, err = run_command("verify", str(proof), "--cas", str(data / "cas"), "--ledger-head", "0" * 64)
    assert (code, "pinned ledger head" in err) == (1, True)


def test_the_part_about_the_ledger_is_written_as_a_proof_file(data: Path, tmp_path: Path) -> None:
    path, before = tmp_path / "weather.tlog-proof", tmp_path / "before"
    path.write_text("an older proof")
    before.hardlink_to(path)
    code, out, _ = run_command("prove", "weather", "3", "--tlog", str(path), "--data", str(data))
    assert before.read_text() == "an older proof", "the file is replaced as a whole"
    key = parse_verifier_key(run_command("anchor", "key", "show", "--data", str(data)).out.strip())
    line = run_command("anchor", "ledger", "--json", "--data", str(data)).out.split("\n")[0]
    assert code == 0
    found = verify_tlog_proof(path.read_bytes(), leaf_hash(line.encode()), trusting([key]))
    assert found.checkpoint.size == 2
    assert json.loads(out)["checkpoint"].encode() in path.read_bytes()
    code, out, err = run_command("prove", "weather", "3", "--tlog", str(tmp_path / "no" / "x"), "--data", str(data))
    assert (code, out, "cannot write" in err) == (2, "", True)
    assert run_command("prove", "weather", "3", "--tlog", str(path), "--chain", "--data", str(data)).code == 2


def test_a_lost_key_ends_signing_until_it_is_replaced_but_not_what_was_proven(data: Path, proof: Path) -> None:
    at = ("--data", str(data))
    lost = run_command("anchor", "key", "show", *at).out.strip()
    (data / "keys" / "anchors.json").unlink()
    assert run_command("prove", "weather", "3", *at).out == proof.read_text()
    assert run_command("anchor", "cut", "--force", *at).code == 0
    code, _, err = run_command("anchor", "checkpoint", *at)
    assert (code, "--replaces KEY" in err) == (2, True)
    code, key, _ = run_command("anchor", "key", "create", "--replaces", lost, *at)
    assert (code, key.split("+")[0]) == (0, lost.split("+")[0])
    assert run_command("anchor", "checkpoint", *at).out.split("\n")[1] == "3"
    assert run_command("verify", str(proof), "--key", lost, *at).code == 0


def test_a_proof_that_does_not_hold_ends_with_1_and_the_reason(data: Path, proof: Path) -> None:
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


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "jq", "openssl", "basenc"))), reason="needs jq and openssl")
def test_the_recipe_in_the_document_follows_a_proof_and_refuses_a_changed_one(data: Path, tmp_path: Path) -> None:
    """Also for a proof that is signed by two keys, and with a key that did not sign it."""
    text = (Path(__file__).parents[2] / "docs" / "formats" / "proof.md").read_text()
    (program,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    at, folder = ("--data", str(data)), tmp_path / "reader"
    run_command("anchor", "key", "rotate", *at)
    run_command("anchor", "checkpoint", *at)
    run_command("anchor", "cut", "--force", *at)
    shutil.copytree(data / "cas", folder / "cas")
    keys = run_command("anchor", "key", "show", *at).out.splitlines()
    for number, key in ((3, keys[1]), (500, keys[0])):
        (folder / "proof.json").write_text(run_command("prove", "weather", str(number), *at).out)
        (folder / "ledger.key").write_text(f"{key}\n")
        code, out = _shell(program, folder)
        assert (code, out.splitlines()[-1], len(out.splitlines())) == (0, "Signature Verified Successfully", 9)
    whole = (folder / "proof.json").read_text()
    proof = json.loads(whole)
    changes = _changes(proof, folder)
    for name, change in changes.items():
        text = change if isinstance(change, str) else json.dumps({**proof, **change}, ensure_ascii=False)
        (folder / "proof.json").write_text(text)
        code, out = _shell(program, folder)
        assert (name, code != 0, "Verified" in out) == (name, True, False)
    assert not (folder / "ran").exists()
    (folder / "proof.json").write_text(whole)
    assert _shell(program, folder)[0] == 0
    (folder / "ledger.key").write_text(f"{keys[0].split('+')[0]}+00000000+{keys[0].split('+', 2)[2]}\n")
    assert _shell(program, folder)[0] != 0  # the signature of the time before is not taken for one of this key


def _changes(proof: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Members of *proof* as a forger would write them, or the whole text of the file."""
    header, entry, note = proof["batch_header"], proof["entry"], proof["checkpoint"]
    command = f"a[$(touch {folder}/ran)]"
    lines = note.split("\n")
    return {
        "a forged message": {"message": proof["message"] | {"body": "forged"}},
        "a forged entry": {"entry": entry | {"time": 1}},
        "a command as index": {"message_index": command},
        "a command as count": {"batch_header": header | {"count": command}},
        "a command as manifest": {"manifest": command},
        "a command as size": {"checkpoint": note.replace(lines[1], command, 1)},
        "a command in a path": {"message_path": [command, *proof["message_path"][1:]]},
        "a root with spaces": {
            "batch_header": header | {"root": "x -o a = a"},
            "message": proof["message"] | {"body": "forged"},
        },
        "two roots in one line": {"batch_header": header | {"root": header["root"] + "\n" + header["root"]}},
        "an index beyond the batch": {"message_index": header["count"] + proof["message_index"]},
        "a path that is too long": {"entry_path": [*proof["entry_path"], "00" * 32]},
        "another signature": {
            "checkpoint": "\n".join([*lines[:4], *(line[:-20] + "A" * 20 for line in lines[4:-1]), ""])
        },
        "two proofs": json.dumps(proof | {"log": "forged"}) + json.dumps(proof),
        "nothing": "",
    }


def _shell(program: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout
