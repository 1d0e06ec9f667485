"""Folders that other programs wrote, as sources."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from millstream.stores import (
    Entry,
    EntryKind,
    FolderStore,
    ItemChangedError,
    ItemNotFoundError,
    LocalStore,
    Store,
    StoreInputError,
    StoreUnavailableError,
    UnreadableError,
    all_entries,
    find_problems,
    folder_url,
    open_provider,
)
from millstream.stores.folder import decode_path
from millstream.stores.folder.versions import hash_versions
from millstream.testing.sources import SourceConformance

S = "space"


class TestFolderSource(SourceConformance):
    """A folder passes the suite of sources."""

    def open_source(self, folder: Path, items: Mapping[str, bytes], *, exclude: tuple[str, ...] = ()) -> Store:
        for content_id, data in items.items():
            write(folder, content_id.encode(), data)
        return FolderStore(folder, space=self.space, exclude=exclude)


def write(root: Path, path: bytes, data: bytes = b"") -> bytes:
    """Write the file *path* below *root*, and the folders on the way."""
    whole = os.path.join(os.fsencode(root), path)  # noqa: PTH118 - bytes
    os.makedirs(os.path.dirname(whole), exist_ok=True)  # noqa: PTH103, PTH120
    with open(whole, "wb") as file:  # noqa: PTH123
        file.write(data)
    return whole


def open_below(root: Path) -> list[str]:
    """What this process has open at and below *root*."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(handle.readlink()))
    return [path for path in found if path.startswith(str(root))]


def read(store: Store, content_id: str) -> bytes:
    with store.open(S, content_id) as file:
        return file.read()


def kinds(store: Store) -> dict[str, EntryKind]:
    return {entry.content_id: entry.kind for entry in all_entries(store, S, chunk=3)}


def random_tree(root: Path, seed: int) -> dict[bytes, bytes | None]:
    """A tree of random names below *root*; the bytes of each file by path, and None for each empty folder."""
    rng = random.Random(seed)
    alphabet = [b"a", b"b", b"%", b"25", b"FF", b".", b" ", b"-", b"0", b"\xff", b"\xc3", b"\xa4", b"\n", "é".encode()]

    def name() -> bytes:
        made = b"".join(rng.choices(alphabet, k=rng.randint(1, 3)))
        return made + b"x" if made in (b".", b"..") else made

    folders = [b""]
    for _ in range(30):
        folders.append(rng.choice(folders) + name() + b"/")
        os.makedirs(os.fsencode(root) + b"/" + folders[-1], exist_ok=True)  # noqa: PTH103
    for number in range(60):
        path = rng.choice(folders) + name()
        if not os.path.isdir(os.fsencode(root) + b"/" + path):  # noqa: PTH112
            write(root, path, b"%d" % number)
    found: dict[bytes, bytes | None] = {}
    for folder, subfolders, files in os.walk(os.fsencode(root)):
        here = os.path.relpath(folder, os.fsencode(root))
        for one in files:
            whole = os.path.join(folder, one)  # noqa: PTH118
            found[os.path.normpath(os.path.join(here, one))] = Path(os.fsdecode(whole)).read_bytes()  # noqa: PTH118
        if not subfolders and not files:
            found[here + b"/"] = None
    return found


def in_columns(store: FolderStore, most: int = 3) -> list[Entry]:
    """What a listing in columns has, as entries without their times in microseconds."""
    runs = list(store.columns(S, most=most))
    assert all(len(run.sizes) == most for run in runs[:-1])
    rows = [row for run in runs for row in zip(*run, strict=True)]
    return [Entry(name, size, None, version or None, EntryKind(kind)) for name, size, version, kind in rows]


def without_times(store: FolderStore) -> list[Entry]:
    return [msgspec.structs.replace(entry, modified=None) for entry in all_entries(store, S)]


