"""What only a store in a folder can get wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from millstream.stores import (
    AccessDeniedError,
    ChecksumMismatchError,
    DamagedRecordError,
    ItemNotFoundError,
    LocalStore,
    MountedStore,
    SpaceAccess,
    SpaceNotEmptyError,
    SpaceNotFoundError,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
    listing,
)
from millstream.stores.folders import open_folder
from millstream.stores.local.atomic_files import AtomicFile
from millstream.stores.local.sidecar import MAX_BYTES, FileDescription, Sidecar
from millstream.stores.local.sidecar_files import SidecarFiles
from millstream.stores.local.space_files import SpaceFiles
from millstream.stores.os_errors import translated
from millstream.testing.damage import flip_bit


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    store.create_space("space")
    return store


def put(store: LocalStore, content_id: str, data: bytes = b"grain", **more: str) -> None:
    store.put("space", content_id, io.BytesIO(data), properties=more)


def ids(store: LocalStore, **options: str) -> list[str]:
    return [entry.content_id for entry in store.entries("space", **options)]  # type: ignore[arg-type]


def sidecars(store: LocalStore, tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / ".millstream" / "sidecars").rglob("*.json"))


def test_content_files_can_be_checked_with_stock_tools(store: LocalStore, tmp_path: Path) -> None:
    put(store, "lib/json/decoder.py", b"def decode(): ...\n")
    command = ["sha256sum", "lib/json/decoder.py"]
    done = subprocess.run(command, cwd=tmp_path / "store" / "space", capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == store.info("space", "lib/json/decoder.py").checksum()


def test_damage_never_becomes_a_new_item(store: LocalStore, tmp_path: Path) -> None:
    put(store, "item")
    flip_bit(store.path_of("space", "item"))
    mounted = MountedStore(store, {"other": LocalStore(tmp_path / "other")})
    mounted.create_space("other")
    for whole, space in ((store, "space"), (mounted, "other")):
        with pytest.raises(ChecksumMismatchError, match="nothing was stored"):
            whole.copy("space", "item", space, "copy")
        with pytest.raises(ItemNotFoundError):
            whole.info(space, "copy")


def test_path_of_names_the_file_with_the_bytes(store: LocalStore) -> None:
    for content_id in ("a", "a/b", "../x", "x" * 600):
        put(store, content_id, content_id.encode())
    for content_id in ("a", "a/b", "../x", "x" * 600):
        assert store.path_of("space", content_id).read_bytes() == content_id.encode()
    with pytest.raises(ItemNotFoundError):
        store.path_of("space", "missing")


class TestFilesPutThereBehindItsBack:
    def test_are_listed_and_have_no_provider_checksum(self, store: LocalStore, tmp_path: Path) -> None:
        file = tmp_path / "store" / "space" / "by hand" / "file.txt"
        file.parent.mkdir()
        file.write_bytes(b"grain")
        assert ids(store) == ["by hand/file.txt"]
        info = store.info("space", "by hand/file.txt")
        assert (info.checksums, info.size, info.properties) == ((), 5, {})
        with store.open("space", "by hand/file.txt") as source:
            assert source.read() == b"grain"

    def test_get_properties_but_no_checksum_that_nobody_took(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "store" / "space" / "file").write_bytes(b"grain")
        store.set_properties("space", "file", {"seen": "yes"})
        info = store.info("space", "file")
        assert (info.checksums, info.properties) == ((), {"seen": "yes"})
        store.copy("space", "file", "space", "copy")
        assert store.info("space", "copy").checksum() == hashlib.sha256(b"grain").hexdigest()

    @pytest.mark.parametrize("name", [".hidden", ".nfs0001", "50%", "%41", "%2Ehidden%"])
    def test_are_no_items_where_no_id_is_spelled_so(self, store: LocalStore, tmp_path: Path, name: str) -> None:
        (tmp_path / "store" / "space" / name).write_bytes(b"")
        assert ids(store) == []

    @pytest.mark.parametrize("name", ["b%/b", "b%/b/cc", "a/b%/b", "x%/%2F"])
    def test_are_no_items_where_a_short_name_is_divided(self, store: LocalStore, tmp_path: Path, name: str) -> None:
        path = tmp_path / "store" / "space" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        assert ids(store) == []

    def test_are_no_items_where_their_long_path_is_not_ours(self, store: LocalStore, tmp_path: Path) -> None:
        folder = tmp_path / "store" / "space" / ("x" * 254 + "%")
        folder.mkdir()
        (folder / "tail").write_bytes(b"")
        (folder / ("y" * 3)).write_bytes(b"")
        flat = tmp_path / "store" / "space" / "%2F"
        flat.mkdir()
        (flat / "a%2Fb").write_bytes(b"")
        assert ids(store) == ["a/b", "x" * 254 + "tail", "x" * 254 + "yyy"]

    def test_that_replace_an_item_do_not_hide_what_was_recorded(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item", b"grain")
        path = store.path_of("space", "item")
        path.unlink()
        path.write_bytes(b"chaff!")
        info = store.info("space", "item")
        assert info.size == 6
        assert info.checksum() == hashlib.sha256(b"grain").hexdigest()

    def test_that_replace_an_item_with_two_versions_do_not_hide_the_newest(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        put(store, "item", b"old")
        numbers = {store.path_of("space", "item").stat().st_ino}
        put(store, "item", b"grain", version="2")
        path = store.path_of("space", "item")
        numbers.add(path.stat().st_ino)
        while path.stat().st_ino in numbers:  # a disk gives the numbers of removed files again
            path.rename(tmp_path / str(len(list(tmp_path.iterdir()))))
            path.write_bytes(b"chaff!")
        recorded = hashlib.sha256(b"grain").hexdigest()
        info = store.info("space", "item")
        assert (info.size, info.checksum(), info.properties) == (6, recorded, {"version": "2"})
        assert store.set_properties("space", "item", {"version": "3"}).checksum() == recorded

    def test_keep_a_space_from_being_deleted(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "store" / "space" / "deep").mkdir()
        (tmp_path / "store" / "space" / "deep" / ".hidden").write_bytes(b"")
        with pytest.raises(SpaceNotEmptyError, match=r"\.hidden"):
            store.delete_space("space")


class TestPlantedLinks:
    def test_are_never_followed_out_of_the_store(self, store: LocalStore, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_bytes(b"secret")
        space = tmp_path / "store" / "space"
        (space / "folder").symlink_to(outside)
        (space / "file").symlink_to(outside / "secret")
        assert ids(store) == []
        for content_id in ("file", "folder/secret"):
            with pytest.raises(ItemNotFoundError):
                store.info("space", content_id)
            with pytest.raises(ItemNotFoundError):
                store.open("space", content_id)
            with pytest.raises(ItemNotFoundError):
                store.delete("space", content_id)
            put(store, content_id, b"ours")
            assert store.info("space", content_id).size == 4
        assert [path.name for path in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_bytes() == b"secret"

    def test_are_no_spaces(self, store: LocalStore, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (tmp_path / "store" / "linked").symlink_to(outside)
        assert store.spaces() == ["space"]
        assert not store.has_space("linked")
        with pytest.raises(SpaceNotFoundError):
            store.entries("linked")
        with pytest.raises(SpaceNotFoundError):
            store.put("linked", "item", io.BytesIO(b""))
        with pytest.raises(StoreError):
            store.create_space("linked")
        assert list(outside.iterdir()) == []

    def test_in_the_hidden_folder_do_not_lead_out_either(self, store: LocalStore, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        sidecars = tmp_path / "store" / ".millstream" / "sidecars"
        sidecars.mkdir(parents=True)
        (sidecars / "space").symlink_to(outside)
        with pytest.raises(StoreError):
            put(store, "item")
        assert list(outside.iterdir()) == []

    def test_have_nothing_outside_removed_with_a_space(self, store: LocalStore, tmp_path: Path) -> None:
        victim = tmp_path / "outside" / "space" / "file"
        victim.parent.mkdir(parents=True)
        victim.write_bytes(b"others'")
        (tmp_path / "outside" / "space.json").write_bytes(b"others'")
        for name in ("sidecars", "spaces"):
            (tmp_path / "store" / ".millstream").mkdir(exist_ok=True)
            (tmp_path / "store" / ".millstream" / name).symlink_to(tmp_path / "outside")
        store.delete_space("space")
        assert victim.is_file() and (tmp_path / "outside" / "space.json").is_file()
        assert store.spaces() == []

    def test_of_other_kinds_are_no_items(self, store: LocalStore, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "store" / "space" / "pipe")
        assert ids(store) == []
        with pytest.raises(ItemNotFoundError):
            store.open("space", "pipe")

    def test_in_the_place_of_the_stores_own_files_are_neither_followed_nor_waited_for(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret")
        hidden = tmp_path / "store" / ".millstream"
        for folder in ("drafts", "spaces"):
            (hidden / folder).mkdir(parents=True)
        (hidden / "format").unlink()
        os.mkfifo(hidden / "format")
        os.mkfifo(hidden / "drafts" / f"{'dead' * 4}.lock")
        (hidden / "drafts" / f"{'90ae' * 4}.lock").symlink_to(secret)
        put(store, "item")
        assert (hidden / "format").read_bytes().startswith(b"millstream local store")
        os.mkfifo(hidden / "spaces" / "space.json")
        with pytest.raises(DamagedRecordError, match=r"space\.json is not a regular file"):
            store.space_acls("space")
        (hidden / "spaces" / "space.json").unlink()
        (hidden / "spaces" / "space.json").symlink_to(secret)
        with pytest.raises(DamagedRecordError):
            store.space_acls("space")
        store.set_space_acls("space", {})
        assert (store.space_acls("space"), secret.read_bytes()) == ({}, b"secret")

    @pytest.mark.parametrize("name", ["..lock", "...lock", "other.lock"])
    def test_with_names_of_lock_files_have_nothing_removed(self, store: LocalStore, tmp_path: Path, name: str) -> None:
        put(store, "item", owner="ann")
        drafts = tmp_path / "store" / ".millstream" / "drafts"
        (drafts / "other").mkdir()
        (drafts / name).touch()
        again = LocalStore(tmp_path / "store")
        again.clear_drafts()
        assert again.info("space", "item").properties == {"owner": "ann"}
        assert (drafts / "other").is_dir() and (drafts / name).is_file()


class TestFoldersNestedWithoutAnEnd:
    """Others may nest folders below a space deeper than any id of ours goes."""

    def test_are_not_walked_below_the_longest_id(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = []
        monkeypatch.setattr(listing, "open_folder", lambda root, path: opened.append(path) or open_folder(root, path))
        put(store, "a")
        put(store, "z")
        deepest = tmp_path / "store" / "space"
        for _ in range(15):
            deepest /= "d" * 250
            deepest.mkdir()
        assert ids(store) == ["a", "z"]
        assert max(map(len, opened)) <= 1 + 1024 // 250 + 1

    def test_keep_a_space_from_being_deleted(self, store: LocalStore, tmp_path: Path) -> None:
        folder = os.open(tmp_path / "store" / "space", os.O_RDONLY)
        for _ in range(sys.getrecursionlimit() + 10):
            os.mkdir("d", dir_fd=folder)
            below = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = below
        os.close(folder)
        try:
            with pytest.raises(SpaceNotEmptyError, match="nested deeper"):
                store.delete_space("space")
        finally:
            subprocess.run(["rm", "-rf", str(tmp_path / "store")], check=True)


class TestMissingFolder:
    def test_is_unavailable_and_not_an_empty_store(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "unmounted", create=False)
        for ask in (store.spaces, lambda: store.has_space("space"), lambda: store.entries("space")):
            with pytest.raises(StoreUnavailableError, match="mount"):
                ask()
        for write in (lambda: put(store, "item"), lambda: store.delete("space", "item")):
            with pytest.raises(StoreUnavailableError):
                write()
        assert not (tmp_path / "unmounted").exists()

    def test_is_made_by_making_a_space(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "new", create=False)
        store.create_space("space")
        assert store.spaces() == ["space"]


class TestSidecars:
    def test_that_are_damaged_are_named_and_repaired_by_a_put(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item", a="1")
        (sidecar,) = sidecars(store, tmp_path)
        data = bytearray(sidecar.read_bytes())
        for place in range(len(data)):
            damaged = data.copy()
            damaged[place] ^= 1
            sidecar.write_bytes(damaged)
            with pytest.raises(DamagedRecordError, match="'item'"):
                store.info("space", "item")
        put(store, "item", a="2")
        assert store.info("space", "item").properties == {"a": "2"}

    def test_that_no_store_writes_for_their_size_are_not_read(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item")
        (sidecar,) = sidecars(store, tmp_path)
        too_large = f"larger than {MAX_BYTES:,} bytes"
        for more, message in ((0, "the checksum in the sidecar does not match"), (1, too_large)):
            sidecar.write_bytes(b" " * (MAX_BYTES + more))
            with pytest.raises(DamagedRecordError, match=message):
                store.info("space", "item")

    def test_of_another_item_are_refused(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item")
        (item,) = sidecars(store, tmp_path)
        put(store, "other")
        (other,) = set(sidecars(store, tmp_path)) - {item}
        item.write_bytes(other.read_bytes())
        with pytest.raises(DamagedRecordError, match="belongs to 'other'"):
            store.info("space", "item")

    def test_follow_their_files_to_another_disk(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item", b"old", version="1")
        put(store, "item", b"newer", version="2")
        subprocess.run(["cp", "-a", tmp_path / "store", tmp_path / "moved"], check=True)
        moved = LocalStore(tmp_path / "moved")
        assert moved.info("space", "item") == store.info("space", "item")

    def test_of_a_copied_file_is_not_that_of_a_replaced_one_whose_inode_number_it_has(self, tmp_path: Path) -> None:
        (tmp_path / "copy").write_bytes(b"newer")
        status = (tmp_path / "copy").stat()
        old = FileDescription(status.st_ino, status.st_mtime_ns, "text/plain", 3, "a" * 64)
        new = FileDescription(status.st_ino + 1, status.st_mtime_ns, "text/plain", 5, "b" * 64)
        assert Sidecar("item", (old, new)).of(status) is new
        changed = msgspec.structs.replace(new, inode=status.st_ino, mtime_ns=0)
        assert Sidecar("item", (old, changed)).of(status) is changed
        assert Sidecar("item", (changed,)).of(tmp_path.stat()) is changed

    def test_go_with_their_items_and_spaces(self, store: LocalStore, tmp_path: Path) -> None:
        put(store, "item")
        store.delete("space", "item")
        assert sidecars(store, tmp_path) == []
        store.delete_space("space")
        assert list((tmp_path / "store" / ".millstream" / "sidecars").iterdir()) == []


def test_a_store_of_another_format_is_not_written_to(store: LocalStore, tmp_path: Path) -> None:
    put(store, "item")
    (tmp_path / "store" / ".millstream" / "format").write_bytes(b"millstream local store 2\n")
    later = LocalStore(tmp_path / "store")
    with pytest.raises(StoreError, match="local store 2"):
        put(later, "other")
    assert ids(later) == ["item"]


def test_no_draft_is_left_by_writes_that_end_well_or_badly(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.create_space("space")
    put(store, "item")
    with pytest.raises(StoreError):
        store.put("space", "item", io.BytesIO(b"x"), sha256="0" * 64)
    drafts = tmp_path / "store" / ".millstream" / "drafts"
    assert [path for path in drafts.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    del store
    assert list(drafts.iterdir()) == []


class FullDisk(io.RawIOBase):
    """A file on a disk without space."""

    def writable(self) -> bool:
        return True

    def write(self, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("size", [5, 100_000], ids=["buffered", "written"])
def test_no_draft_is_left_on_a_full_disk(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    made = AtomicFile.__init__

    def make_on_full_disk(draft: AtomicFile, folder: int, name: str) -> None:
        made(draft, folder, name)
        draft.file.close()
        draft.file = io.BufferedWriter(FullDisk())

    monkeypatch.setattr(AtomicFile, "__init__", make_on_full_disk)
    with pytest.raises(StoreError, match="free space on the disk"):
        put(store, "item", bytes(size))
    drafts = tmp_path / "store" / ".millstream" / "drafts"
    assert [path for path in drafts.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_empty_folders_go_with_their_last_item(store: LocalStore, tmp_path: Path) -> None:
    put(store, "a/b/c")
    put(store, "a/d")
    store.delete("space", "a/b/c")
    assert not (tmp_path / "store" / "space" / "a" / "b").exists()
    store.delete("space", "a/d")
    assert list((tmp_path / "store" / "space").iterdir()) == []


class TestCrashBetweenSidecarAndFile:
    """The one moment at which two descriptions stand in a sidecar: the file in place picks its own."""

    @pytest.fixture
    def crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        place = AtomicFile.place

        def place_sidecars_only(draft: AtomicFile, folder: int, name: str) -> None:
            if not name.endswith(".json"):
                raise SystemExit("killed here")
            place(draft, folder, name)

        monkeypatch.setattr(AtomicFile, "place", place_sidecars_only)

    def test_leaves_a_replaced_item_as_it_was(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        put(store, "item", b"old", version="1")
        before = store.info("space", "item")
        request.getfixturevalue("crash")
        with pytest.raises(SystemExit):
            put(store, "item", b"newer", version="2")
        assert store.info("space", "item") == before
        monkeypatch.undo()
        assert store.set_properties("space", "item", {"version": "1b"}).checksum() == before.checksum()
        put(store, "item", b"newest", version="3")
        assert store.info("space", "item").properties == {"version": "3"}

    def test_leaves_a_replaced_item_as_it_was_after_the_store_was_copied_without_times(
        self, store: LocalStore, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        put(store, "item", b"old", version="1")
        subprocess.run(["cp", "-r", tmp_path / "store", tmp_path / "moved"], check=True)
        moved = LocalStore(tmp_path / "moved")
        before = moved.info("space", "item")
        assert before.checksum() == hashlib.sha256(b"old").hexdigest()
        request.getfixturevalue("crash")
        with pytest.raises(SystemExit):
            put(moved, "item", b"newer", version="2")
        assert moved.info("space", "item") == before

    def test_leaves_a_new_item_not_there(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        request.getfixturevalue("crash")
        with pytest.raises(SystemExit):
            put(store, "item", b"new", version="1")
        with pytest.raises(ItemNotFoundError):
            store.info("space", "item")
        assert ids(store) == []
        monkeypatch.undo()
        put(store, "item", b"again", version="2")
        assert store.info("space", "item").properties == {"version": "2"}

    @pytest.mark.usefixtures("crash")
    def test_leaves_a_file_put_there_by_hand_without_checksum(self, store: LocalStore, tmp_path: Path) -> None:
        (tmp_path / "store" / "space" / "item").write_bytes(b"by hand")
        with pytest.raises(SystemExit):
            put(store, "item", b"new")
        assert store.info("space", "item").checksums == ()


FORK = """
import io, os, sys
from millstream.stores import LocalStore
store = LocalStore(sys.argv[1])
store.put("space", "before", io.BytesIO(b""))
child = os.fork()
store.put("space", "parent" if child else "child", io.BytesIO(b""))
if child:
    assert os.waitpid(child, 0)[1] == 0
    store.put("space", "after", io.BytesIO(b""))
