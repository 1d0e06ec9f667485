"""Descriptions of new items are written in their places before the items are there: a crash may leave them torn."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.stores import ItemInfo, ItemNotFoundError, LocalStore, StoreError, StoreUnavailableError
from millstream.stores.bulk import NewItem, find_absent
from millstream.stores.local import bulk
from millstream.stores.local.item_locks import half_of
from millstream.stores.local.sidecar_files import SidecarFiles, sidecar_digest
from millstream.stores.local.writer import LocalWriter
from millstream.stores.protocol import DamagedRecordError
from millstream.testing.damage import sidecar_path


def new(name: str, body: bytes = b"body") -> NewItem:
    return NewItem(name, body, hashlib.sha256(body).hexdigest())


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(answer) for answer in answers]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    made.create_space("s")
    return made


@pytest.mark.parametrize("left", [b"", b'{"content_id":"a","fi', None])
@pytest.mark.parametrize("together", [True, False])
def test_a_description_that_a_crash_left_without_an_item_is_in_nobodys_way(
    store: LocalStore, tmp_path: Path, left: bytes | None, together: bool
) -> None:
    store.put("s", "a", io.BytesIO(b"before"))
    path = sidecar_path(store, "s", "a")
    kept = tmp_path / "backup"
    if left is not None:
        path.write_bytes(left)
    kept.hardlink_to(path)
    before = kept.read_bytes()
    store.path_of("s", "a").unlink()
    assert kinds(store.bulk.infos("s", ["a"])) == [ItemNotFoundError] and not store.entries("s")
    assert find_absent(store.bulk, "s", ["a"]) == ["a"]
    with pytest.raises(ItemNotFoundError):
        store.info("s", "a")
    if together:
        assert kinds(store.bulk.put("s", [new("a"), new("b"), new("c"), new("d")])) == [ItemInfo] * 4
    else:
        store.put("s", "a", io.BytesIO(b"body"))
    assert store.info("s", "a").checksum() == new("a").sha256 and kept.read_bytes() == before


def test_a_description_that_is_being_written_for_another_file_is_no_damaged_one(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_from = SidecarFiles.read_from

    def replaced(*args: Any) -> Any:
        place = tmp_path / "store" / "s" / "a"
        place.unlink()
        place.write_bytes(b"another")
        return read_from(*args)

    store.put("s", "a", io.BytesIO(b"body"))
    sidecar_path(store, "s", "a").write_bytes(b"{")
    assert kinds(store.bulk.infos("s", ["a"])) == [DamagedRecordError]
    monkeypatch.setattr(SidecarFiles, "read_from", replaced)
    assert kinds(store.bulk.infos("s", ["a"])) == [StoreUnavailableError]


def test_an_item_whose_description_cannot_be_written_keeps_no_other_from_being_done(
    store: LocalStore, tmp_path: Path
) -> None:
    path = sidecar_path(store, "s", "b")
    path.mkdir(parents=True)
    answers = store.bulk.put("s", [new(name) for name in "abcde"])
    assert kinds(answers) == [ItemInfo, StoreError, ItemInfo, ItemInfo, ItemInfo]
    assert [entry.content_id for entry in store.entries("s")] == ["a", "c", "d", "e"]


def test_a_damaged_description_is_one_while_the_item_stays_the_same(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("s", "a", io.BytesIO(b"body"))
    sidecar_path(store, "s", "a").write_bytes(b"{")
    with pytest.raises(DamagedRecordError):
        store.info("s", "a")
    read = SidecarFiles.read

    def replaced(files: SidecarFiles, space: str, content_id: str) -> Any:
        monkeypatch.setattr(SidecarFiles, "read", read)
        (tmp_path / "store" / "s" / "a").unlink()
        store.put("s", "a", io.BytesIO(b"another"))
        raise DamagedRecordError("torn", "a.json")

    monkeypatch.setattr(SidecarFiles, "read", replaced)
    assert store.info("s", "a").size == 7


@pytest.mark.parametrize("busy", [0, 1])
def test_the_half_that_another_writer_is_not_busy_with_comes_first(
    store: LocalStore, tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "HALVED", 8)
    items = [new(f"{number}") for number in range(40)]
    digests = {item.content_id: sidecar_digest(item.content_id) for item in items}
    halves = [{name for name, digest in digests.items() if half_of(digest) == half} for half in (0, 1)]
    assert min(map(len, halves)) > 8
    other = LocalWriter(str(tmp_path / "store"))
    placed: list[set[str]] = []
    place = bulk.LocalBulk._place

    def placing(own: bulk.LocalBulk, folders: Any, space: str, written: Any, drafts: Any) -> Any:
        placed.append({one.item.content_id for one in written})
        held.close()
        return place(own, folders, space, written, drafts)

    monkeypatch.setattr(bulk.LocalBulk, "_place", placing)
    held = contextlib.ExitStack()
    held.enter_context(other.lock_all([next(digests[name] for name in halves[busy])]))
    assert LocalWriter(str(tmp_path / "store")).try_lock_all(digests.values()) is None, "one of them is held"
    assert kinds(store.bulk.put("s", items)) == [ItemInfo] * 40
    assert placed == [halves[1 - busy], halves[busy]]
    assert {entry.content_id for entry in store.entries("s")} == digests.keys()
