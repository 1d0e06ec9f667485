"""A local store on a disk that does not distinguish the case of names."""

from __future__ import annotations

import hashlib
import io
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.stores import ItemInfo, ItemNotFoundError, LocalStore, SpaceNotFoundError, StoreInputError
from millstream.stores.bulk import NewItem
from millstream.stores.local.disk_names import DiskNames
from support.case_ignoring_disk import ignore_spelling, mounted_exfat

TWINS = {
    "README": b"upper",
    "readme": b"lower",
    "Photos/a": b"a in Photos",
    "photos/a": b"a in photos",
    "photos/b": b"b",
}


@pytest.fixture(params=["in this process", pytest.param("exFAT", marks=pytest.mark.served)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "exFAT":
        with mounted_exfat(tmp_path) as disk:
            yield disk
    else:
        with pytest.MonkeyPatch.context() as patch:
            yield ignore_spelling(tmp_path, patch)


@pytest.fixture
def store(disk: Path) -> LocalStore:
    return new_store(disk)


def new_store(disk: Path) -> LocalStore:
    store = LocalStore(disk / "store")
    store.create_space("space")
    return store


def put(store: LocalStore, content_id: str, data: bytes) -> None:
    store.put("space", content_id, io.BytesIO(data))


def put_all(store: LocalStore, items: dict[str, bytes]) -> list[object]:
    new = [NewItem(content_id, data, hashlib.sha256(data).hexdigest()) for content_id, data in items.items()]
    return [type(answer) for answer in store.bulk.put("space", new)]


def contents(store: LocalStore) -> dict[str, bytes]:
    """All items as they are listed, read alone."""
    items = {}
    for entry in store.entries("space"):
        with store.open("space", entry.content_id) as source:
            items[entry.content_id] = source.read()
    return items


def test_items_whose_ids_differ_in_case_are_kept_apart(store: LocalStore) -> None:
    for content_id, data in TWINS.items():
        put(store, content_id, data)
    assert contents(store) == TWINS
    assert list(store.bulk.read("space", list(TWINS))) == list(TWINS.values())
    assert [info.checksum() for info in store.bulk.infos("space", list(TWINS)) if isinstance(info, ItemInfo)] == [
        store.info("space", content_id).checksum() for content_id in TWINS
    ]


def test_items_of_a_group_whose_ids_differ_in_case_are_kept_apart(store: LocalStore) -> None:
    assert put_all(store, TWINS) == [ItemInfo] * len(TWINS)
    assert contents(store) == TWINS
    assert list(store.bulk.read("space", list(TWINS))) == list(TWINS.values())


def test_an_item_without_a_name_of_its_own_is_refused(store: LocalStore) -> None:
    put_all(store, {"README": b"1", "readme": b"2"})
    with pytest.raises(StoreInputError, match="does not distinguish its name"):
        put(store, "ReadMe", b"3")
    assert put_all(store, {"ReadMe": b"3", "other": b"4"}) == [StoreInputError, ItemInfo]
    assert contents(store) == {"README": b"1", "readme": b"2", "other": b"4"}


def test_an_id_in_another_case_is_not_found(store: LocalStore) -> None:
    put(store, "README", b"upper")
    with pytest.raises(ItemNotFoundError):
        store.info("space", "readme")
    with pytest.raises(ItemNotFoundError):
        store.delete("space", "readme")
    assert [type(answer) for answer in store.bulk.infos("space", ["readme"])] == [ItemNotFoundError]
    assert contents(store) == {"README": b"upper"}


def test_an_item_is_replaced_and_deleted_beside_one_in_another_case(store: LocalStore) -> None:
    put_all(store, TWINS)
    put(store, "README", b"changed")
    put(store, "readme", b"changed, too")
    store.delete("space", "Photos/a")
    expected = TWINS | {"README": b"changed", "readme": b"changed, too"}
    del expected["Photos/a"]
    assert contents(store) == expected


def test_a_space_in_another_case_is_neither_found_nor_made(store: LocalStore) -> None:
    with pytest.raises(StoreInputError, match="does not distinguish this name"):
        store.create_space("Space")
    put(store, "item", b"1")
    assert not store.has_space("Space")
    for use in (store.entries, store.delete_space):
        with pytest.raises(SpaceNotFoundError):
            use("Space")
    with pytest.raises(SpaceNotFoundError):
        store.bulk.infos("Space", ["item"])
    assert store.spaces() == ["space"]


def test_items_whose_ids_differ_in_composed_letters_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(ignore_spelling(tmp_path, monkeypatch, lambda name: unicodedata.normalize("NFC", name)))
    items = {"caf\u00e9": b"1", "cafe\u0301": b"2", "README": b"3", "readme": b"4"}
    assert put_all(store, items) == [ItemInfo] * 4
    assert contents(store) == items
    assert (tmp_path / "store" / "space" / "readme").exists()  # case is not ignored


def test_an_item_that_the_disk_lists_under_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(ignore_spelling(tmp_path, monkeypatch))
    assert put_all(store, {"a.": b"1", "b": b"2", "folder./a": b"3"}) == [StoreInputError, ItemInfo, StoreInputError]
    with pytest.raises(StoreInputError, match="or changes it"):
        put(store, "c.", b"3")
    assert contents(store) == {"b": b"2"}


def test_a_refused_item_whose_folder_was_removed_leaves_the_working_directory_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clear = new_store(ignore_spelling(tmp_path, monkeypatch)), DiskNames.clear

    def clear_after_removal(names: DiskNames) -> None:
        shutil.rmtree(tmp_path / "store" / "space" / "folder", ignore_errors=True)
        clear(names)

    (tmp_path / "a").write_bytes(b"an original")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("millstream.stores.folders.MOST_OPEN", 1)
    monkeypatch.setattr(DiskNames, "clear", clear_after_removal)
    assert put_all(store, {"folder./a": b"1", "b/c": b"2"}) == [StoreInputError, ItemInfo]
    assert (tmp_path / "a").read_bytes() == b"an original"


def test_a_space_that_another_thread_makes_meanwhile_is_no_other_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed = LocalStore(tmp_path), DiskNames._list

    def list_before_it_is_made(names: DiskNames, path: tuple[str, ...]) -> set[str]:
        found = listed(names, path)
        (tmp_path / "space").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(DiskNames, "_list", list_before_it_is_made)
    store.create_space("space")
    assert store.spaces() == ["space"]