"""


def test_a_forked_child_writes_beside_its_parent(store: LocalStore, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, tmp_path / "store"], check=True)
    assert ids(store) == ["after", "before", "child", "parent"]
    assert list((tmp_path / "store" / ".millstream" / "drafts").iterdir()) == []


FULL_DISK = """
import io, resource, sys
from millstream.stores import LocalStore, StoreError
store = LocalStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put("space", "item", io.BytesIO(bytes(200_000)))
except StoreError as error:
    assert "putting 'item'" in str(error), error
    store.put("space", "small", io.BytesIO(b"fits"))
else:
    sys.exit("nothing was refused")
"""


def test_a_disk_that_is_full_fails_the_put_and_leaves_the_item_as_it_was(store: LocalStore, tmp_path: Path) -> None:
    put(store, "item", b"grain")
    subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path / "store"], check=True)
    assert ids(store) == ["item", "small"]
    assert store.info("space", "item").size == 5
    assert store.path_of("space", "item").read_bytes() == b"grain"
    drafts = tmp_path / "store" / ".millstream" / "drafts"
    assert [path for path in drafts.glob("*/*") if path.is_file()] == []


def meanwhile(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, act: Callable[[], object]) -> threading.Thread:
    """The first call of *method* of *kind* first lets another thread *act*, as long as nothing holds it up."""
    thread, do = threading.Thread(target=act), getattr(kind, method)

    def first_act(*arguments: object) -> object:
        if thread.ident is None:
            thread.start()
            thread.join(0.2)
        return do(*arguments)

    monkeypatch.setattr(kind, method, first_act)
    return thread


def test_a_space_that_is_made_again_while_it_is_deleted_keeps_what_is_stored_in_it(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LocalStore(tmp_path / "store")

    def make_again() -> None:
        other.create_space("space")
        other.set_space_acls("space", {"ann": SpaceAccess.WRITE})
        put(other, "item", creator="mill")

    thread = meanwhile(monkeypatch, SidecarFiles, "remove_space", make_again)
    store.delete_space("space")
    thread.join()
    assert (store.info("space", "item").properties, store.info("space", "item").checksum()) == (
        {"creator": "mill"}, hashlib.sha256(b"grain").hexdigest()
    )  # fmt: skip
    assert store.space_acls("space") == {"ann": SpaceAccess.WRITE}


def test_a_space_that_two_make_at_once_keeps_its_access_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = LocalStore(tmp_path / "store"), LocalStore(tmp_path / "store")

    def make() -> None:
        other.create_space("space")
        other.set_space_acls("space", {"ann": SpaceAccess.READ})

    thread = meanwhile(monkeypatch, SpaceFiles, "remove", make)
    store.create_space("space")
    thread.join()
    assert store.space_acls("space") == {"ann": SpaceAccess.READ}


def test_a_file_without_the_right_to_read_it_is_told_from_one_that_cannot_be_read() -> None:
    with pytest.raises(AccessDeniedError, match="give the account that runs Millstream access"), translated("reading"):
        raise PermissionError(errno.EACCES, "Permission denied", "a")
    with pytest.raises(StoreUnavailableError), translated("reading"):
        raise OSError(errno.EIO, "Input/output error", "a")


@pytest.mark.parametrize("name", ["lost+found", "System Volume Information", "$RECYCLE.BIN"])
def test_a_folder_that_disks_have_of_their_own_is_no_space(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path / "store")
    (tmp_path / "store" / name).mkdir()
    assert (store.spaces(), store.has_space(name)) == ([], False)
    with pytest.raises(StoreInputError, match="disks have folders of their own of this name"):
        store.create_space(name)
    (tmp_path / "store" / ".millstream" / "sidecars" / name).mkdir(parents=True)  # of an earlier version
    assert (store.spaces(), store.has_space(name)) == ([name], True)