@pytest.mark.parametrize("seed", range(6))
def test_a_listing_has_what_walking_the_tree_finds(tmp_path: Path, seed: int) -> None:
    tree = random_tree(tmp_path, seed)
    store = FolderStore(tmp_path, space=S)
    listed = list(all_entries(store, S, chunk=1 + seed))
    assert {decode_path(entry.content_id) for entry in listed} == tree.keys()
    keys = [entry.content_id.encode("utf-8") for entry in listed]
    assert keys == sorted(set(keys))
    assert in_columns(store, 1 + 2 * seed) == without_times(store)
    files = [(one.content_id, one.size, one.version or "") for one in listed if one.kind == EntryKind.FILE]
    bodies = [tree[decode_path(name) or b""] or b"" for name, _, _ in files]
    assert hash_versions(str(tmp_path), files) == [hashlib.sha256(body).hexdigest() for body in bodies]
    rng = random.Random(seed)
    for _ in range(60):
        start = rng.choice(keys)
        prefix, after = start[: rng.randint(0, len(start))].decode("utf-8", "ignore"), rng.choice(keys).decode()
        expected = [one for one in keys if one.startswith(prefix.encode()) and one > after.encode()]
        assert [e.content_id.encode() for e in store.entries(S, prefix=prefix, after=after)] == expected
    for entry in listed:
        data = tree[decode_path(entry.content_id) or b""]
        assert read(store, entry.content_id) == (data or b"")
        assert entry.kind == (EntryKind.FOLDER if data is None else EntryKind.FILE)
        assert store.info(S, entry.content_id).size == entry.size


@pytest.mark.parametrize("seed", range(3))
def test_items_of_any_name_are_stored_at_a_local_store_under_the_same_ids(tmp_path: Path, seed: int) -> None:
    (tmp_path / "source").mkdir()
    random_tree(tmp_path / "source", seed)
    source, copy = FolderStore(tmp_path / "source", space=S), LocalStore(tmp_path / "copy")
    copy.create_space(S)
    for entry in source.entries(S):
        info = source.info(S, entry.content_id)
        with source.open(S, entry.content_id) as file:
            copy.put(S, entry.content_id, file, mimetype=info.mimetype, properties=info.properties)
    listed = [(entry.content_id, entry.size) for entry in copy.entries(S)]
    assert listed == [(entry.content_id, entry.size) for entry in source.entries(S)]
    for content_id, _ in listed:
        assert read(copy, content_id) == read(source, content_id)
        assert copy.info(S, content_id).properties == source.info(S, content_id).properties


def test_links_and_empty_folders_are_items(tmp_path: Path) -> None:
    write(tmp_path, b"folder/file", b"grain")
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "broken").symlink_to("../nowhere")
    (tmp_path / "to folder").symlink_to("folder")
    (tmp_path / "odd").symlink_to(os.fsdecode(b"\xff"))
    store = FolderStore(tmp_path, space=S)
    assert kinds(store) == {
        "broken": EntryKind.SYMLINK,
        "empty/inner/": EntryKind.FOLDER,
        "folder/file": EntryKind.FILE,
        "link": EntryKind.SYMLINK,
        "odd": EntryKind.SYMLINK,
        "to folder": EntryKind.SYMLINK,
    }
    assert [read(store, one) for one in ("broken", "link", "odd", "empty/inner/")] == [
        b"../nowhere",
        b"folder/file",
        b"\xff",
        b"",
    ]
    link, empty, file = (store.info(S, one) for one in ("link", "empty/inner/", "folder/file"))
    assert (link.mimetype, link.properties["kind"], link.size) == ("inode/symlink", "symlink", 11)
    assert (empty.mimetype, empty.properties["kind"], empty.size) == ("inode/directory", "folder", 0)
    assert "kind" not in file.properties
    for missing in ("empty/", "to folder/file", "folder/", "link/"):
        with pytest.raises(ItemNotFoundError):
            store.info(S, missing)


def test_times_are_told_to_the_nanosecond(tmp_path: Path) -> None:
    for number, nanoseconds in enumerate((1_700_000_000_123_456_789, 5, -1_500_000_000)):
        os.utime(write(tmp_path, b"%d" % number), ns=(0, nanoseconds))
    store = FolderStore(tmp_path, space=S)
    entries = store.entries(S)
    if entries[2].version != "-1500000000":
        pytest.skip("this file system keeps no times before 1970")
    assert [entry.version for entry in entries] == ["1700000000123456789", "5", "-1500000000"]
    assert [store.info(S, str(number)).properties["mtime"] for number in range(3)] == [
        "1700000000.123456789",
        "0.000000005",
        "-1.500000000",
    ]


