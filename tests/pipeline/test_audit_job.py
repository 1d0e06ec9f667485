"""The audit on Spark: what a replay in one process finds, and what a second node has otherwise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from millstream.anchoring import replay
from millstream.anchoring.feed import encode_batches
from millstream.batching import EventBatch
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.node.spark import SparkPart
from millstream.pipeline.jobs.audit import AnchorAuditResult, audit_anchors
from millstream.settings import AnchoringSettings, Settings
from millstream.testing.damage import flip_bit, remove
from millstream.testing.dids import DidOwner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def node_in(folder: Path) -> Node:
    return Node.open(Settings(data=str(folder), anchoring=AnchoringSettings(max_batches=4)), create=True)


def anchor_batches(node: Node, count: int) -> None:
    """Anchor *count* batches of three messages, four batches an anchor."""
    log = node.logs.store.log(LogSpec("in"))
    with log.writer() as writer:
        writer.append([Message(b"%d" % n, "k", "s", n, n) for n in range(1, 3 * count + 1)])
    batches = [
        EventBatch(f"batch-{n}", "s", 3 * n + 1, 3 * n + 3, 3 * n + 3, "window", (3 * n + 1, 3 * n + 2, 3 * n + 3))  # type: ignore[arg-type]
        for n in range(count)
    ]
    node.anchoring.batch_writer.add("in", encode_batches(log, batches), config={})
    node.anchoring.batch_writer.cut(force=True)


def audit(spark: SparkSession, node: Node, peer: Node | None = None) -> AnchorAuditResult:
    other = peer.anchoring.ledger if peer else None
    return audit_anchors(
        spark,
        node.folder / "jobs",
        node.anchoring.ledger,
        node.anchoring.cas_url,
        index=node.anchoring.observer.index,
        peer=other,
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_in(tmp_path / "node") as opened:
        anchor_batches(opened, 10)
        yield opened


def test_what_was_anchored_is_read_back_whole(spark: SparkSession, node: Node) -> None:
    found = audit(spark, node)
    assert (
        found.findings
        == replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings
        == ()
    )
    counts = found.record.counts
    assert (found.record.rows_in, counts["batches"], counts["messages"], counts["invalid"]) == (3, 10, 30, 0)


def test_the_first_one_holds_in_an_audit_as_well(spark: SparkSession, node: Node) -> None:
    head = node.anchoring.ledger.head()
    assert head is not None
    first = next(node.anchoring.ledger.entries()).anchor_string
    node.anchoring.ledger.append(first, after=head.number)
    node.anchoring.ledger.append("9." + first.partition(".")[2])
    node.anchoring.observer.observe()
    found = audit(spark, node)
    assert found.findings == ()
    assert (found.record.counts["refused"], found.record.counts["invalid"], found.record.counts["batches"]) == (
        4,
        1,
        10,
    )


def test_damage_is_found_where_a_replay_finds_it(spark: SparkSession, node: Node) -> None:
    files = sorted(path for path in (node.folder / "cas").iterdir() if path.is_file())
    flip_bit(files[0])
    remove(files[-1])
    with node.databases.own.begin() as connection:
        connection.execute(sa.text("insert into anchor_index_batches values (2, 1, 'log', 'b', 'file', 0, 1, 'no')"))
    found = audit(spark, node)
    wanted = {
        (f.what, f.number)
        for f in replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings
    }
    assert {(finding.what, finding.number) for finding in found.findings} == wanted
    assert wanted


def test_a_second_node_that_parted_ways_is_told_and_one_that_is_behind_is_not(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    with node_in(tmp_path / "peer") as peer:
        assert audit(spark, node, peer).findings == ()
        anchor_batches(peer, 3)
        (finding,) = audit(spark, node, peer).findings
        assert (finding.what, finding.number) == ("peer", 1)


def test_every_identifier_is_resolved_and_compared_by_the_command(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def shared(_: SparkPart, **_options: bool) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(SparkPart, "session", shared)
    people = [DidOwner(f"person {number}") for number in range(3)]
    steps: list[Callable[[DidOwner], object]] = [lambda p: p.create, lambda p: p.update(), lambda p: p.recover()]
    for name in ("node", "peer"):
        with node_in(tmp_path / name) as opened, opened.registry.instance as registry:
            for step in steps[: 3 if name == "node" else 1]:
                requests = [canonical_json(step(person).request) for person in people]  # type: ignore[attr-defined]
                assert all(outcome.result for outcome in registry.acceptance.submit_many(requests))
                while registry.queue.claim(100):
                    pass
                registry.writer.cut(force=True)
    command = ["pipeline", "audit", "--data", str(tmp_path / "node"), "--json"]
    assert run(command) == 0
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert told[-1]["counts"] == {"identifiers": 3, "operations": 9, "findings": 0}
    assert run([*command, "--peer", str(tmp_path / "peer")]) == 1
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {finding["what"] for finding in told[-1]["findings"]} == {"peer"}
