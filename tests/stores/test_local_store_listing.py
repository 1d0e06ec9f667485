"""Listings of a store in a folder."""

from __future__ import annotations

import io
import os
import random
import shutil
from pathlib import Path

import pytest

from millstream.stores import Entry, LocalStore, StoreUnavailableError, all_entries, folder_stamp, listing
from millstream.stores.folders import open_folder


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    store.create_space("space")
    return store


def put(store: LocalStore, content_id: str) -> None:
    store.put("space", content_id, io.BytesIO(b"grain"))


def ids(store: LocalStore, **options: str) -> list[str]:
    return [entry.content_id for entry in store.entries("space", **options)]  # type: ignore[arg-type]


def set_time(folder: Path) -> None:
    """Set the modification time of *folder* to the same as ever, at a time of change that it has not had."""
    before = folder.stat().st_ctime_ns
    while folder.stat().st_ctime_ns == before:
        os.utime(folder, (1, 1))


class TestListing:
    def test_sees_what_was_added_and_removed_between_chunks(self, store: LocalStore) -> None:
        for number in range(10):
            put(store, f"folder/{number}")
        assert ids(store, after="folder/3")[0] == "folder/4"
        put(store, "folder/35")
        store.delete("space", "folder/4")
        assert ids(store, after="folder/3")[:2] == ["folder/35", "folder/5"]

    def test_reads_a_settled_folder_once_for_all_chunks(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "store" / "space" / "folder"
        folder.mkdir()
        for number in range(100):
            (folder / f"{number:03}").write_bytes(b"")
        monkeypatch.setattr(folder_stamp, "SETTLED", 0)
        scans: list[object] = []
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda folder: scans.append(folder) or scandir(folder))
        assert len(list(all_entries(store, "space", chunk=7))) == 100
        assert len(scans) == 2

    def test_sees_what_a_program_added_that_set_the_time_of_the_folder_back(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder_stamp, "SETTLED", 0)
        folder = tmp_path / "store" / "space" / "folder"
        folder.mkdir()
        listed = []
        for name in ("a", "b"):  # as two runs of `rsync -a` do, of which the first was incomplete
            (folder / name).write_bytes(b"")
            set_time(folder)
            listed.append(ids(store))
        assert listed == [["folder/a"], ["folder/a", "folder/b"]]

    def test_skips_what_vanishes_while_it_lists(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(5):
            put(store, str(number))
        lstat = os.lstat

        def delete_then_look(path: str) -> os.stat_result:
            if path.endswith("/2"):
                Path(path).unlink()
            return lstat(path)

        monkeypatch.setattr(os, "lstat", delete_then_look)
        assert [entry.content_id for entry in store.entries("space", limit=3)] == ["0", "1", "3"]

    @pytest.mark.parametrize("kind", ["entries", "columns", "ids"])
    def test_is_not_complete_where_the_disk_was_unmounted_meanwhile(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        put(store, "item")
        walk, runs = listing.OrderedListing.walk, listing.OrderedListing._runs

        def unmount() -> None:
            (tmp_path / "store").rename(tmp_path / "aside")
            (tmp_path / "store" / "space").mkdir(parents=True)

        monkeypatch.setattr(listing.OrderedListing, "walk", lambda *asked: unmount() or walk(*asked))
        monkeypatch.setattr(listing.OrderedListing, "_runs", lambda *asked: unmount() or runs(*asked))
        with pytest.raises(StoreUnavailableError, match="is its disk mounted"):
            getattr(store, kind)("space")


@pytest.mark.parametrize("seed", range(6))
def test_a_listing_of_ids_is_that_of_the_entries(tmp_path: Path, seed: int) -> None:
    draw, made = random.Random(seed), LocalStore(tmp_path)
    made.create_space("s")
    parts = ["a", "b", "%", ".", "..", "a%", "\u00e9", "x" * 250, "x" * 300, "c d", "0"]
    names = {"/".join(draw.choices(parts, k=draw.randint(1, 4))) for _ in range(40)}
    for name in names:
        made.put("s", name, io.BytesIO(b"x" * len(name)))
    entries = {entry.content_id: entry for entry in made.entries("s")}
    listed = list(entries)
    assert set(listed) == names
    for most in (1, 2, 3, 7, 100):
        for after in ("", *listed, "a/", "a%", "x" * 200):
            expected = [name for name in listed if name.encode() > after.encode()][:most]
            assert list(made.ids("s", after=after, limit=most)) == expected
            columns = made.columns("s", after=after, limit=most)
            rows = zip(columns.ids, columns.sizes, columns.times, strict=True)
            assert [Entry(*row) for row in rows] == [entries[name] for name in expected]


def test_a_listing_in_columns_leaves_out_what_vanishes_meanwhile_and_is_as_long_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LocalStore(tmp_path)
    made.create_space("s")
    for name in ("a/1", "a/2", "b/1", "c", "d"):
        made.put("s", name, io.BytesIO(b""))
    opened: list[tuple[str, ...]] = []

    def open_and_remove(root: str, names: tuple[str, ...]) -> int:
        opened.append(names)
        handle = open_folder(root, names)
        if opened.count(("s", "a")) == 2:  # listed, and opened to look at its files
            (tmp_path / "s" / "a" / "1").unlink(missing_ok=True)
            shutil.rmtree(tmp_path / "s" / "b", ignore_errors=True)
        return handle

    monkeypatch.setattr(listing, "open_folder", open_and_remove)
    assert made.columns("s", limit=3).ids == ["a/2", "c", "d"]
