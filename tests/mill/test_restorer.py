"""What a restore takes from copies beside which the record is damaged."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.item_ref import ItemRef
from millstream.mill.restore.listing import RestorableItem
from millstream.mill.restore.restorer import SMALL, RestoredItem, RestoreOutcome, Restorer, TargetError
from millstream.mill.restore.targets import FolderTarget, StoreTarget, TargetState
from millstream.stores import LocalStore, MemoryStore
from millstream.stores.protocol import AccessDeniedError, ItemInfo, ItemNotFoundError, UnreadableError
from millstream.testing.damage import flip_bit
from millstream.testing.faulty_store import UnavailableStore

BODY = b"the right bytes"


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """Two local stores with the same item, and one to restore to."""
    made = new_world({name: LocalStore(tmp_path / name) for name in ("1", "2", "target")})
    for store in "12":
        made.put(ItemRef(store, "s", "a"), BODY, owner="ann")
    made.stores["target"].create_space("s")
    return made


def damage_record(folder: Path) -> None:
    digest = hashlib.sha256(b"a").hexdigest()
    (folder / ".millstream" / "sidecars" / "s" / digest[0] / f"{digest}.json").write_bytes(b"{}")


def restore(world: Any, *, overwrite: bool = False) -> RestoredItem:
    item = RestorableItem(
        content_id="a",
        sha256=hashlib.sha256(BODY).hexdigest(),
        size=len(BODY),
        mimetype="text/plain",
        copies=tuple(ItemRef(store, "s", "a") for store in "12"),
    )
    target = StoreTarget(world.stores["target"], "s")
    (done,) = Restorer(world.providers, target, overwrite=overwrite).run([item])
    return done


def test_a_whole_copy_is_taken_before_one_whose_record_is_damaged(world: Any, tmp_path: Path) -> None:
    damage_record(tmp_path / "1")
    done = restore(world)
    assert (done.outcome, done.store, done.reason) == (RestoreOutcome.RESTORED, "2", "")
    assert [copy.store for copy in done.bad] == ["1"]
    assert world.stores["target"].info("s", "a").properties == {"owner": "ann"}


def test_the_bytes_of_a_copy_whose_record_is_damaged_are_restored_if_there_is_no_other(
    world: Any, tmp_path: Path
) -> None:
    damage_record(tmp_path / "1")
    damage_record(tmp_path / "2")
    done = restore(world)
    assert (done.outcome, done.store, [copy.store for copy in done.bad]) == (RestoreOutcome.RESTORED, "1", ["2"])
    assert done.reason == "its record in store 1 is damaged, so that it has no properties"
    info = world.stores["target"].info("s", "a")
    assert (world.read(ItemRef("target", "s", "a")), info.mimetype, info.properties) == (BODY, "text/plain", {})
    assert restore(world).outcome == RestoreOutcome.PRESENT


def test_damaged_bytes_beside_a_damaged_record_are_not_restored(world: Any, tmp_path: Path) -> None:
    for store in "12":
        flip_bit(world.stores[store].path_of("s", "a"))
        damage_record(tmp_path / store)
    done = restore(world)
    assert (done.outcome, done.reason) == (RestoreOutcome.FAILED, "no copy of the item can be used")


def test_what_was_restored_to_a_store_and_has_rotted_since_is_not_there_already(world: Any) -> None:
    assert restore(world).outcome == RestoreOutcome.RESTORED
    assert restore(world).outcome == RestoreOutcome.PRESENT
    flip_bit(world.stores["target"].path_of("s", "a"))
    done = restore(world)
    assert (done.outcome, done.reason) == (
        RestoreOutcome.DIFFERENT, "a different file exists there (--overwrite replaces it)",
    )  # fmt: skip


class _Unreadable(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readinto(self, buffer: Any, /) -> int:
        return len(self.read())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, RestoreOutcome.FAILED),  # EIO while it is read
        (UnreadableError("archived"), RestoreOutcome.FAILED),
        (AccessDeniedError("no right to it"), RestoreOutcome.FAILED),
        (ItemNotFoundError("removed meanwhile"), RestoreOutcome.RESTORED),
    ],
)
def test_an_item_at_the_target_that_cannot_be_read_does_not_stop_the_restore(
    world: Any, monkeypatch: pytest.MonkeyPatch, error: Exception | None, outcome: RestoreOutcome
) -> None:
    assert restore(world).outcome == RestoreOutcome.RESTORED
    target = world.stores["target"]

    def unreadable(*_: Any) -> Any:
        if error is not None:
            raise error
        return _Unreadable()

    if outcome == RestoreOutcome.RESTORED:
        monkeypatch.setattr(target, "put", lambda *_, **__: None)
    monkeypatch.setattr(target, "open", unreadable)
    assert restore(world).outcome == outcome


@pytest.mark.parametrize("error", [AccessDeniedError("403"), PermissionError(errno.EACCES, "the sidecar")])
def test_metadata_at_the_target_that_cannot_be_read_do_not_stop_the_restore(
    world: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(world.stores["target"], "info", refused)
    done = restore(world)
    assert done.outcome == RestoreOutcome.FAILED
    assert done.reason == "what exists there under its id cannot be read, and may be the same (--overwrite replaces it)"
    assert restore(world, overwrite=True).outcome == RestoreOutcome.RESTORED
    monkeypatch.setattr(world.stores["target"], "put", refused)
    if isinstance(error, AccessDeniedError):
        assert (restore(world, overwrite=True).outcome, restore(world, overwrite=True).reason) == (
            RestoreOutcome.FAILED, "403",
        )  # fmt: skip


@pytest.mark.parametrize("call", ["open_folder", "os.stat"])
def test_a_folder_of_the_target_that_cannot_be_entered_does_not_stop_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    info = ItemInfo("sub/a", len(BODY), (), "text/plain", {})
    (tmp_path / "sub").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(f"millstream.stores.folder.restoring.{call}", refused)
        assert FolderTarget(tmp_path).state(info, hashlib.sha256(BODY).hexdigest()) == TargetState.UNREADABLE


def test_a_target_that_does_not_answer_stops_the_restore(world: Any) -> None:
    restore(world)
    world.stores["target"] = UnavailableStore(world.stores["target"], when=lambda call: call.method == "open")
    with pytest.raises(TargetError, match="the same command resumes the restore"):
        restore(world)


def test_a_file_in_the_target_folder_that_cannot_be_read_is_not_called_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(BODY)
    sha256 = hashlib.sha256(BODY).hexdigest()
    info = ItemInfo("a", len(BODY), (), "text/plain", {})
    assert FolderTarget(tmp_path).state(info, sha256) == TargetState.SAME
    monkeypatch.setattr("millstream.stores.folder.restoring.hash_stream", lambda _: _Unreadable().read())
    assert FolderTarget(tmp_path).state(info, sha256) == TargetState.UNREADABLE


@pytest.mark.parametrize("name", ["a", "a/inner"])
def test_what_cannot_be_replaced_is_said_and_does_not_end_the_restore(world: Any, tmp_path: Path, name: str) -> None:
    names = [name, "b"]
    for one in names:
        world.put(ItemRef("1", "paths", one), BODY)
    target = tmp_path / "folder"
    if name == "a":
        (target / "a").mkdir(parents=True)
    else:
        target.mkdir()
        (target / "a").write_bytes(b"mine")
    items = [
        RestorableItem(
            content_id=one,
            sha256=hashlib.sha256(BODY).hexdigest(),
            size=len(BODY),
            mimetype="text/plain",
            copies=(ItemRef("1", "paths", one),),
        )
        for one in names
    ]
    refused, done = Restorer(world.providers, FolderTarget(target), overwrite=True).run(items)
    assert not refused.is_good and "or restore into another folder" in refused.reason
    assert done.outcome == RestoreOutcome.RESTORED and (target / "b").read_bytes() == BODY


class _Lying(MemoryStore):
    """Says of an item what it likes, and gives *body* for its bytes; the ordinary item was ``BODY``."""

    def __init__(self, size: int, body: bytes, **properties: str) -> None:
        super().__init__("hostile")
        self._said, self._body = (size, properties), body

    def info(self, space: str, content_id: str) -> ItemInfo:
        return ItemInfo(content_id, self._said[0], (), "text/plain", self._said[1])

    def open(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._body))  # type: ignore[arg-type]


def restore_from(new_world: Callable[..., Any], store: MemoryStore, target: Path, mimetype: str | None) -> RestoredItem:
    world = new_world({"1": store})
    item = RestorableItem(
        content_id="conf",
        sha256=hashlib.sha256(BODY).hexdigest(),
        mimetype=mimetype,
        copies=(ItemRef("1", "s", "conf"),),
    )
    (done,) = Restorer(world.providers, FolderTarget(target)).run([item])
    return done


@pytest.mark.parametrize("mimetype", ["text/plain", "inode/symlink", None])
@pytest.mark.parametrize("body", [b"/etc/shadow", b"/" * 5000])
def test_a_provider_cannot_plant_a_symbolic_link(
    new_world: Callable[..., Any], tmp_path: Path, mimetype: str | None, body: bytes
) -> None:
    done = restore_from(new_world, _Lying(SMALL + 1, body, kind="symlink"), tmp_path / "back", mimetype)
    assert (done.outcome, [copy.store for copy in done.bad]) == (RestoreOutcome.FAILED, ["1"])
    assert not os.path.lexists(tmp_path / "back" / "conf")


@pytest.mark.parametrize(
    ("stored", "mimetype", "is_link"),
    [
        ("symlink", "text/plain", False),
        ("symlink", "application/octet-stream", False),  # as of all plain files of a folder
        ("symlink", None, True),
        ("file", "inode/symlink", True),
    ],
)
def test_our_own_record_decides_what_is_a_symbolic_link(
    new_world: Callable[..., Any], tmp_path: Path, stored: str, mimetype: str | None, is_link: bool
) -> None:
    done = restore_from(new_world, _Lying(len(BODY), BODY, kind=stored), tmp_path / "back", mimetype)
    assert (done.outcome, (tmp_path / "back" / "conf").is_symlink()) == (RestoreOutcome.RESTORED, is_link)


def test_a_copy_that_is_larger_than_its_provider_says_is_not_kept_in_memory(
    new_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(-1 if size is None else size)
            return b"x" * abs(asked[-1]) if len(asked) < 9 else b""

    store = _Lying(len(BODY), b"")
    monkeypatch.setattr(store, "open", lambda *_, **__: Endless())
    done = restore_from(new_world, store, tmp_path / "back", "text/plain")
    assert done.outcome == RestoreOutcome.FAILED and "is corrupt" in done.bad[0].reason
    assert all(0 < size <= SMALL for size in asked)


def test_a_small_copy_that_cannot_be_read_does_not_stop_the_restore(
    new_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Lying(len(BODY), b"")
    monkeypatch.setattr(store, "open", lambda *_, **__: _Unreadable())
    done = restore_from(new_world, store, tmp_path / "back", "text/plain")
    assert (done.outcome, [copy.store for copy in done.bad]) == (RestoreOutcome.FAILED, ["1"])
