"""Renamed items at a store that has their bytes already."""

from __future__ import annotations

import io

import pytest
import sqlalchemy as sa
from adopted_folder import SPACE, SourceFolder

from millstream.mill.adoption.deletions import forget_renamed
from millstream.mill.adoption.renames import copy_renamed
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult, ManifestEvent
from millstream.stores import MemoryStore


class Copy:
    """A copy of the folder in memory, with "before" renamed to "after" since."""

    def __init__(self, folder: SourceFolder) -> None:
        self.folder, self.store = folder, MemoryStore(clock=folder.clock)
        self.providers = ConfiguredStores({"there": self.store}, folder.clock)
        folder.write("before", b"grain")
        folder.adopt()
        self.store.create_space(SPACE)
        self.store.put(SPACE, "before", io.BytesIO(b"grain"), properties={"mtime": "1"})
        self.record("before")
        (folder.root / "before").rename(folder.root / "after")
        folder.adopt()

    def record(self, name: str, sha256: str | None = None) -> None:
        at = self.folder.clock.now()
        known = sha256 or self.folder.item("before").sha256
        self.folder.manifest.writer.record([ManifestEvent("there", SPACE, name, at, known, 5)])

    def copied(self) -> int:
        return copy_renamed(self.folder.target, self.providers, SPACE, "there")


@pytest.fixture
def copy(folder: SourceFolder) -> Copy:
    return Copy(folder)


def test_a_renamed_item_is_copied_within_the_store_and_recorded(copy: Copy) -> None:
    assert copy.copied() == 1
    row = copy.folder.manifest.get("there", SPACE, "after")
    assert row is not None and (row.sha256, row.verified_at) == (copy.folder.item("before").sha256, None)
    assert copy.store.info(SPACE, "after").properties == copy.folder.item("after").properties
    assert copy.copied() == 0


def test_a_copy_with_other_bytes_is_not_taken(copy: Copy) -> None:
    copy.folder.clock.advance(1)
    copy.record("before", "0" * 64)
    assert copy.copied() == 0


def test_what_has_the_new_name_is_not_replaced(copy: Copy) -> None:
    copy.store.put(SPACE, "after", io.BytesIO(b"other"))
    assert copy.copied() == 0
    with copy.store.open(SPACE, "after") as file:
        assert file.read() == b"other"


def test_the_old_name_is_forgotten_only_once_the_new_copy_was_read_and_is_good(copy: Copy) -> None:
    target = copy.folder.target
    copy.copied()
    assert forget_renamed(target, SPACE, ["there"]) == []
    sha256 = copy.folder.item("before").sha256
    checked = CheckResult(
        "there",
        SPACE,
        "after",
        CheckVerdict.SUCCESS,
        "B1",
        "intact",
        "",
        copy.folder.clock.now(),
        5,
        sha256,
        sha256,
        sha256,
    )
    copy.folder.manifest.writer.apply([checked])
    assert forget_renamed(target, SPACE, ["there", "elsewhere"]) == []
    assert forget_renamed(target, SPACE, ["there"]) == ["before"]
    row = copy.folder.manifest.get("here", SPACE, "before")
    assert row is not None and row.deleted


def test_the_index_by_sums_of_an_earlier_version_is_removed_and_renames_are_found(folder: SourceFolder) -> None:
    for name, data in (("a", b"one"), ("b", b"two"), ("c", b"three")):
        folder.write(name, data)
    folder.adopt()
    index = "mill_adopted_items_sum"
    with folder.catalog.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE INDEX {index} ON mill_adopted_items (store, space, sha256)")
    for name in ("a", "c"):
        (folder.root / name).rename(folder.root / f"{name}-renamed")
    assert folder.adopt().renames == [("a", "a-renamed"), ("c", "c-renamed")]
    assert index not in {one["name"] for one in sa.inspect(folder.catalog.engine).get_indexes("mill_adopted_items")}
