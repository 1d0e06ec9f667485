"""The trees of a node's ledgers: signed as anchors are added, copied, published; folders of before are taken over.

``kept/ledgers-without-trees.tar.xz`` was made by the release before ledgers had trees: a node with three anchors, two
entries of the registry, one of reports, and a proof (``proof.json``).
"""

from __future__ import annotations

import contextlib
import sqlite3
import tarfile
from pathlib import Path

import msgspec
import pytest

from millstream.anchoring import verify_proof
from millstream.anchoring.ledger import LedgerEntry, encode_entry, next_entry
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.proof import ChainProof, Trust, decode_proof
from millstream.anchoring.transparency import FolderFiles
from millstream.anchoring.transparency.policy import trusting
from millstream.log import Message, system_log
from millstream.node import Node
from millstream.node.ledgers import LEDGERS
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batches
from millstream.testing.ledgers import some_anchor
from suite.sizes import sized
from support.published_tiles import check_tiles

KEPT = Path(__file__).with_name("kept") / "ledgers-without-trees.tar.xz"


def opened(folder: Path, **anchoring: object) -> Node:
    settings = Settings(data=str(folder))
    changed = msgspec.structs.replace(settings.anchoring, **anchoring)
    return Node.open(msgspec.structs.replace(settings, anchoring=changed), create=True)


def require_signed(node: Node, sizes: dict[str, int]) -> None:
    """Each ledger has a newest checkpoint of this size, over its lines, signed with its own key."""
    origins = set()
    for name in LEDGERS:
        leaves = [leaf_hash(encode_entry(entry)) for entry in node.ledgers.ledger(name).entries()]
        signed = node.ledgers.tree(name).checkpoint()
        assert (signed.size, signed.root) == (sizes[name], merkle_root(leaves))
        origin, size, *_ = signed.data.decode().splitlines()
        assert int(size) == sizes[name]
        origins.add(origin)
    assert len(origins) == 3


def test_each_anchor_of_a_node_is_signed(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.anchoring.batch_writer.add("weather", list(make_batches(2)), config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)
        node.mill.reports.ledger.append(some_anchor(1))
        node.registry.ledger.append(some_anchor(2))
        for name in LEDGERS:
            newest = node.ledgers.tree(name).newest()
            assert newest is not None
            assert newest.size == 1
    assert (tmp_path / "keys").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "ledger-tiles").exists()


def test_a_folder_of_the_release_before_is_taken_over(tmp_path: Path) -> None:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    proof = (tmp_path / "proof.json").read_bytes()
    with opened(tmp_path) as node:
        head = node.anchoring.ledger.head()
        assert head is not None
        assert verify_proof(proof, node.anchoring.cas).pinned is False
        assert node.ledgers.tree("anchors").newest() is None
        require_signed(node, {"anchors": 3, "registry": 2, "reports": 1})
        node.anchoring.batch_writer.add("weather", list(make_batches(9))[7:], config=CONFIG)
        (entry,) = node.anchoring.batch_writer.cut(force=True)
        assert (entry.number, entry.previous) == (4, head.hash)
        require_signed(node, {"anchors": 4, "registry": 2, "reports": 1})


@pytest.mark.long
def test_a_folder_of_before_with_many_anchors_is_taken_over_and_its_old_proofs_verify(tmp_path: Path) -> None:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    count = sized(quick=1_000, ci=5_000, long=100_000)
    old = (tmp_path / "proof.json").read_bytes()
    kept = decode_proof(old)
    assert isinstance(kept, ChainProof)
    with opened(tmp_path) as node:
        head = _append_without_a_tree(node, count)
        chain = node.proofs.prove(kept.log, kept.id, chain=True)
        assert node.ledgers.tree("anchors").size == 0
    with opened(tmp_path) as node:
        assert node.ledgers.tree("anchors").checkpoint().size == count
        assert verify_proof(old, node.anchoring.cas, Trust(ledger_head=kept.ledger[-1].hash)).pinned
        verified = verify_proof(chain, node.anchoring.cas, Trust(ledger_head=head.hash))
        assert (verified.version, verified.ledger_head) == (1, head.hash)
        small = node.proofs.prove(kept.log, kept.id)
        key, _ = node.ledgers.keys("anchors").signing_until()[0]
        assert verify_proof(small, node.anchoring.cas, Trust(policy=trusting([key]))).pinned
        assert len(small) < 8_000
        assert node.ledgers.tree("anchors").verify().leaves == count


def _append_without_a_tree(node: Node, count: int) -> LedgerEntry:
    """Let the ledger of anchors have *count* entries, as the release before wrote them; returns the last one."""
    head = node.anchoring.ledger.head()
    with node.logs.store.log(system_log("ledger", "ledger")).writer(producer="ledger") as writer:
        while head is None or head.number < count:
            messages = []
            for _ in range(min(100, count - (head.number if head else 0))):
                head = next_entry(head, some_anchor(head.number if head else 0), 0)
                messages.append(Message(encode_entry(head), source="ledger", event_time=head.time))
            writer.append(messages)
    return head


@pytest.mark.parametrize("tiles", [True, "folder"])
def test_a_node_copies_checkpoints_and_publishes_tiles_where_the_settings_say(
    tmp_path: Path, tiles: bool | str
) -> None:
    copies, published = tmp_path / "copies", tmp_path / "published"
    copies.mkdir()
    published.mkdir()
    place = tmp_path / "node" / "ledger-tiles" if tiles is True else published
    with opened(
        tmp_path / "node", checkpoint_copy=str(copies), tiles=tiles if tiles is True else str(published)
    ) as node:
        for number in range(3):
            entry = node.registry.ledger.append(some_anchor(number))
        signed = node.ledgers.tree("registry").newest()
        assert signed is not None
        assert signed.size == entry.number == 3
        assert (copies / "registry" / "checkpoint").read_bytes() == signed.data
        assert (place / "registry" / "checkpoint").read_bytes() == signed.data
        lines = [encode_entry(each) for each in node.registry.ledger.entries()]
        check_tiles(FolderFiles(place, "registry"), lines, 3)
    assert [folder.name for folder in place.iterdir()] == ["registry"]


def test_an_anchor_stands_where_its_checkpoint_cannot_be_signed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = tmp_path / "away"
    with opened(tmp_path / "node", checkpoint_copy=str(away)) as node:
        assert node.mill.reports.ledger.append(some_anchor(1)).number == 1
        status = node.ledgers.tree("reports").status()
        assert (status.entries, status.signed) == (1, None)
        assert "there is no folder" in str(status.problem)
    assert "there is no folder" in caplog.text
    away.mkdir()
    with opened(tmp_path / "node", checkpoint_copy=str(away)) as watching:
        assert "there is no folder" in str(watching.ledgers.tree("reports").status().problem)  # another process knows
        with opened(tmp_path / "node", checkpoint_copy=str(away)) as node:
            node.ledgers.signed("reports").checkpoint()
        status = watching.ledgers.tree("reports").status()
        assert (status.signed, status.problem) == (1, None)


def test_a_database_of_before_problems_were_kept_gets_the_column(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.mill.reports.ledger.append(some_anchor(1))
    with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database, database:
        database.execute("ALTER TABLE anchor_trees DROP COLUMN problem")
    with opened(tmp_path) as node:
        node.mill.reports.ledger.append(some_anchor(2))
        status = node.ledgers.tree("reports").status()
        assert (status.entries, status.signed, status.problem) == (2, 2, None)
