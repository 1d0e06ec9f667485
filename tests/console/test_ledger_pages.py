"""The pages of ledgers and proofs, and what programs are told: checkpoints, cosignatures, witnesses, and proofs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import AskedInProcess, asked_in_process

from millstream.anchoring.proof import encode_proof
from millstream.anchoring.transparency.signed_note import parse_ledger_key, parse_note
from millstream.anchoring.witness.cosignature_tables import CosignatureTable, WitnessRecord
from millstream.cli.main import run
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch
from support.commands import run_command
from support.stamped_node import StampedNode
from support.timestamp_authority import TimestampAuthority, TimestampRoot
from support.witness_process import WitnessProcess
from support.witnessed_log import WitnessedLog
from support.witnesses import TestWitness

SETTINGS = """
[anchoring]
witness_policy = "{folder}/policy"
witness_alarm = "2h"
tiles = true
"""


def anchor(data: Path, *batches: list[int]) -> None:
    """Anchor *batches* of the log weather in one entry of the ledger."""
    with Node.open(load_settings({"data": str(data)})[0], create=True) as node:
        node.logs.store.log(LogSpec("weather"))  # without the messages: a proof does not need them
        node.anchoring.batch_writer.add("weather", [make_batch(ids) for ids in batches], [], config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)


def verifier_key(data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["anchor", "key", "show", "--data", str(data)]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture(scope="module")
def cosigned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node whose entry 1 the witness A cosigned, the quorum. Then A ended, and entry 2 came. B refuses, C is away."""
    folder = tmp_path_factory.mktemp("ledger")
    data = folder / "node"
    data.mkdir()
    (data / "millstream.toml").write_text(SETTINGS.format(folder=folder), "utf-8")
    key = run_command("anchor", "key", "create", "--origin", "example.org/anchors", "--data", str(data)).out.strip()
    for name in "AB":
        (folder / name).mkdir()
    other = WitnessedLog("example.org/other").key.verifier_key
    with (
        WitnessProcess(folder / "B", [other], "--name", "b.example") as refusing,
        WitnessProcess(folder / "A", [parse_ledger_key(key)], "--name", "a.example") as first,
    ):
        lines = [f"log {key}", f"witness A {first.key} {first.url}", f"witness B {refusing.key} {refusing.url}"]
        lines.append(f"witness C {TestWitness('c.example').key} http://127.0.0.1:9/w?token=secret")
        (folder / "policy").write_text("\n".join([*lines, "group one 1 A B C", "quorum one", ""]), "utf-8")
        anchor(data, [1, 2, 3])
        cosign = ("anchor", "cosign", "--wait", "0s", "--data", str(data))
        assert run_command(*cosign).code == 0
        first.stop()
        anchor(data, [4, 5])
        assert run_command(*cosign).code == 1
    yield data


@pytest.fixture
def node(cosigned: Path) -> Iterator[AskedInProcess]:
    with asked_in_process(cosigned) as asked:
        yield asked


def test_programs_are_told_how_far_a_ledger_is_cosigned_and_how_each_witness_answered(node: AskedInProcess) -> None:
    (row,) = node.api("/ledgers")["items"]
    assert row == {"ledger": "anchors", "entries": 2, "signed": 2, "cosigned": 1, "missing": 1, "problem": None}
    found = node.api("/ledgers/anchors")
    assert (found["origin"], found["quorum"], found["alarm_seconds"]) == ("example.org/anchors", "1 of A, B, C", 7200)
    assert parse_note(found["checkpoint"].encode()).text.splitlines()[1] == "2"
    cosigned, offered = found["cosigned"], found["offered"]
    assert (cosigned["size"], [each["witness"] for each in cosigned["cosignatures"]]) == (1, ["A"])
    assert cosigned["completed_at"] >= cosigned["offered_at"] and cosigned["seconds"] >= 0
    assert (offered["size"], offered["completed_at"], offered["cosignatures"]) == (2, None, [])
    states = {row["witness"]: (row["state"], row["size"]) for row in node.api("/ledgers/anchors/witnesses")["items"]}
    assert states == {"A": ("away", 1), "B": ("refuses", 0), "C": ("away", 0)}
    assert found["witnesses"][0]["cosigned_at"] < found["witnesses"][0]["asked_at"]
    assert "secret" not in json.dumps(found)
    assert node.api("/ledgers/anchors/cosignatures")["items"] == cosigned["cosignatures"]
    assert node.ask("GET", "/api/v1/ledgers/reports")[0] == 404
    assert node.ask("GET", "/api/v1/ledgers/other")[0] == 400