@pytest.mark.parametrize("written", [0, 1, 4096])
def test_a_huge_file_of_holes_is_named_and_never_read(tmp_path: Path, written: int) -> None:
    with (tmp_path / "!").open("wb") as file:
        try:
            os.truncate(file.fileno(), 2 << 40)
        except OSError:
            pytest.skip("this file system has no files of 2 TiB")
        file.seek(-written, os.SEEK_END)
        file.write(b"x" * written)
    (tmp_path / "small").write_bytes(b"grain")
    store = FolderStore(tmp_path, space=S)
    assert kinds(store) == {"!": EntryKind.SPARSE, "small": EntryKind.FILE}
    assert in_columns(store) == without_times(store)
    (problem,) = find_problems(store, S)
    assert problem.content_id == "!" and "sparse" in problem.reason
    with pytest.raises(UnreadableError, match="sparse"):
        store.open(S, "!")


def test_a_sparse_file_is_read_unless_it_is_huge_and_nearly_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.stores.folder.listing.HUGE", 100_000)
    for name, written in (("full", 1_000_000), ("an image", 50_000), ("small", 0)):
        (tmp_path / name).write_bytes(b"x" * written)
        os.truncate(tmp_path / name, 90_000 if name == "small" else 1_000_000)
    assert set(kinds(FolderStore(tmp_path, space=S)).values()) == {EntryKind.FILE}


def test_special_files_are_named_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        store = FolderStore(tmp_path, space=S)
        assert kinds(store) == {"fifo": EntryKind.SPECIAL, "socket": EntryKind.SPECIAL}
        assert in_columns(store) == without_times(store)
        assert [problem.content_id for problem in find_problems(store, S)] == ["fifo", "socket"]
        assert all("exclude" in problem.reason for problem in find_problems(store, S))
        for content_id in ("fifo", "socket"):
            with pytest.raises(UnreadableError, match="fifo, a socket or a device"):
                store.open(S, content_id)
        assert kinds(FolderStore(tmp_path, space=S, exclude=["fifo", "sock*"])) == {}


