"""A node whose ledger is cosigned: three real witnesses, any of which may be away, and a node that was restored."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.anchoring.transparency.policy import check_checkpoint, parse_policy
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.waiting import until
from support.commands import run_command
from support.cosigned_node import CosignedNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CosignedNode]:
    with contextlib.ExitStack() as stack:
        made = CosignedNode(tmp_path)
        for name in made.witnesses:
            stack.callback(made.stop, name)
        yield made


def test_proofs_end_with_a_checkpoint_that_the_quorum_has_cosigned(node: CosignedNode, tmp_path: Path) -> None:
    node.anchor()
    before = node.command("prove", "readings", "1")
    assert (before.code, before.err) == (
        0,
        "pending: the checkpoint needs 2 more cosignatures of witnesses; make the proof again later\n",
    )
    assert node.command("prove", "readings", "1", "--require-quorum").code == 3
    assert node.command("anchor", "checkpoint", "--cosigned").code == 3
    code, status = node.cosign()
    assert (code, status["complete_size"], status["missing"], status["signed"]) == (0, 1, 0, ["A", "B", "C"])
    proof = node.command("prove", "readings", "1", "--require-quorum", "--tlog", str(tmp_path / "x.tlog-proof"))
    assert (proof.code, proof.err) == (0, "")
    (tmp_path / "proof.json").write_bytes(proof.out_bytes)
    (tmp_path / "before.json").write_bytes(before.out_bytes)
    verified = node.command("verify", str(tmp_path / "proof.json"), "--policy", str(node.policy), "--json")
    assert json.loads(verified.out)["checkpoint"]["witnesses"] == ["A", "B", "C"]
    refused = node.command("verify", str(tmp_path / "before.json"), "--policy", str(node.policy))
    assert (refused.code, "too few witnesses signed" in refused.err) == (1, True)
    cosigned = node.command("anchor", "checkpoint", "--cosigned").out_bytes
    assert check_checkpoint(cosigned, parse_policy(node.policy.read_bytes())).witnesses == ("A", "B", "C")
    assert cosigned == node.command("anchor", "checkpoint").out_bytes


def test_an_anchor_after_the_quorum_is_pending_and_older_ones_stay_proven(node: CosignedNode) -> None:
    node.anchor()
    node.cosign()
    node.stop("A", "B")
    later = node.anchor()
    assert node.command("prove", "readings", "1", "--require-quorum").code == 0
    code, status = node.cosign("--wait", "0s")
    assert (code, status["complete_size"], status["offered_size"], status["missing"]) == (1, 1, 2, 1)
    assert "1 more cosignature of" in node.command("prove", "readings", later).err
    assert node.issue("cosignatures-missing").startswith(
        "1 cosignature missing for the newest checkpoint of the ledger"
    )
    node.start("B")
    code, status = node.cosign()
    assert (code, status["complete_size"], status["signed"]) == (0, 2, ["B", "C"])
    assert node.issue("cosignatures-missing") == ""
    assert node.command("prove", "readings", later, "--require-quorum").code == 0


def test_witnesses_that_are_never_there_together_complete_a_checkpoint(node: CosignedNode) -> None:
    """The one that is collected stays until it is complete, though the ledger grows meanwhile."""
    node.stop("B", "C")
    node.anchor()
    assert node.cosign("--wait", "0s")[1]["signed"] == ["A"]
    node.stop("A")
    node.anchor()
    node.start("B")
    code, status = node.cosign("--wait", "0s")
    assert (status["complete_size"], status["signed"]) == (1, ["A", "B"])
    node.start("A")
    code, status = node.cosign()
    assert (code, status["complete_size"], status["signed"]) == (0, 2, ["A", "B"])


def _say_larger(node: CosignedNode, witness: str) -> None:
    """Let the node have heard from *witness* that it cosigned a tree of the greatest size there is."""
    with contextlib.closing(sqlite3.connect(node.data / "node.db")) as database, database:
        change = "UPDATE anchor_witnesses SET known_size = ? WHERE witness = ?"
        assert database.execute(change, (2**63 - 1, witness)).rowcount == 1


def test_a_witness_that_once_told_of_a_larger_tree_is_asked_again(node: CosignedNode) -> None:
    node.anchor()
    node.cosign()
    _say_larger(node, "A")
    node.anchor()
    code, status = node.cosign()
    assert (code, status["complete_size"], status["signed"]) == (0, 2, ["A", "B", "C"])


def test_one_witness_beyond_a_checkpoint_does_not_keep_the_quorum_away(node: CosignedNode) -> None:
    node.anchor()
    node.cosign()
    node.stop("A", "C")
    node.anchor()
    assert node.cosign("--wait", "0s")[1]["signed"] == ["B"]
    _say_larger(node, "A")
    node.stop("B")
    node.anchor()
    node.start("C")
    status = node.cosign("--wait", "0s")[1]
    assert (status["complete_size"], status["signed"]) == (2, ["B", "C"])


def test_a_node_that_was_restored_from_a_backup_is_found_by_its_witnesses(node: CosignedNode, tmp_path: Path) -> None:
    node.anchor()
    node.cosign()
    shutil.copytree(node.data, tmp_path / "backup")
    node.anchor()
    node.cosign()
    shutil.rmtree(node.data)
    shutil.copytree(tmp_path / "backup", node.data)
    code, status = node.cosign("--wait", "0s")
    node.anchor(3)  # the ledger continues, and gets another second entry than the one that was cosigned
    code, status = node.cosign("--wait", "0s")
    problems = {name: (record["is_fork"], record["problem"]) for name, record in dict(status["witnesses"]).items()}  # type: ignore[call-overload]
    assert code == 1
    assert all(is_fork and "the ledger was forked" in problem for is_fork, problem in problems.values()), problems
    issue = node.issue("ledger-forked")
    assert "3 witnesses contradict the ledger anchors, such as A: " in issue
    for name in "ABC":
        status_of = run_command("witness", "status", "--key", str(tmp_path / name / "witness.key"))
        assert (status_of.code, "FORK: example.org/anchors" in status_of.out) == (1, True)


def test_a_node_that_serves_asks_its_witnesses_by_itself(node: CosignedNode) -> None:
    node.anchor()
    command = [
        sys.executable,
        "-m",
        "millstream",
        "serve",
        "--no-broker",
        "--console",
        "127.0.0.1:0",
        "--data",
        str(node.data),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as serving:
        try:
            until(lambda: node.command("anchor", "checkpoint", "--cosigned").code == 0, "the quorum")
        finally:
            serving.terminate()
        assert serving.wait(60) == 0


def test_a_complete_checkpoint_is_looked_at_without_a_write(node: CosignedNode) -> None:
    """A node that serves compares twice a second: an idle one must not sync its disk for that."""
    node.anchor()
    node.cosign()
    with Node.open(load_settings({"data": str(node.data)}, environment={})[0]) as opened:
        collector, written = opened.ledgers.cosignatures.required_collector("anchors"), list[str]()
        engine = opened.databases.own

        def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            written.extend([statement] if not statement.lstrip().startswith("SELECT") else [])

        assert collector.collect()  # which opens the tables
        sa.event.listen(engine, "before_cursor_execute", record)
        assert collector.collect()
        sa.event.remove(engine, "before_cursor_execute", record)
    assert written == []


def test_published_checkpoints_get_their_cosignatures_and_keep_them(node: CosignedNode) -> None:
    """Readers of tiles with a policy find the quorum; the newest checkpoint is published before it has it."""
    settings, policy = node.data / "millstream.toml", parse_policy(node.policy.read_bytes())
    settings.write_text(f"{settings.read_text('utf-8')}tiles = true\n", "utf-8")
    tiles = node.data / "ledger-tiles" / "anchors"
    node.anchor()
    assert parse_note((tiles / "checkpoint").read_bytes()).signatures[1:] == ()
    assert not (tiles / "checkpoint.cosigned").exists()
    assert node.cosign()[0] == 0
    cosigned = (tiles / "checkpoint.cosigned").read_bytes()
    assert check_checkpoint(cosigned, policy).witnesses == ("A", "B", "C")
    assert (tiles / "checkpoint").read_bytes() == cosigned
    assert node.command("anchor", "checkpoint").code == 0
    assert (tiles / "checkpoint").read_bytes() == cosigned, "a process that knows nothing of them keeps them"
    node.stop("A", "B")
    shutil.rmtree(tiles)
    assert node.command("anchor", "checkpoint").code == 0
    assert not (tiles / "checkpoint.cosigned").exists()
    assert node.cosign("--wait", "0s")[0] == 0
    assert (tiles / "checkpoint").read_bytes() == (tiles / "checkpoint.cosigned").read_bytes() == cosigned
    node.anchor()
    node.cosign("--wait", "0s")
    newest = check_checkpoint((tiles / "checkpoint").read_bytes(), parse_policy(node.ledger_only_policy)).checkpoint
    assert newest.size == 2
    assert (tiles / "checkpoint.cosigned").read_bytes() == cosigned, "it stays until the next quorum"
    assert node.command("anchor", "verify").code == 0


def test_a_policy_without_urls_or_file_is_an_error_that_says_so(node: CosignedNode) -> None:
    node.anchor()
    node.policy.write_text(node.policy.read_text("utf-8").replace(f" {node.witnesses['B'].url}", ""), "utf-8")
    answer = node.command("anchor", "cosign")
    assert (answer.code, "the witness 'B' has no URL" in answer.err) == (2, True)
    node.policy.unlink()
    answer = node.command("anchor", "cosign")
    assert (answer.code, "cannot read the trust policy" in answer.err) == (2, True)