def test_the_page_of_a_ledger_shows_checkpoints_witnesses_and_what_is_not_known(node: AskedInProcess) -> None:
    page = node.page("/ledgers")
    assert "pending: 1 more cosignature needed for the checkpoint of 2 entries" in page
    assert "The node reports this after 2 h" in page and "anchoring.witness_alarm" in page
    assert re.search(r"The quorum was reached .* after the checkpoint was first offered", page)
    for words in ("does not answer", "refuses", "1 of A, B, C", "Who reads them is unknown", "example.org/anchors"):
        assert words in page
    assert "secret" not in page
    assert "This ledger has no entry yet" in node.page("/ledgers/reports")
    assert node.ask("GET", "/ledgers/other")[0] == 400


def test_a_witness_that_cosigned_another_history_is_named_and_an_older_record_claims_nothing(
    node: AskedInProcess,
) -> None:
    table = CosignatureTable(node.node.databases.own, "anchors")
    before = table.witnesses()
    table.put_witness("B", WitnessRecord(9, 1, None, "another history", True, True))
    table.put_witness("C", WitnessRecord(0, 1, None, "written by an earlier version"))
    states = [row["state"] for row in node.api("/ledgers/anchors/witnesses")["items"]]
    assert states == ["away", "forked", "failed"]
    assert "cosigned another history" in node.page("/ledgers")
    for name, record in before.items():
        table.put_witness(name, record)


def test_metrics_say_how_far_a_ledger_is_cosigned(node: AskedInProcess) -> None:
    text = node.ask("GET", "/metrics")[1]
    for line in (
        'millstream_ledger_cosigned_entries{ledger="anchors"} 1',
        'millstream_ledger_cosignatures_missing{ledger="anchors"} 1',
        'millstream_witness_failing{ledger="anchors",witness="A"} 1',
    ):
        assert line in text.splitlines()
    ages = dict(re.findall(r'millstream_ledger_(\w+_seconds)\{ledger="anchors"\} ([\d.e+-]+)', text))
    assert ages.keys() == {"cosignatures_wait_seconds", "cosigned_age_seconds"}
    assert all(0 < float(age) < 600 for age in ages.values())


def test_the_command_shows_how_witnesses_answered_and_asks_nobody(cosigned: Path) -> None:
    found = run_command("anchor", "witnesses", "--data", str(cosigned))
    assert found.code == 1
    assert re.search(r"cosigned +1 entry, quorum reached \S+Z, after \d+\.\d s\n +A at \S+Z\n", found.out)
    assert "1 more cosignature needed" in found.out and "witness     B refuses, asked" in found.out
    as_json = run_command("anchor", "witnesses", "--json", "--data", str(cosigned))
    assert [row["state"] for row in json.loads(as_json.out)["witnesses"]] == ["away", "refuses", "away"]


def test_a_proof_says_who_cosigned_its_checkpoint_or_how_many_cosignatures_are_missing(node: AskedInProcess) -> None:
    page = node.page("/proof?log=weather&id=1")
    assert "cosigned by 1 witness" in page and "quorum reached" in page and "without B, C" in page
    page = node.page("/proof?log=weather&id=4")
    assert "not cosigned yet" in page and "pending: 1 more cosignature needed" in page
    for number, missing in ((1, 0), (4, 1)):
        proof = node.ask("GET", f"/api/v1/proofs/weather/{number}")[1]
        cosigned = node.api("/proofs/verify", {"proof": proof})["cosigned"]
        assert (cosigned["policy"], cosigned["missing"], cosigned["quorum"]) == ("node", missing, "1 of A, B, C")


def test_a_forged_cosignature_is_not_counted(node: AskedInProcess) -> None:
    proof = json.loads(node.ask("GET", "/api/v1/proofs/weather/1")[1])
    note = proof["checkpoint"]
    head, _, line = note.rstrip("\n").rpartition(" ")
    proof["checkpoint"] = f"{head} {line[:12]}{'A' if line[12] != 'A' else 'B'}{line[13:]}\n"
    del proof["digest"]
    text = encode_proof(proof).decode()
    outcome = node.api("/proofs/verify", {"proof": text})
    assert outcome["holds"], outcome["reason"]
    cosigned = outcome["cosigned"]
    assert cosigned["cosignatures"] == [] and "does not match" in cosigned["problem"]
    assert "cosignatures not verified" in node.send_files("/proof", {"proof": text}, {})[1]


def test_without_witnesses_the_pages_say_so(tmp_path: Path) -> None:
    data = tmp_path / "node"
    anchor(data, [1])
    with asked_in_process(data) as node:
        page = node.page("/ledgers/anchors")
        assert "No witnesses are configured" in page and "Nothing can be followed" in page
        assert node.api("/ledgers")["items"][0]["cosigned"] is None
        assert "no witnesses are configured" in node.page("/proof?log=weather&id=1")
        assert "ledger_cosign" not in node.ask("GET", "/metrics")[1]
    assert run_command("anchor", "witnesses", "--data", str(data)).code == 2