def test_an_item_whose_id_would_be_too_long_is_named(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(3):
        deep = deep / ("é" * 127)
        deep.mkdir()
    (deep / ("x" * 255)).write_bytes(b"fits")
    (deep / ("x" * 250 + "\u00e9y")).write_bytes(b"fits")
    os.close(os.open(os.fsencode(deep) + b"/" + b"\xff" * 200, os.O_CREAT | os.O_WRONLY))
    os.mkdir(os.fsencode(deep) + b"/" + b"\xfe" * 200)  # noqa: PTH102
    store = FolderStore(tmp_path, space=S)
    found = [(len(entry.content_id), entry.kind) for entry in store.entries(S)]
    assert found == [
        (3 * 128 + 600 + 1, EntryKind.NAME_TOO_LONG),
        (3 * 128 + 600, EntryKind.NAME_TOO_LONG),
        (3 * 128 + 255, EntryKind.FILE),
        (3 * 128 + 252, EntryKind.FILE),
    ] or {kind for _, kind in found} == {EntryKind.NAME_TOO_LONG, EntryKind.FILE}
    assert in_columns(store) == without_times(store)
    long = store.entries(S)[0].content_id
    with pytest.raises(StoreInputError):
        store.open(S, long)


@pytest.fixture
def forbidding(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Names that nobody may open or read, as if this test were not run by root."""
    forbidden: set[bytes] = set()
    real_open, real_access = os.open, os.access

    def open_(path: object, flags: int, *rest: int, **named: int) -> int:
        if path in forbidden and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)

    def access(path: bytes, mode: int, **named: int) -> bool:
        return path not in forbidden and real_access(path, mode, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "access", access)
    return forbidden


def test_files_without_the_right_to_them_are_named(tmp_path: Path, forbidding: set[bytes]) -> None:
    write(tmp_path, b"closed", b"grain")
    write(tmp_path, b"open", b"grain")
    forbidding.add(b"closed")
    store = FolderStore(tmp_path, space=S)
    assert kinds(store) == {"closed": EntryKind.UNREADABLE, "open": EntryKind.FILE}
    assert in_columns(store) == without_times(store)
    with pytest.raises(UnreadableError, match="right"):
        store.open(S, "closed")


def test_a_server_that_does_not_say_whether_a_file_may_be_read_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, b"file", b"grain")
    store, real_open, answers = FolderStore(tmp_path, space=S), os.open, True
    monkeypatch.setattr(os, "access", lambda *_, **__: False)

    def open_(path: object, flags: int, *rest: int, **named: int) -> int:
        if path == b"file" and not answers:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        return real_open(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    assert kinds(store) == {"file": EntryKind.FILE}
    answers = False
    for look in (lambda: kinds(store), lambda: in_columns(store), lambda: store.info(S, "file")):
        with pytest.raises(StoreUnavailableError, match="timed out"):
            look()


@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs root and setpriv")
def test_a_folder_that_may_not_be_listed_is_named_and_its_items_do_not_look_deleted(tmp_path: Path) -> None:
    write(tmp_path, b"closed/inside", b"grain")
    write(tmp_path, b"open", b"grain")
    write(tmp_path, b"secret", b"grain")
    (tmp_path / "closed").chmod(0)
    (tmp_path / "secret").chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    program = f"""
from millstream.stores import FolderStore, StoreError
store = FolderStore({str(tmp_path)!r}, space="space")
print({{entry.content_id: str(entry.kind) for entry in store.entries("space")}})
for one in ("closed/inside", "closed/", "secret"):
    try:
        store.open("space", one)
    except StoreError as error:
        print(type(error).__name__)
"""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "ModuleNotFound" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("another user cannot read this Python")
    assert done.stdout.splitlines() == [
        "{'closed/': 'unreadable', 'open': 'file', 'secret': 'unreadable'}",
        *["UnreadableError"] * 3,
    ], done.stderr


def test_a_change_while_a_file_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store = FolderStore(tmp_path, space=S)
    for change in (
        lambda: path.write_bytes(b"other grain"),
        lambda: os.truncate(path, 1 << 20),
        lambda: os.utime(path, ns=(0, 12345)),
    ):
        path.write_bytes(b"grain" * 300_000)
        with pytest.raises(ItemChangedError) as caught, store.open(S, "file") as file:
            file.read(10)
            change()
            file.read()
        assert caught.value.transient
    with store.open(S, "file", start=3, length=10) as file:
        path.write_bytes(b"other")
        with pytest.raises(ItemChangedError):
            file.read()


def test_a_file_that_is_replaced_while_it_is_read_gives_the_version_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old" * 500_000)
    store = FolderStore(tmp_path, space=S)
    with store.open(S, "file") as file:
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").rename(path)
        assert file.read() == b"old" * 500_000
    assert read(store, "file") == b"new"


def test_items_that_vanish_during_a_listing_are_left_out_and_those_that_appear_are_found(tmp_path: Path) -> None:
    for number in range(50):
        write(tmp_path, b"%02d/file" % number, b"grain")
    store = FolderStore(tmp_path, space=S)
    first = store.entries(S, limit=10)
    shutil.rmtree(tmp_path / "20")
    (tmp_path / "30" / "file").unlink()
    write(tmp_path, b"40/another")
    rest = store.entries(S, after=first[-1].content_id)
    ids = [entry.content_id for entry in (*first, *rest)]
    assert ids == sorted(
        {*(f"{number:02}/file" for number in range(50) if number not in (20, 30)), "30/", "40/another"}
    )


def swap_disks(root: Path) -> Path:
    """Put an empty folder in the place of *root*, as an unmounted disk leaves its mount point; returns the old one."""
    aside = root.with_name("aside")
    root.rename(aside)
    root.mkdir()
    return aside


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 50 items, which counts as the root of a disk of its own."""
    monkeypatch.setattr("millstream.stores.folder.listing.mount_of", lambda handle: (os.fstat(handle).st_ino, ""))
    for number in range(50):
        write(tmp_path / "disk", b"%02d/file" % number, b"grain")
    return tmp_path / "disk"


def test_a_walk_over_a_disk_that_is_unmounted_meanwhile_is_not_complete(disk: Path) -> None:
    walk = FolderStore(disk, space=S).columns(S, most=10)
    listed = len(next(walk).sizes)
    swap_disks(disk)
    with pytest.raises(StoreUnavailableError, match="unmounted"):
        for run in walk:
            listed += len(run.sizes)
    assert listed == 50, "a detached disk is readable"


def test_the_pages_of_a_disk_that_is_unmounted_between_them_do_not_end(disk: Path) -> None:
    store = FolderStore(disk, space=S)
    last = store.entries(S, limit=10)[-1].content_id
    aside = swap_disks(disk)
    for _ in range(2):  # the page is asked for again
        with pytest.raises(StoreUnavailableError, match="unmounted"):
            store.entries(S, after=last)
    assert store.entries(S) == [], "it may be a new, empty disk"
    with pytest.raises(StoreUnavailableError, match="unmounted"):
        store.info(S, "20/file")
    disk.rmdir()
    aside.rename(disk)
    assert len(store.entries(S, after=last)) == 40
    with pytest.raises(ItemNotFoundError):
        store.info(S, "20/another")


def test_an_item_is_looked_for_on_the_disk_that_was_listed_last(disk: Path) -> None:
    store = FolderStore(disk, space=S)
    assert len(store.entries(S)) == 50
    swap_disks(disk)
    write(disk, b"new", b"grain")
    with pytest.raises(StoreUnavailableError, match="unmounted"):
        store.info(S, "20/file")
    assert [entry.content_id for entry in store.entries(S)] == ["new"]
    with pytest.raises(ItemNotFoundError):
        store.info(S, "20/file")


def test_a_disk_that_is_unmounted_lazily_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, b"real/folder/a", b"grain")
    write(tmp_path, b"real/folder/b", b"grain")
    mount = tmp_path / "mount"
    mount.mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "real", mount], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        store = FolderStore(mount, space=S)
        walk = store.columns(S, most=1)
        listed = [*next(walk).content_ids]
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
    with pytest.raises(StoreUnavailableError, match="unmounted"):
        for run in walk:
            listed += run.content_ids
    assert listed == ["folder/a", "folder/b"]
    with pytest.raises(StoreUnavailableError, match="unmounted"):
        store.info(S, "folder/a")


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    write(tmp_path, b"outside/secret", b"secret")
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "way").symlink_to(tmp_path / "outside")
    (root / "inner" / "up").symlink_to("..")
    (root / "file").symlink_to(tmp_path / "outside" / "secret")
    store = FolderStore(root, space=S)
    assert kinds(store) == dict.fromkeys(("file", "inner/up", "way"), EntryKind.SYMLINK)
    for content_id in ("way/secret", "inner/up/way", "../outside/secret", "inner/up/inner/up"):
        with pytest.raises(ItemNotFoundError):
            store.open(S, content_id)
    assert read(store, "file") == os.fsencode(tmp_path / "outside" / "secret")


