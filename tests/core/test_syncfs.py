"""One sync of a whole filesystem: only where it may be relied on, and never without its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core import syncfs
from millstream.core.syncfs import can_sync_filesystem, sync_filesystem


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """An open folder."""
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)


def test_the_filesystem_of_a_folder_is_synced(folder: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    sync_filesystem(folder)


def test_what_the_kernel_says_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_filesystem(-1)


@pytest.mark.parametrize(
    ("kind", "release", "trusted"),
    [
        ("ext4", "6.1.0-13-amd64", True),
        ("xfs", "5.8.0", True),
        ("ext4", "5.7.19", False),
        ("fuse.sshfs", "6.1.0", False),
        ("nfs4", "6.1.0", False),
        ("ext4", "unknown", False),
    ],
)
def test_only_known_filesystems_under_a_kernel_that_tells_of_errors_are_trusted(
    folder: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, release: str, trusted: bool
) -> None:
    device = os.fstat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 27 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
        f"27 1 {number} / / rw,relatime shared:1 - {kind} /dev/disk rw\n"
    )
    monkeypatch.setattr(syncfs, "_MOUNTS", table)
    kernel = os.uname_result(("Linux", "host", release, "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: kernel)
    assert can_sync_filesystem(folder) is trusted
    table.unlink()
    assert not can_sync_filesystem(folder)