def test_a_policy_that_cannot_be_read_is_a_problem_of_the_ledger_and_no_broken_page(tmp_path: Path) -> None:
    data = tmp_path / "node"
    anchor(data, [1])
    (data / "millstream.toml").write_text(SETTINGS.format(folder=tmp_path), "utf-8")
    with asked_in_process(data) as node:
        assert "cannot read the trust policy" in node.page("/ledgers/anchors")
        assert "annot read the trust policy" in node.page("/proof?log=weather&id=1")


def test_a_proof_is_verified_from_its_file_and_what_was_filled_in_stays(
    node: AskedInProcess, cosigned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = node.ask("GET", "/api/v1/proofs/weather/1")[1].encode()
    key, head = verifier_key(cosigned, capsys), "0" * 64
    fields = {"proof": "ignored", "key": key, "ledger_head": "", "policy": "", "log": "weather", "id": "1"}
    status, page = node.send_files("/proof", fields, {"proof_file": proof, "policy_file": b""})
    assert status == 200 and "the proof holds" in page and "signed by a key you trust" in page
    assert f'value="{key}"' in page and "&#34;version&#34;:2" in page
    assert "<option selected>weather</option>" in page and 'name="id" required inputmode="numeric" value="1"' in page
    policy = (cosigned.parent / "policy").read_bytes().replace(b"\n", b"\r\n")
    status, page = node.send_files("/proof", {}, {"proof_file": proof, "policy_file": policy})
    assert status == 200 and "the policy that you gave" in page and "quorum one" in page
    for broken, words in (
        ({"key": "nonsense"}, "is invalid: expected"),
        ({"ledger_head": head[:7]}, "ledger_head"),
        ({"policy": "log x\r\n"}, "ine 1 of the trust policy"),
    ):
        status, page = node.send_files("/proof", {**fields, **broken}, {"proof_file": proof})
        assert status == 200 and words in page and "&#34;version&#34;:2" in page, broken
    empty = node.send_files("/proof", {"proof": ""}, {"proof_file": b""})[1]
    assert "The proof is missing: choose a proof file" in empty
    status, page = node.send_files("/proof", {}, {"proof_file": b"\xff\xfe"})
    assert status == 400 and "is not in UTF-8" in page


def test_the_page_of_a_proof_lists_logs_writes_times_and_gives_both_files(node: AskedInProcess) -> None:
    page = node.page("/proof?log=weather&id=1")
    shown = re.sub(r"<details>.*?</details>|<time.*?</time>", "", page)
    assert '<select name="log"' in page and "<option selected>weather</option>" in page
    assert not re.search(r"(?<![0-9a-z])\d{16}(?![0-9a-z])", shown), "a time in microseconds"
    for path in ("/api/v1/proofs/weather/1", "/api/v1/proofs/weather/1/tlog"):
        assert f'href="{path}"' in page and node.ask("GET", path)[0] == 200


def test_a_proof_says_not_later_than_when_or_that_nobody_has_verified_it(node: AskedInProcess, tmp_path: Path) -> None:
    assert "not time-stamped" in node.page("/proof?log=weather&id=1")
    assert "No authorities are configured." in node.page("/ledgers/anchors")
    (tmp_path / "authority").mkdir()
    root = TimestampRoot(tmp_path / "authority")
    (tmp_path / "other").mkdir()
    other = TimestampRoot(tmp_path / "other")
    with TimestampAuthority(root, "One TSA") as authority:
        stamped = StampedNode(tmp_path / "node", [authority])
        stamped.anchor()
        stamped.stamp()
        with asked_in_process(stamped.data) as asked:
            page = asked.page("/proof?log=readings&id=1")
            proof = asked.ask("GET", "/api/v1/proofs/readings/1")[1].encode()
            status, trusted = asked.send_files(
                "/proof", {}, {"proof_file": proof, "timestamps_file": root.path.read_bytes()}
            )
            refused = asked.send_files("/proof", {}, {"proof_file": proof, "timestamps_file": other.path.read_bytes()})[
                1
            ]
            broken = asked.send_files("/proof", {"timestamps": "nonsense"}, {"proof_file": proof})[1]
            ledger, listed = asked.page("/ledgers/anchors"), asked.api("/ledgers/anchors/timestamps")
            (answer,) = asked.api("/ledgers/anchors/authorities")["items"]
    (row,) = listed["items"]
    assert (row["size"], row["name"], row["authority"], listed["next"]) == (1, "CN=One TSA", authority.url, None)
    assert (answer["authority"], answer["problem"]) == (authority.url, None)
    assert "CN=One TSA" in ledger and f"/files/{row['token']}" in ledger and "1 entry" in ledger
    assert "–, as it says itself" not in page
    assert "time stamp not verified" in page and "time stamp verified" not in page
    assert (
        status == 200
        and "not later than" in trusted
        and "by CN=One TSA" in trusted
        and "time stamp verified" in trusted
    )
    assert "the proof does not hold" in refused
    assert "nonsense</textarea>" in broken and 'role="alert"' in broken