def test_long_runs_of_empty_folders_and_interleaved_listings(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number:04}").mkdir()
    write(tmp_path, b"9/file")
    store = FolderStore(tmp_path, space=S)
    first, second = all_entries(store, S, chunk=100), all_entries(store, S, chunk=7)
    pairs = [(next(first), next(second)) for _ in range(3001)]
    assert all(one == other for one, other in pairs)
    assert [next(first, None), next(second, None)] == [None, None]
    assert open_below(tmp_path) == [], "no descriptor is left open"
    assert pairs[-1][0].content_id == "9/file"


def test_a_file_is_listed_that_was_added_by_a_program_that_set_the_time_of_the_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.stores.folder_stamp.SETTLED", 0)
    store = FolderStore(tmp_path, space=S)
    listed = []
    for name in ("a", "b"):
        write(tmp_path, name.encode())
        before = tmp_path.stat().st_ctime_ns
        while tmp_path.stat().st_ctime_ns == before:
            os.utime(tmp_path, (1, 1))
        listed.append([entry.content_id for entry in store.entries(S)])
    assert listed == [["a"], ["a", "b"]]


def test_listing_and_reading_leave_no_trace(tmp_path: Path) -> None:
    write(tmp_path, b"folder/file", b"grain")
    (tmp_path / "link").symlink_to("folder")
    everything = [tmp_path, *tmp_path.rglob("*")]
    for path in everything:
        os.utime(path, ns=(1_000_000_000, 1_000_000_000), follow_symlinks=False)
    before = [path.lstat() for path in everything]
    store = FolderStore(tmp_path, space=S)
    assert [read(store, entry.content_id) for entry in store.entries(S)] == [b"grain", b"folder"]
    for old, path in zip(before, everything, strict=True):
        new = path.lstat()
        assert (old.st_mtime_ns, old.st_ctime_ns) == (new.st_mtime_ns, new.st_ctime_ns)
        if not path.is_symlink():
            assert old.st_atime_ns == new.st_atime_ns
    assert sorted(tmp_path.rglob("*")) == sorted(everything[1:])


