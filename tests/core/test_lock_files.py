"""Files that several processes lock can be locked where they lie on NFS, too."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.core.lock_files import open_to_lock
from millstream.log.backends.segments.files import FileLock
from millstream.pipeline.output.job_folder import JobFolder, remove_old_jobs
from millstream.stores.folder.restoring import _make_file, _new_draft
from millstream.stores.local.atomic_files import clear_dead
from support.nfs_locks import lock_as_nfs


@pytest.fixture(autouse=True)
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    lock_as_nfs(monkeypatch)


def test_a_file_is_opened_for_writing_and_a_folder_for_reading(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, mode in (("file", os.O_RDWR), (".", os.O_RDONLY)):
        handle = open_to_lock(tmp_path / name)
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == mode
        os.close(handle)
    with pytest.raises(FileNotFoundError):
        open_to_lock(tmp_path / "missing")


def test_the_files_of_segments_can_be_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with FileLock(tmp_path / "lock", SystemClock()).held():
        pass


def test_drafts_of_dead_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ("dead" * 4)).mkdir()
    (tmp_path / f"{'dead' * 4}.lock").touch()
    clear_dead(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "draft").write_bytes(b"half")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(_new_draft(folder, "draft", _make_file))
    finally:
        os.close(folder)
    assert (tmp_path / "draft").read_bytes() == b""


def test_old_jobs_are_removed(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "inventory", {"run": "old"})
    with folder.held():
        folder.begin()
    assert remove_old_jobs(tmp_path, before=2**62) == 1
