"""Proofs with time stamps of real authorities, verified by what a reader trusts; and forged ones."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import LocalCas, ProofError, verify_proof
from millstream.anchoring.proof import Trust, encode_proof
from millstream.anchoring.timestamps import TimestampClient, parse_authorities
from millstream.core.clock import VirtualClock
from millstream.core.extras import MissingPackageError
from millstream.core.timestamps import parse_timestamp
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest
from millstream.rest.principal import Principal
from millstream.rest.views.proofs import ProofText, check_proof, verify
from millstream.settings.console import Role
from millstream.testing.batches import CONFIG, make_batch
from support.stamped_node import StampedNode
from support.timestamp_authority import TimestampAuthority, TimestampRoot, place_of_time

Members = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> TimestampRoot:
    return TimestampRoot(tmp_path_factory.mktemp("authorities"))


@pytest.fixture(scope="module")
def one(root: TimestampRoot) -> Iterator[TimestampAuthority]:
    with TimestampAuthority(root, "One TSA") as running:
        yield running


@pytest.fixture(scope="module")
def original(one: TimestampAuthority, tmp_path_factory: pytest.TempPathFactory) -> tuple[StampedNode, list[int]]:
    """A node with two anchors, each of which was stamped when it was the last, and the ids of their messages."""
    made, ids = StampedNode(tmp_path_factory.mktemp("node"), [one]), []
    for _ in range(2):
        ids.append(made.anchor())
        made.stamp()
    return made, ids


@pytest.fixture
def node(original: tuple[StampedNode, list[int]], one: TimestampAuthority, tmp_path: Path) -> StampedNode:
    """A copy of the node, to be changed."""
    shutil.copytree(original[0].data, tmp_path / "node")
    return StampedNode(tmp_path / "node", [one])


@pytest.fixture
def second(original: tuple[StampedNode, list[int]]) -> int:
    """The id of the message of the second anchor; that of the first is 1."""
    return original[1][1]


def test_a_proof_says_not_later_than_when_and_by_whom(node: StampedNode, root: TimestampRoot, second: int) -> None:
    proof = node.prove(1)
    members = json.loads(proof)
    assert (members["version"], len(members["timestamps"])) == (3, 1)
    answer = node.verify(proof, root.path)
    assert answer.code == 0 and "The entry is not later than 20" in answer.out and "by CN=One TSA (verif" in answer.out
    found = json.loads(node.verify(proof, root.path, words=["--json"]).out)
    first = node.timestamps()["timestamps"][0]
    assert found["timestamps"] == [
        {
            "status": "trusted", "size": 1, "authority": "CN=One TSA", "time": first["time"],
            "valid_until": first["ends_at"], "renewals": 0, "problem": None,
        }
    ]  # fmt: skip
    assert found["anchored_at"] < first["time"] and found["pinned"] is False, "a date does not vouch for the ledger"
    assert json.loads(node.verify(node.prove(second), root.path, words=["--json"]).out)["timestamps"][0]["size"] == 2


def test_without_trust_time_stamps_are_unchecked_and_never_well(node: StampedNode) -> None:
    answer = node.verify(node.prove(1))
    assert answer.code == 0
    assert "Time stamps that are not verified: 1. Name the certificates" in answer.out and "not later" not in answer.out
    found = json.loads(node.verify(node.prove(1), words=["--json"]).out)["timestamps"]
    assert [(each["status"], each["time"], each["authority"]) for each in found] == [("unchecked", None, None)]


def test_an_authority_that_is_not_trusted_dates_nothing(node: StampedNode, tmp_path: Path) -> None:
    other = TimestampRoot(tmp_path / "other", "Other Root")
    answer = node.verify(node.prove(1), other.path)
    assert answer.code == 1 and "the time stamp of the proof is not trusted: the token of CN=One TSA" in answer.err
    assert "if you trust this authority, add its root certificate to the trusted certificates" in answer.err


def test_each_authority_gives_its_own_date_and_one_that_is_trusted_is_enough(
    node: StampedNode, root: TimestampRoot, one: TimestampAuthority, tmp_path: Path
) -> None:
    other = TimestampRoot(tmp_path / "other", "Other Root")
    with TimestampAuthority(other, "Two TSA") as two:
        both = StampedNode(node.data, [one, two])
        both.anchor()
        both.stamp()
        proof = both.prove(1)
    assert len(json.loads(proof)["timestamps"]) == 2
    answer = node.verify(proof, other.path)
    assert (
        answer.code == 0
        and "by CN=Two TSA" in answer.out
        and "A time stamp is not trusted: the token of CN=One" in answer.out
    )
    answer = node.verify(proof, other.path, root.path)
    assert answer.code == 0 and answer.out.count("not later than") == 2 and "not trusted" not in answer.out


def test_readers_with_an_earlier_release_get_a_proof_without_time_stamps(
    node: StampedNode, root: TimestampRoot
) -> None:
    proof = node.prove(1, "--no-timestamps")
    assert (json.loads(proof)["version"], "timestamps" in json.loads(proof)) == (2, False)
    assert node.verify(proof).code == 0
    answer = node.verify(proof, root.path)
    assert answer.code == 1 and "the proof has no time stamps: ask the operator" in answer.err
    chain = node.prove(1, "--chain")
    assert (json.loads(chain)["version"], node.verify(chain).code, node.verify(chain, root.path).code) == (1, 0, 1)


def test_a_message_after_the_last_time_stamp_is_proven_without_one(node: StampedNode) -> None:
    assert json.loads(node.prove(node.anchor()))["version"] == 2


def test_time_stamps_stay_in_proofs_when_no_authority_is_configured_any_more(
    node: StampedNode, root: TimestampRoot
) -> None:
    bare = StampedNode(node.data, [])
    assert bare.verify(bare.prove(1), root.path).code == 0


def test_time_stamps_stay_valid_when_the_ledger_gets_another_key_and_origin(
    node: StampedNode, root: TimestampRoot
) -> None:
    (node.data / "keys" / "anchors.json").rename(node.data / "old.json")
    assert node.command("anchor", "key", "create", "--origin", "new.example/anchors").code == 0
    with closing(sqlite3.connect(node.data / "node.db")) as database, database:
        database.execute("UPDATE anchor_trees SET checkpoint = NULL, checkpoint_size = NULL, checkpoint_root = NULL")
    proof = node.prove(1)
    assert json.loads(proof)["checkpoint"].startswith("new.example/anchors\n")
    assert "not later than" in node.verify(proof, root.path).out


def test_a_proof_is_made_without_the_time_stamp_whose_file_is_lost(
    node: StampedNode, root: TimestampRoot, caplog: pytest.LogCaptureFixture
) -> None:
    (node.data / "cas" / node.timestamps()["timestamps"][0]["token"]).unlink()
    found = json.loads(node.verify(node.prove(1), root.path, words=["--json"]).out)["timestamps"]
    assert [each["size"] for each in found] == [2], "the next one dates the entry, too"
    assert "the time stamp 1 of the ledger is not in the proof" in caplog.text


def _other_checkpoint(members: Members, other: Members, _: TimestampAuthority) -> None:
    members["timestamps"][0]["token"] = other["timestamps"][0]["token"]


def _other_tree(members: Members, other: Members, _: TimestampAuthority) -> None:
    members["timestamps"] = other["timestamps"]


def _other_origin(members: Members, __: Members, _: TimestampAuthority) -> None:
    stamp = members["timestamps"][0]
    stamp["checkpoint"] = stamp["checkpoint"].replace("millstream.invalid", "other.example")


def _signed_by_nobody(members: Members, __: Members, _: TimestampAuthority) -> None:
    stamp = members["timestamps"][0]
    stamp["checkpoint"] += stamp["checkpoint"].splitlines()[-1] + "\n"


def _no_base64(members: Members, __: Members, _: TimestampAuthority) -> None:
    members["timestamps"][0]["token"] += "?"


def _no_token(members: Members, __: Members, _: TimestampAuthority) -> None:
    members["timestamps"][0]["token"] = ""


def _capitals(members: Members, __: Members, _: TimestampAuthority) -> None:
    members["timestamps"][0]["entry_path"] = ["A" * 64]


def _too_many(members: Members, __: Members, _: TimestampAuthority) -> None:
    members["timestamps"] *= 101


def _backdated(members: Members, __: Members, _: TimestampAuthority) -> None:
    token = base64.b64decode(members["timestamps"][0]["token"])
    at = place_of_time(token)
    members["timestamps"][0]["token"] = base64.b64encode(token[:at] + b"2021" + token[at + 4 :]).decode()


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (
            _other_checkpoint,
            r"time stamp 1 of \d in the proof is invalid: the token of CN=One TSA is a time stamp of other data: ",
        ),
        (_other_tree, r"time stamp 1 of \d in the proof is invalid: .* is not in the tree of the checkpoint"),
        (_other_origin, "is a time stamp of other data"),
        (_signed_by_nobody, "is a time stamp of other data"),
        (_no_base64, r"stamp 1 of \d in the proof is invalid: a token is not valid base64; get the proof again"),
        (_no_token, "the token is not valid"),
        (_capitals, "not a hash of 64 or 128 lower-case hex"),
        (_too_many, "the limit is 100"),
        (_backdated, "is not trusted: the token of CN=One TSA is not valid: digest failure"),
    ],
)
def test_a_forged_time_stamp_is_found(
    node: StampedNode,
    root: TimestampRoot,
    one: TimestampAuthority,
    attack: Callable[[Members, Members, TimestampAuthority], None],
    said: str,
    second: int,
) -> None:
    members, other = json.loads(node.prove(1)), json.loads(node.prove(second))
    del members["digest"]
    attack(members, other, one)
    trust = Trust(authorities=parse_authorities(root.path.read_bytes()))
    with pytest.raises(ProofError, match=said):
        verify_proof(encode_proof(members), LocalCas(node.data / "cas"), trust)


def test_an_anchor_that_was_dated_back_is_found_by_its_earliest_time_stamp(
    one: TimestampAuthority, root: TimestampRoot, tmp_path: Path
) -> None:
    node = StampedNode(tmp_path / "node", [one])
    with node.open(VirtualClock(parse_timestamp("2013-01-31T12:00:00Z"))) as opened:
        opened.anchoring.batch_writer.add("weather", [make_batch([1])], config=CONFIG)
        opened.anchoring.batch_writer.cut(force=True)
    node.stamp()
    proof = node.command("prove", "weather", "1").out_bytes
    answer = node.verify(proof, root.path)
    assert "The entry is not later than 20" in answer.out
    assert "The ledger dates it 2013-01-31T12:00:00" in answer.out and "years before the earliest time st" in answer.out


def test_without_the_package_proofs_are_verified_and_time_stamps_name_the_extra(
    node: StampedNode, root: TimestampRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = node.prove(1)
    body = ProofText(proof.decode(), timestamps=root.path.read_text("utf-8"))
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)
    assert node.prove(1) == proof, "making one needs no package"
    assert "Time stamps that are not verified: 1" in node.verify(proof).out
    answer = node.verify(proof, root.path)
    assert (answer.code, "pip install 'millstream[timestamps]'" in answer.err) == (2, True)
    with node.open() as opened, pytest.raises(MissingPackageError):
        verify(AppContext(opened), ApiRequest(None, body, Principal("reader", Role.VIEWER)))


def test_the_stamped_checkpoint_is_exactly_what_the_authority_signed(
    node: StampedNode, one: TimestampAuthority
) -> None:
    """Its cosignatures and signatures are dated, too, so that a stolen key cannot make older ones."""
    stamp = json.loads(node.prove(1))["timestamps"][0]
    token = TimestampClient(one.url).stamp(stamp["checkpoint"].encode(), "sha256")
    token.require_imprint(stamp["checkpoint"].encode())
    assert "— millstream.invalid/" in stamp["checkpoint"]


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "jq", "openssl"))), reason="needs jq and openssl")
def test_a_reader_verifies_a_time_stamp_with_openssl_as_the_page_says(
    node: StampedNode, root: TimestampRoot, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "timestamp.md").read_text("utf-8")
    script = page.split("```sh\n")[1].partition("```")[0]
    (tmp_path / "proof.json").write_bytes(node.prove(1))
    shutil.copy(root.path, tmp_path / "authority.pem")
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Verification: OK" in done.stdout and "Time stamp: " in done.stdout


def test_the_interface_for_programs_verifies_time_stamps(node: StampedNode, root: TimestampRoot) -> None:
    body = ProofText(node.prove(1).decode(), timestamps=root.path.read_text("utf-8"))
    with node.open() as opened:
        app = AppContext(opened)
        found = verify(app, ApiRequest(None, body, Principal("reader", Role.VIEWER)))
        unchecked = check_proof(app, body.proof.encode())
    assert [each.status for each in (*found.timestamps, *unchecked.timestamps)] == ["trusted", "unchecked"]


def test_a_proof_of_a_later_release_is_refused_by_its_version(node: StampedNode) -> None:
    members = json.loads(node.prove(1)) | {"version": 4}
    del members["digest"]
    with pytest.raises(ProofError, match="has version 4, but this release reads versions 1 to 3"):
        verify_proof(encode_proof(members), LocalCas(node.data / "cas"))
