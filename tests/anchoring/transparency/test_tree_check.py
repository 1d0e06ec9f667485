"""What does not fit a ledger is found: in the rows of its tree, in its checkpoints, and in what is published."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import LedgerError
from millstream.anchoring.transparency import FolderFiles, LedgerTree, TreePlaces
from millstream.anchoring.transparency.keys import LedgerKeys, LedgerSigner
from millstream.anchoring.transparency.tree_check import VerifiedTree
from millstream.core.clock import VirtualClock
from millstream.log import open_store
from millstream.testing.ledgers import some_anchor
from suite.sizes import sized

ENTRIES = 300
STEP = sized(quick=1501, ci=211, long=1)
"""Of so many bytes of a tile one is flipped; each byte of a checkpoint is, but for a quick run."""


@dataclasses.dataclass
class SignedFolder:
    folder: Path
    engine: sa.Engine
    ledger: LogLedger
    tree: LedgerTree

    @property
    def published(self) -> list[Path]:
        return sorted(path for path in (self.folder / "tiles").rglob("*") if path.is_file())


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[SignedFolder]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    places = TreePlaces(
        copy=FolderFiles(tmp_path / "copies", "anchors", create=True),
        tiles=FolderFiles(tmp_path / "tiles", "anchors", create=True),
    )
    signer = LedgerSigner(LedgerKeys(tmp_path / "keys", "anchors", VirtualClock()))
    with open_store("memory://") as store:
        ledger = LogLedger(store, VirtualClock())
        tree = LedgerTree(ledger, lambda: engine, "anchors", signer=lambda: signer, places=lambda: places)
        for number in range(ENTRIES):
            ledger.append(some_anchor(number), after=number)
        tree.checkpoint()
        yield SignedFolder(tmp_path, engine, ledger, tree)
    engine.dispose()


def test_a_whole_tree_is_verified_with_its_copy_and_what_is_published(signed: SignedFolder) -> None:
    assert signed.tree.verify() == VerifiedTree(ENTRIES, ENTRIES, ENTRIES, ENTRIES, ENTRIES)
    signed.ledger.append(some_anchor(ENTRIES))  # the tree does not follow here
    assert signed.tree.verify() == VerifiedTree(ENTRIES + 1, ENTRIES, ENTRIES, ENTRIES, ENTRIES)
    signed.tree.checkpoint()
    assert signed.tree.verify().published == ENTRIES + 1
    assert [path.name for path in signed.published if path.parent.name.endswith(".p")] == ["44", "45", "1", "44", "45"]


def test_any_flipped_byte_of_a_stored_tile_is_found(signed: SignedFolder) -> None:
    rows = signed.engine.connect().exec_driver_sql("SELECT level, tile, hashes FROM anchor_tree_tiles").all()
    assert [(level, tile) for level, tile, _ in rows] == [(0, 0), (0, 1), (1, 0)]
    for level, tile, hashes in rows:

        def write(data: bytes, key: tuple[int, int] = (level, tile)) -> None:
            with signed.engine.begin() as connection:
                text = "UPDATE anchor_tree_tiles SET hashes = ? WHERE level = ? AND tile = ?"
                connection.exec_driver_sql(text, (data, *key))

        require_found(signed, hashes, write, STEP)


def test_any_flipped_byte_of_a_published_file_is_found(signed: SignedFolder) -> None:
    assert len(signed.published) == 6
    for path in signed.published:
        steps = {"entries": 10 * STEP, "anchors": 1 if STEP < 1000 else 20}
        named = path.parent.name if path.name == "checkpoint" else path.relative_to(signed.folder).parts[3]
        require_found(signed, path.read_bytes(), path.write_bytes, steps.get(named, STEP))


def test_any_flipped_byte_of_the_newest_checkpoint_or_its_copy_is_found(signed: SignedFolder) -> None:
    path = signed.folder / "copies" / "anchors" / "checkpoint"

    def write(data: bytes) -> None:
        with signed.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE anchor_trees SET checkpoint = ?", (data,))

    for writer in (path.write_bytes, write):
        require_found(signed, path.read_bytes(), writer, 1 if STEP < 1000 else 20)


def test_a_published_file_that_is_missing_is_found(signed: SignedFolder) -> None:
    for path in signed.published:
        if path.name == "checkpoint":
            continue
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(LedgerError, match="is missing: remove all published files"):
            signed.tree.verify()
        path.write_bytes(whole)
    signed.tree.verify()


def require_found(signed: SignedFolder, whole: bytes, write: Callable[[bytes], object], step: int) -> None:
    """With a flipped byte, and with a byte less, the tree is not verified; as it was it is."""
    draw = random.Random(len(whole))
    for place in range(draw.randrange(step), len(whole), step):
        write(whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
        with pytest.raises(LedgerError):
            signed.tree.verify()
    write(whole[:-1])
    with pytest.raises(LedgerError):
        signed.tree.verify()
    write(whole)
    signed.tree.verify()
