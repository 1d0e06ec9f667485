"""Items of a source, from a copy back into a folder."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.stores import (
    AlreadyExistsError,
    EntryKind,
    FolderStore,
    ItemInfo,
    LocalStore,
    Store,
    StoreError,
    StoreInputError,
)
from millstream.stores.folder import find_restored, restore_item

S = "space"


def item(content_id: str, **properties: str) -> ItemInfo:
    return ItemInfo(content_id, 0, (), "application/octet-stream", properties)


def copy_all(source: Store, target: Store) -> None:
    target.create_space(S)
    for entry in source.entries(S):
        info = source.info(S, entry.content_id)
        with source.open(S, entry.content_id) as file:
            target.put(S, entry.content_id, file, mimetype=info.mimetype, properties=info.properties)


def restore_all(copy: Store, target: Path) -> None:
    for entry in copy.entries(S):
        with copy.open(S, entry.content_id) as file:
            restore_item(target, copy.info(S, entry.content_id), file)


def test_a_folder_comes_back_from_a_copy_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / ".hidden").write_bytes(b"h")
    (source / "a" / "50%").write_bytes(b"grain" * 1000)
    (source / os.fsdecode(b"caf\xe9 %FF")).write_bytes(b"odd")
    (source / "a" / "link").symlink_to("../nowhere")
    for path in source.rglob("*"):
        os.utime(path, ns=(0, 1_600_000_000_123_456_789), follow_symlinks=False)
    copy = LocalStore(tmp_path / "copy")
    copy_all(FolderStore(source, space=S), copy)
    restore_all(copy, tmp_path / "back")
    assert FolderStore(tmp_path / "back", space=S).entries(S) == FolderStore(source, space=S).entries(S)
    for path in source.rglob("*"):
        back = tmp_path / "back" / path.relative_to(source)
        assert back.is_symlink() == path.is_symlink()
        if path.is_symlink():
            assert back.readlink() == path.readlink()
        elif path.is_file():
            assert back.read_bytes() == path.read_bytes()
            assert back.stat().st_mtime_ns == path.stat().st_mtime_ns


def test_what_is_there_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    for content_id, properties in (("file", {}), ("folder", {}), ("folder/", {"kind": "folder"})):
        with pytest.raises(AlreadyExistsError):
            restore_item(tmp_path, item(content_id, **properties), io.BytesIO(b"new"))
    restore_item(tmp_path, item("file"), io.BytesIO(b"new"), replace=True)
    with pytest.raises(AlreadyExistsError):
        restore_item(tmp_path, item("folder"), io.BytesIO(b"new"), replace=True)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_item_of_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreInputError, match="item 'one' has the invalid property kind='photo'"):
        restore_item(tmp_path, item("one", kind="photo"), io.BytesIO(b"new"))


def test_a_link_to_what_no_path_can_be_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreInputError, match="'link'") as refused:
        restore_item(tmp_path, item("link", kind="symlink"), io.BytesIO(b"nul\0"))
    assert refused.value.permanent, "the other items are restored"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_items_are_restored_to_a_disk_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    restore_item(tmp_path, item("one", kind=kind), io.BytesIO(b"grain"))
    with pytest.raises(AlreadyExistsError):
        restore_item(tmp_path, item("one", kind=kind), io.BytesIO(b"chaff"))
    assert find_restored(tmp_path, item("one", kind=kind)) == hashlib.sha256(b"grain").hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "outside").mkdir()
    restore_item(target, item("way", kind="symlink"), io.BytesIO(b"../outside"))
    with pytest.raises(StoreError):
        restore_item(target, item("way/file"), io.BytesIO(b"grain"))
    for content_id in ("../outside/file", "/file", "a//b", ".", "a/../../b", "folder/"):
        with pytest.raises(StoreInputError):
            restore_item(target, item(content_id), io.BytesIO(b"grain"))
    assert list((tmp_path / "outside").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("target", "outside")] == []


class _Failing(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell():
            raise OSError(5, "the disk is broken")
        return super().read(3)


def test_a_source_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(StoreError):
        restore_item(tmp_path, item("file"), _Failing(b"new grain"), replace=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


_KILLED = """
import io, os, signal, sys
from pathlib import Path
from millstream.stores import ItemInfo
from millstream.stores.folder import restore_item

class Killing(io.BytesIO):
    def read(self, size=-1):
        if self.tell():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(3)

