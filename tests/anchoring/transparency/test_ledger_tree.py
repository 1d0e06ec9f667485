"""The durable tree of a ledger: it follows the ledger, and never signs two trees that do not fit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import LedgerError, LedgerUnavailableError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import leaf_hash, merkle_root, verify_consistency, verify_inclusion
from millstream.anchoring.transparency import (
    FolderFiles,
    LedgerTree,
    PublishedFiles,
    StoreFiles,
    TreePlaces,
    open_files,
    tile_path,
)
from millstream.anchoring.transparency import ledger_tree as module
from millstream.anchoring.transparency.entry_proof import newest_checkpoint
from millstream.anchoring.transparency.tree_tables import make_tree_tables
from millstream.core.clock import VirtualClock
from millstream.log import LogStore, open_store
from millstream.stores import open_provider
from millstream.testing.ledgers import some_anchor
from support.ledger_signer import ChecksumSigner
from support.published_tiles import check_tiles


@dataclasses.dataclass
class Place:
    """A folder with a ledger and its tree, as a process of its own would open them."""

    folder: Path
    store: LogStore
    engine: sa.Engine
    places: TreePlaces = dataclasses.field(default_factory=TreePlaces)
    signer: ChecksumSigner = dataclasses.field(default_factory=ChecksumSigner)

    def open(self, **more: Any) -> tuple[LogLedger, LedgerTree]:
        ledger = LogLedger(self.store, VirtualClock())
        named = {"signer": lambda: self.signer, "places": lambda: self.places, **more}
        return ledger, LedgerTree(ledger, lambda: self.engine, "anchors", **named)

    def following(self, **more: Any) -> tuple[LogLedger, LedgerTree]:
        ledger, tree = self.open(**more)
        tree.follow()
        return ledger, tree


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with open_place(tmp_path) as opened:
        yield opened


class open_place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Place:
        self.engine = sa.create_engine(f"sqlite:///{self.folder / 'node.db'}")
        self.store = open_store(f"sqlite:///{self.folder / 'log.db'}")
        return Place(self.folder, self.store, self.engine)

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self.engine.dispose()


def fill(ledger: LogLedger, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        ledger.append(some_anchor(number), after=number)


def lines_of(ledger: LogLedger) -> list[bytes]:
    return [encode_entry(entry) for entry in ledger.entries()]


def root_of(ledger: LogLedger, size: int | None = None) -> bytes:
    return merkle_root([leaf_hash(line) for line in lines_of(ledger)][:size])


def test_each_append_extends_the_tree_and_signs_its_head(place: Place) -> None:
    ledger, tree = place.following()
    for number in range(5):
        ledger.append(some_anchor(number))
        newest = tree.newest()
        assert newest is not None
        assert (tree.size, newest.size, newest.root) == (number + 1, number + 1, root_of(ledger))
    assert place.signer.signed == [(size, root_of(ledger, size)) for size in range(1, 6)]
    for number, entry in enumerate(ledger.entries()):
        verify_inclusion(leaf_hash(encode_entry(entry)), number, 5, tree.inclusion_path(number), newest.root)
        verify_consistency(number, tree.root(number), 5, newest.root, tree.consistency_path(number))


def test_the_leaf_is_the_line_that_the_command_prints(place: Place) -> None:
    ledger, tree = place.following()
    entry = ledger.append(some_anchor(1))
    line = (
        f'{{"anchor_string":"{entry.anchor_string}","hash":"{entry.hash}","number":1,'
        f'"previous":"{"0" * 64}","time":{entry.time}}}'
    )
    assert tree.root() == leaf_hash(line.encode())


def test_a_ledger_of_before_is_taken_over_in_chunks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    ledger, tree = place.open()
    fill(ledger, 12)
    assert (tree.size, tree.newest()) == (0, None)
    signed = tree.checkpoint()
    assert (signed.size, signed.root, place.signer.signed) == (12, root_of(ledger), [(12, root_of(ledger))])
    tree.verify()


def test_a_tree_without_a_key_is_extended_and_not_signed(place: Place) -> None:
    ledger, tree = place.following(signer=None)
    fill(ledger, 3)
    assert (tree.size, tree.newest(), tree.extend()) == (3, None, 3)
    with pytest.raises(LedgerError, match="is not signed"):
        tree.checkpoint()


def test_entries_that_a_dead_writer_left_without_a_leaf_get_one(place: Place) -> None:
    ledger, tree = place.open()
    fill(ledger, 3)
    tree.follow()
    assert ledger.append(some_anchor(2)).number == 3  # it is there already: the batch writer asks again after a crash
    assert tree.newest().size == tree.size == 3  # type: ignore[union-attr]


def test_processes_that_write_in_turn_share_one_tree(place: Place) -> None:
    (first, one), (second, two) = place.following(), place.following()
    for number in range(0, 8, 2):
        first.append(some_anchor(number))
        second.append(some_anchor(number + 1))
    assert one.root() == two.root() == root_of(first)
    assert [size for size, _ in place.signer.signed] == list(range(1, 9))


def test_the_checkpoint_of_a_size_is_signed_once_and_again_only_for_other_keys(place: Place) -> None:
    ledger, tree = place.following()
    fill(ledger, 2)
    first = tree.checkpoint()
    assert tree.checkpoint() == first
    assert len(place.signer.signed) == 2
    place.signer.keys = ("second", "first")
    again = tree.checkpoint()
    assert again.data != first.data
    assert (again.size, again.root) == (first.size, first.root)
    assert tree.checkpoint() == again


def test_the_empty_ledger_has_a_checkpoint(place: Place) -> None:
    _, tree = place.open()
    assert tree.checkpoint().size == 0
    assert tree.checkpoint().root == merkle_root([])


def test_a_ledger_that_is_shorter_than_its_tree_is_refused(tmp_path: Path) -> None:
    with open_place(tmp_path) as place:
        ledger, _ = place.following()
        fill(ledger, 3)
    shutil.copy(tmp_path / "log.db", tmp_path / "older.db")
    with open_place(tmp_path) as place:
        ledger, tree = place.following()
        fill(ledger, 2, first=3)
    for end in ("-wal", "-shm"):
        (tmp_path / f"log.db{end}").unlink(missing_ok=True)
    shutil.move(tmp_path / "older.db", tmp_path / "log.db")
    with open_place(tmp_path) as place:
        ledger, tree = place.following()
        for ask in (tree.checkpoint, tree.extend, tree.verify):
            with pytest.raises(
                LedgerError,
                match=r"has 3 entries, but its signed tree has 5.*Restore the newest state of the node's logs",
            ):
                ask()
        assert ledger.append(some_anchor(77)).number == 4  # the anchor stands
        assert ledger.append(some_anchor(78)).number == 5
        assert ledger.append(some_anchor(79)).number == 6
        with pytest.raises(LedgerError, match="differs from its leaf in the signed tree"):
            tree.checkpoint()
        assert tree.newest().size == tree.size == 5  # type: ignore[union-attr]
        assert place.signer.signed == []
        assert "differs from its leaf in the signed tree" in str(tree.status().problem)


def test_a_changed_entry_is_found_by_verify(place: Place) -> None:
    ledger, tree = place.following()
    fill(ledger, 4)
    tree.verify()
    with place.engine.begin() as connection:
        (hashes,) = connection.exec_driver_sql("SELECT hashes FROM anchor_tree_tiles").one()
        changed = hashes[:40] + bytes([hashes[40] ^ 1]) + hashes[41:]
        connection.exec_driver_sql("UPDATE anchor_tree_tiles SET hashes = ?", (changed,))
    with pytest.raises(LedgerError, match="entry 2 of the ledger 'anchors' differs"):
        tree.verify()
    _, again = place.open()
    place.signer.keys = ("second",)
    with pytest.raises(LedgerError, match=r"the newest checkpoint covers 4 entries, which are not"):
        again.checkpoint()


def test_a_tile_that_is_missing_is_an_error_and_not_built_again(place: Place) -> None:
    ledger, tree = place.following()
    fill(ledger, 2)
    with place.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM anchor_tree_tiles")
    with pytest.raises(LedgerError, match=r"tile 0 of level 0 is missing.*Restore the node's database"):
        tree.inclusion_path(0)
    _, again = place.open()
    with pytest.raises(LedgerError, match="tile 0 of level 0 is missing"):
        again.checkpoint()


@pytest.fixture(params=["folder", "store"])
def outside(request: pytest.FixtureRequest, tmp_path: Path) -> PublishedFiles:
    """Where the newest checkpoint is kept: a folder, or a storage provider."""
    (tmp_path / "outside").mkdir()
    return open_files(
        str(tmp_path / "outside") if request.param == "folder" else (tmp_path / "outside").as_uri(), "anchors"
    )


def test_the_newest_checkpoint_is_copied_and_a_restored_backup_is_refused(
    tmp_path: Path, outside: PublishedFiles
) -> None:
    older, places = tmp_path / "older", TreePlaces(copy=outside)
    with open_place(tmp_path) as place:
        place.places = places
        ledger, tree = place.following()
        fill(ledger, 3)
        assert outside.read("checkpoint") == tree.checkpoint().data
    older.mkdir()
    for name in ("log.db", "node.db"):
        shutil.copy(tmp_path / name, older / name)
    with open_place(tmp_path) as place:
        place.places = places
        ledger, tree = place.following()
        fill(ledger, 2, first=3)
        newest = outside.read("checkpoint")
        assert newest == tree.checkpoint().data
    with open_place(older) as place:
        place.places = places
        ledger, tree = place.following()
        with pytest.raises(LedgerError, match="covers 5 entries, which are not the first of the 3 entries"):
            tree.checkpoint()
        for number in range(3):
            ledger.append(some_anchor(70 + number))
        with pytest.raises(LedgerError, match="covers 5 entries, which are not the first of the 6 entries"):
            tree.checkpoint()
        assert place.signer.signed == []
        assert outside.read("checkpoint") == newest


class _WriteProtected:
    """The files of *files*, which can be read and not written."""

    def __init__(self, files: PublishedFiles) -> None:
        self.files = files

    def read(self, path: str) -> bytes | None:
        return self.files.read(path)

    def put(self, path: str, data: bytes, media: str) -> None:
        raise LedgerUnavailableError(f"cannot write {path}")

    def delete_below(self, path: str) -> None: ...


def test_only_a_checkpoint_whose_copy_is_written_is_given_out(place: Place, outside: PublishedFiles) -> None:
    place.places = TreePlaces(copy=outside)
    ledger, tree = place.following()
    fill(ledger, 1)
    first = tree.released()
    place.places = TreePlaces(copy=_WriteProtected(outside))
    ledger, tree = place.following()
    fill(ledger, 1, first=1)
    newest = tree.newest()
    assert newest is not None and first is not None
    assert (newest.size, first.size, tree.released()) == (2, 1, first)
    assert newest_checkpoint(tree, place.signer, covers=1) == first
    with pytest.raises(LedgerUnavailableError):
        newest_checkpoint(tree, place.signer, covers=2)
    place.places = TreePlaces(copy=outside)
    _, tree = place.open()
    assert newest_checkpoint(tree, place.signer, covers=2) == newest == tree.released()
    assert outside.read("checkpoint") == newest.data


def test_a_row_that_says_another_tree_than_its_checkpoint_is_refused(place: Place, outside: PublishedFiles) -> None:
    place.places = TreePlaces(copy=outside)
    ledger, tree = place.following()
    fill(ledger, 3)
    with place.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE anchor_trees SET checkpoint_size = 1, checkpoint_root = :root"), {"root": tree.root(1)}
        )
    signed = len(place.signer.signed)
    _, tree = place.open()
    with pytest.raises(LedgerError, match="does not match its row"):
        tree.checkpoint()
    assert len(place.signer.signed) == signed


def test_a_restored_backup_signs_nothing_beside_what_is_published(tmp_path: Path) -> None:
    published = FolderFiles(tmp_path, "tiles", create=True)
    before, after = tmp_path / "before", tmp_path / "node"
    after.mkdir()
    with open_place(after) as place:
        place.places = TreePlaces(tiles=published)
        fill(place.following()[0], 2)
    shutil.copytree(after, before)
    with open_place(after) as place:
        place.places = TreePlaces(tiles=published)
        fill(place.following()[0], 1, first=2)
    with open_place(before) as place:
        place.places = TreePlaces(tiles=published)
        ledger, tree = place.following()
        ledger.append(some_anchor(77), after=2)
        assert place.signer.signed == []
        with pytest.raises(LedgerError, match=r"the checkpoint in .* covers 3 entries"):
            tree.checkpoint()


class _FailingOver:
    """The ledger *current*, which another one with fewer entries can replace."""

    def __init__(self, current: LogLedger) -> None:
        self.current = current

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


@pytest.mark.parametrize("lost_before_the_first_checkpoint", [False, True])
def test_a_running_process_signs_nothing_beside_what_it_signed_before_a_failover(
    tmp_path: Path, lost_before_the_first_checkpoint: bool
) -> None:
    published, known = FolderFiles(tmp_path, "tiles", create=True), 0 if lost_before_the_first_checkpoint else 2
    primary, standby = tmp_path / "primary", tmp_path / "standby"
    primary.mkdir()
    with open_place(primary) as place:
        place.places = TreePlaces(tiles=published)
        fill(place.following()[0], known)
    shutil.copytree(primary, standby)
    with open_place(primary) as place, open_place(standby) as replica:
        failing = _FailingOver(LogLedger(place.store, VirtualClock()))
        places = TreePlaces(tiles=published)
        tree = LedgerTree(
            failing,  # type: ignore[arg-type]
            lambda: place.engine,
            "anchors",
            signer=lambda: place.signer,
            places=lambda: places,
        )
        fill(failing.current, 1, first=known)
        newest, signed = tree.checkpoint(), list(place.signer.signed)
        place.engine.dispose()
        (primary / "node.db").unlink()
        if known:
            shutil.copy(standby / "node.db", primary / "node.db")
        else:
            make_tree_tables(place.engine)
        failing.current = LogLedger(replica.store, VirtualClock())
        failing.current.append(some_anchor(77), after=known)
        with pytest.raises(LedgerError, match=f"the last checkpoint signed here covers {known + 1} entries"):
            tree.checkpoint()
        assert place.signer.signed == signed
        assert published.read("checkpoint") == newest.data


def test_a_writer_that_was_stopped_does_not_write_its_copy_over_a_newer_one(
    place: Place, outside: PublishedFiles
) -> None:
    place.places = TreePlaces(copy=outside)
    ledger, tree = place.following()
    fill(ledger, 2)
    newer, reads = place.signer.sign(4, bytes(32)), iter([outside.read("checkpoint")])

    class Overtaken(_WriteProtected):
        """After the first look another process writes the copy of a larger tree."""

        def read(self, path: str) -> bytes | None:
            return next(reads, newer)

    place.places = TreePlaces(copy=Overtaken(outside))
    ledger, tree = place.following()
    fill(ledger, 1, first=2)
    assert (tree.status().signed, tree.status().problem) == (3, None)


def test_a_copy_that_is_behind_or_absent_is_written_again(place: Place, outside: PublishedFiles) -> None:
    ledger, before = place.following()
    fill(ledger, 2)
    place.places = TreePlaces(copy=outside)
    _, tree = place.open()
    signed = tree.checkpoint()
    assert (outside.read("checkpoint"), signed) == (signed.data, before.newest())
    ledger.append(some_anchor(9))  # by a process that knows of no copy
    newest = tree.checkpoint()
    assert (outside.read("checkpoint"), newest.size) == (newest.data, 3)


def test_without_the_place_of_the_copy_nothing_is_signed_and_the_anchor_stands(place: Place) -> None:
    folder = place.folder / "away"
    place.places = TreePlaces(copy=FolderFiles(folder, "anchors"))
    ledger, tree = place.following()
    assert ledger.append(some_anchor(1)).number == 1
    assert "there is no folder" in str(tree.status().problem)
    with pytest.raises(LedgerUnavailableError, match=f"there is no folder {folder}: mount or create this folder"):
        tree.checkpoint()
    assert place.signer.signed == []
    folder.mkdir()
    ledger.append(some_anchor(2))
    assert (tree.status().problem, tree.status().signed) == (None, 2)
    assert (folder / "anchors" / "checkpoint").read_bytes() == tree.checkpoint().data


def test_an_anchor_stands_whatever_fails_when_it_is_signed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> bytes:
        raise ModuleNotFoundError("No module named 'cryptography'")

    ledger, tree = place.following()
    monkeypatch.setattr(place.signer, "sign", missing)
    assert ledger.append(some_anchor(1)).number == 1
    assert (tree.status().signed, tree.status().problem) == (None, "No module named 'cryptography'")
    monkeypatch.undo()
    assert ledger.append(some_anchor(2)).number == 2
    assert (tree.status().signed, tree.status().problem) == (2, None)


def test_a_copy_that_is_not_ours_is_refused(place: Place) -> None:
    (place.folder / "anchors").mkdir()
    (place.folder / "anchors" / "checkpoint").write_text("something else\n")
    place.places = TreePlaces(copy=FolderFiles(place.folder, "anchors"))
    ledger, tree = place.following()
    ledger.append(some_anchor(1))
    with pytest.raises(LedgerError, match="not a checkpoint"):
        tree.checkpoint()
    assert place.signer.signed == []


class TestTiles:
    @pytest.fixture(params=["folder", "store"])
    def files(self, request: pytest.FixtureRequest, tmp_path: Path) -> PublishedFiles:
        if request.param == "folder":
            return FolderFiles(tmp_path / "tiles", "anchors", create=True)
        return StoreFiles(open_provider("memory://tiles"), "anchors")

    @pytest.fixture
    def place(self, place: Place, files: PublishedFiles) -> Iterator[Place]:
        with open_store("memory://") as store:
            yield dataclasses.replace(place, store=store, places=TreePlaces(tiles=files))

    def test_every_published_checkpoint_can_be_read_from_the_tiles(self, place: Place, files: PublishedFiles) -> None:
        ledger, tree = place.open()
        fill(ledger, 250)
        tree.checkpoint()
        check_tiles(files, lines_of(ledger), 250)
        tree.follow()
        for number in range(250, 262):
            ledger.append(some_anchor(number), after=number)
            for size in {250, min(255, number), number + 1}:
                check_tiles(files, lines_of(ledger), size)
        assert files.read(tile_path(0, 0, 255)) is None  # the full tile is there
        assert files.read(tile_path("entries", 0, 255)) is None

    def test_publishing_resumes_where_it_was_interrupted(self, place: Place, files: PublishedFiles) -> None:
        ledger, tree = place.following()
        fill(ledger, 3)
        put, puts = files.put, list[str]()
        for fatal in range(3):

            def failing(path: str, data: bytes, media: str, fatal: int = fatal) -> None:
                if len(puts) == fatal:
                    raise LedgerUnavailableError("the disk is full")
                puts.append(path)
                put(path, data, media)

            files.put = failing  # type: ignore[method-assign]
            puts.clear()
            assert ledger.append(some_anchor(fatal + 3)).number == fatal + 4
            assert tree.status().problem == "the disk is full"
            assert tree.newest().size == fatal + 4  # type: ignore[union-attr]
            check_tiles(files, lines_of(ledger), 3)
            assert place.signer.read(files.read("checkpoint")).size == 3  # type: ignore[arg-type]
        files.put = put  # type: ignore[method-assign]
        place.open()[1].checkpoint()  # another process
        check_tiles(files, lines_of(ledger), 6)
        assert place.signer.read(files.read("checkpoint")).size == 6  # type: ignore[arg-type]

    def test_a_published_checkpoint_of_another_tree_is_left_alone(self, place: Place, files: PublishedFiles) -> None:
        other = place.signer.sign(2, b"r" * 32)
        files.put("checkpoint", other, "text/plain")
        ledger, tree = place.open()
        fill(ledger, 3)
        with pytest.raises(LedgerError, match="covers 2 entries, which are not the first of the 3"):
            tree.checkpoint()
        assert files.read("checkpoint") == other
        assert files.read(tile_path(0, 0, 3)) is None

    def test_a_writer_that_was_stopped_publishes_nothing_over_a_newer_checkpoint(
        self, place: Place, files: PublishedFiles
    ) -> None:
        ledger, tree = place.open()
        fill(ledger, 2)
        tree.checkpoint()
        fill(ledger, 2, first=2)
        _, other = place.open()
        put = files.put

        def stopped(path: str, data: bytes, media: str) -> None:
            """After its last tile the process is stopped, and another one takes over and publishes."""
            put(path, data, media)
            if path == tile_path(0, 0, 3):
                files.put = put  # type: ignore[method-assign]
                other.advance()

        files.put = stopped  # type: ignore[method-assign]
        signed = tree.advance(ledger.entry(3))
        assert signed is not None and signed.size == 3
        assert files.read("checkpoint") == other.checkpoint().data
        fill(ledger, 1, first=4)
        assert tree.checkpoint().data == files.read("checkpoint")
        check_tiles(files, lines_of(ledger), 5)

    def test_other_keys_publish_the_checkpoint_again(self, place: Place, files: PublishedFiles) -> None:
        ledger, tree = place.following()
        fill(ledger, 2)
        place.signer.keys = ("second", "first")
        before, newest = files.read("checkpoint"), tree.checkpoint()
        assert before != newest.data == files.read("checkpoint")


def test_paths_of_tiles_are_those_of_the_specification() -> None:
    assert tile_path(0, 0) == "tile/0/000"
    assert tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tile_path(1, 273, 7) == "tile/1/273.p/7"
    assert tile_path("entries", 1000, 255) == "tile/entries/x001/000.p/255"