def test_a_read_only_mount_is_a_source(tmp_path: Path) -> None:
    write(tmp_path, b"real/folder/.hidden", b"grain")
    (tmp_path / "mount").mkdir()
    bind = subprocess.run(["mount", "--bind", tmp_path / "real", tmp_path / "mount"], capture_output=True, check=False)
    if bind.returncode:
        pytest.skip("this user may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", tmp_path / "mount"], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "mount" / "new").write_bytes(b"")
        store = FolderStore(tmp_path / "mount", space=S)
        assert kinds(store) == {"folder/.hidden": EntryKind.FILE}
        assert read(store, "folder/.hidden") == b"grain"
    finally:
        subprocess.run(["umount", tmp_path / "mount"], check=True)


def test_a_folder_without_the_right_to_write_is_a_source(tmp_path: Path) -> None:
    write(tmp_path, b"folder/file", b"grain")
    for path in (tmp_path / "folder" / "file", tmp_path / "folder", tmp_path):
        path.chmod(0o555)
    try:
        assert read(FolderStore(tmp_path, space=S), "folder/file") == b"grain"
    finally:
        for path in (tmp_path, tmp_path / "folder"):
            path.chmod(0o755)


def test_a_missing_folder_is_not_an_empty_one(tmp_path: Path) -> None:
    store = open_provider(folder_url(tmp_path / "nowhere", S))
    for ask in (lambda: store.entries(S), lambda: store.info(S, "a"), lambda: store.info(S, "a/")):
        with pytest.raises(StoreUnavailableError, match="mount its disk"):
            ask()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailableError):
        FolderStore(tmp_path / "file", space=S).entries(S)


def test_the_space_is_named_after_the_folder(tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 #1?"))
    root.mkdir()
    (root / "file").write_bytes(b"grain")
    url = folder_url(root)
    store = open_provider(url)
    assert store.spaces() == ["caf%E9 #1?"]
    assert store.url == f"{url}?space=caf%25E9%20%231%3F"
    assert open_provider(store.url).entries("caf%E9 #1?") == store.entries("caf%E9 #1?")
    assert [entry.content_id for entry in store.entries("caf%E9 #1?")] == ["file"]


@pytest.mark.parametrize("query", ["space=", "space=a&space=b", "exclude=", "what=1", "exclude=%2F"])
def test_options_that_cannot_be_are_refused(query: str) -> None:
    with pytest.raises(StoreInputError):
        open_provider(f"folder:///folder?{query}")


@pytest.mark.parametrize(
    ("glob", "left"),
    [
        ("*.tmp", ["a/b.txt", "a/cache/x", "c"]),
        ("a/*", ["b.tmp", "c"]),
        ("a/*.txt", ["a/b.tmp", "a/cache/x", "b.tmp", "c"]),
        ("cache/", ["a/b.tmp", "a/b.txt", "b.tmp", "c"]),
        ("/cache", ["a/b.tmp", "a/b.txt", "a/cache/x", "b.tmp", "c"]),
        ("a/**", ["a/", "b.tmp", "c"]),
        ("**/x", ["a/b.tmp", "a/b.txt", "a/cache/", "b.tmp", "c"]),
        ("[!a]", ["a/b.tmp", "a/b.txt", "a/cache/", "b.tmp"]),
        ("?.t?t", ["a/b.tmp", "a/cache/x", "b.tmp", "c"]),
        ("a", ["b.tmp", "c"]),
    ],
)
def test_globs_leave_entries_out(tmp_path: Path, glob: str, left: list[str]) -> None:
    for path in (b"a/b.txt", b"a/b.tmp", b"a/cache/x", b"b.tmp", b"c"):
        write(tmp_path, path)
    store = FolderStore(tmp_path, space=S, exclude=[glob])
    listed = [entry.content_id for entry in store.entries(S)]
    expected = ["a/", *left] if glob == "a/*" else left
    assert listed == expected
    for entry in FolderStore(tmp_path, space=S).entries(S):
        assert _is_there(store, entry) == (entry.content_id in listed)


def _is_there(store: Store, entry: Entry) -> bool:
    try:
        store.info(S, entry.content_id)
    except ItemNotFoundError:
        return False
    return True