restore_item(Path(sys.argv[1]), ItemInfo("file", 0, (), "text/plain", {}), Killing(b"new grain"), replace=True)
"""


@pytest.mark.parametrize("replace", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path, replace: bool) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert (killed.returncode, len(list(tmp_path.iterdir()))) == (-signal.SIGKILL, 1)
    restore_item(tmp_path, item("file"), io.BytesIO(b"new grain"), replace=replace)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new grain")]


def test_the_link_that_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    draft = _draft_of(tmp_path, "link")
    draft.symlink_to("half")
    restore_item(tmp_path, item("link", kind="symlink"), io.BytesIO(b"target"))
    assert [(path.name, str(path.readlink())) for path in tmp_path.iterdir()] == [("link", "target")]
    draft.symlink_to("half")
    restore_item(tmp_path, item("link"), io.BytesIO(b"a file by now"), replace=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("link", b"a file by now")]


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_the_draft_of_a_process_killed_once_the_item_was_in_place_is_removed(tmp_path: Path, kind: str) -> None:
    draft = _draft_of(tmp_path, "one")
    info = item("one", kind=kind)
    restore_item(tmp_path, info, io.BytesIO(b"grain"))
    os.link(tmp_path / "one", draft, follow_symlinks=False)
    assert find_restored(tmp_path, info) == hashlib.sha256(b"grain").hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


_KILLED_AT_EACH_STEP = """
import io, itertools, os, signal, sys
from pathlib import Path
from millstream.stores import ItemInfo
from millstream.stores.folder import restore_item
from millstream.testing.killed_programs import stepping

info = ItemInfo("empty/", 0, (), "inode/directory", {"kind": "folder", "mtime": "1600000000.123456789"})

def die_after(steps):
    left = iter(range(steps))
    def step():
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
    for name in ("mkdir", "open", "utime", "fsync", "rename"):
        setattr(os, name, stepping(getattr(os, name), step))

for steps in itertools.count():
    target = Path(sys.argv[1], str(steps))
    target.mkdir()
    child = os.fork()
    if not child:
        die_after(steps)
        restore_item(target, info, io.BytesIO())
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        break
"""


def test_a_folder_is_restored_with_its_time_or_not_at_all(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED_AT_EACH_STEP, str(tmp_path)], check=True)
    info = item("empty/", kind="folder", mtime="1600000000.123456789")
    targets = sorted(tmp_path.iterdir())
    assert len(targets) > 8
    for target in targets:
        if find_restored(target, info) is None:
            restore_item(target, info, io.BytesIO())
        found = [(path.name, path.stat().st_mtime_ns) for path in target.iterdir()]
        assert found == [("empty", 1_600_000_000_123_456_789)], target.name


@pytest.mark.parametrize(("content_id", "kind"), [("one/", "folder"), ("one", "file"), ("one", "symlink")])
def test_the_draft_that_a_killed_process_left_of_a_folder_is_removed(
    tmp_path: Path, content_id: str, kind: str
) -> None:
    draft = _draft_of(tmp_path, "one")
    draft.mkdir()
    restore_item(tmp_path, item(content_id, kind=kind), io.BytesIO(b"grain"))
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    draft.mkdir()
    assert find_restored(tmp_path, item(content_id, kind=kind))
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_an_empty_folder_that_exists_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    before = (tmp_path / "empty").stat()
    with pytest.raises(AlreadyExistsError):
        restore_item(tmp_path, item("empty/", kind="folder", mtime="1600000000"), io.BytesIO())
    after = (tmp_path / "empty").stat()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def _draft_of(folder: Path, name: str) -> Path:
    """The draft of an item, as it stands while its bytes are read."""
    drafts: list[Path] = []

    class Looking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            drafts.extend(folder.glob(".millstream-restore-*"))
            return super().read(size)

    restore_item(folder, item(name), Looking(b""))
    (folder / name).unlink()
    return drafts[0]


@pytest.mark.parametrize("kind", [EntryKind.SPECIAL.value, "unknown"])
def test_only_kinds_that_can_be_made_are_restored(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StoreInputError, match=kind):
        restore_item(tmp_path, item("file", kind=kind), io.BytesIO(b""))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mtime", ["", "yesterday", "1e9", "-", "1.5.5", "²", "9" * 19, "-" + "9" * 5000])
def test_a_time_that_cannot_be_read_is_left_to_the_system(tmp_path: Path, mtime: str) -> None:
    restore_item(tmp_path, item("file", mtime=mtime), io.BytesIO(b"grain"))
    assert (tmp_path / "file").stat().st_mtime > 1_700_000_000
