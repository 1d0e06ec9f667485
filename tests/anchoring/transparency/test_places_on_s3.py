"""The copy of checkpoints and the published tiles on a real S3 server (OpenStack Swift)."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from millstream.anchoring.errors import LedgerError, LedgerUnavailableError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.transparency import StoreFiles, tile_path
from millstream.anchoring.transparency.tree_check import VerifiedTree
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import open_provider
from millstream.testing.ledgers import some_anchor
from millstream.testing.s3 import S3Server
from support.published_tiles import check_tiles


def opened(folder: Path, copies: str, tiles: str) -> Node:
    settings = Settings(data=str(folder))
    anchoring = msgspec.structs.replace(settings.anchoring, checkpoint_copy=copies, tiles=tiles)
    return Node.open(msgspec.structs.replace(settings, anchoring=anchoring), create=True)


def test_a_node_copies_and_publishes_to_buckets_and_a_restored_backup_is_refused(
    tmp_path: Path, swift: S3Server
) -> None:
    copies, tiles = swift.new_url(), swift.new_url()
    for url in (copies, tiles):
        open_provider(url)
    with opened(tmp_path / "node", copies, tiles) as node:
        ledger, tree = node.mill.reports.ledger, node.ledgers.tree("reports")
        ledger.append(some_anchor(0))
        assert tree.status().problem is None
    shutil.copytree(tmp_path / "node", tmp_path / "backup")
    with opened(tmp_path / "node", copies, tiles) as node:  # another process goes on
        ledger, tree = node.mill.reports.ledger, node.ledgers.tree("reports")
        ledger.on_append(lambda _: None)
        for number in range(1, 254):
            ledger.append(some_anchor(number), after=number)
        tree.checkpoint()
        tree.follow()
        published = StoreFiles(open_provider(tiles), "reports")
        for number in range(254, 258):  # over the end of the first tile
            ledger.append(some_anchor(number), after=number)
            assert tree.status().problem is None
            check_tiles(published, [encode_entry(entry) for entry in ledger.entries()], number + 1)
        newest = tree.newest()
        assert newest is not None
        assert (
            published.read("checkpoint")
            == StoreFiles(open_provider(copies), "reports").read("checkpoint")
            == newest.data
        )
        assert published.read(tile_path(0, 0, 255)) is None, "partial tiles of the full one are gone"
        assert tree.verify() == VerifiedTree(258, 258, 258, 258, 258)
    with opened(tmp_path / "backup", copies, tiles) as node:
        ledger, tree = node.mill.reports.ledger, node.ledgers.tree("reports")
        ledger.append(some_anchor(77), after=1)
        with pytest.raises(LedgerError, match="covers 258 entries, which are not the first of the 2 entries"):
            tree.checkpoint()
        assert published.read("checkpoint") == newest.data


def test_a_bucket_that_does_not_answer_stops_signing_and_no_anchor(tmp_path: Path, swift: S3Server) -> None:
    copies = swift.new_url()
    closed = copies.replace(swift.address.endpoint or "", "http://127.0.0.1:9")
    with opened(tmp_path, closed, "") as node:
        assert node.mill.reports.ledger.append(some_anchor(0)).number == 1
        tree = node.ledgers.tree("reports")
        assert (tree.status().signed, "cannot read 'checkpoint' in the space" in str(tree.status().problem)) == (
            None,
            True,
        )
        with pytest.raises(LedgerUnavailableError):
            tree.checkpoint()
    with opened(tmp_path, copies, "") as node:
        node.mill.reports.ledger.append(some_anchor(1))
        status = node.ledgers.tree("reports").status()
        assert (status.entries, status.signed, status.problem) == (2, 2, None)
