"""A rename that replaces nothing, whether or not the filesystem can refuse it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core import renaming
from millstream.core.renaming import rename_new


def _unsupported(*_: object) -> int:
    """As a kernel answers for a filesystem that knows no such rename."""
    ctypes.set_errno(errno.EINVAL)
    return -1


@pytest.fixture(params=["kernel", "unsupported", "absent"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    if request.param != "kernel":
        monkeypatch.setattr(renaming, "_renameat2", None if request.param == "absent" else _unsupported)
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, handle)
        yield handle


def test_a_free_name_is_taken(folder: int, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    rename_new("old", "new", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_has_the_name_already_is_kept(folder: int, tmp_path: Path, kind: str) -> None:
    new = tmp_path / "new"
    (tmp_path / "old").mkdir()
    if kind == "folder":
        new.mkdir()
    elif kind == "file":
        new.write_bytes(b"mine")
    else:
        new.symlink_to("nowhere")
    before = new.lstat().st_ino
    with pytest.raises(FileExistsError):
        rename_new("old", "new", folder)
    assert (sorted(path.name for path in tmp_path.iterdir()), new.lstat().st_ino) == (["new", "old"], before)


def test_other_errors_are_those_of_the_system(folder: int) -> None:
    with pytest.raises(FileNotFoundError):
        rename_new("old", "new", folder)
