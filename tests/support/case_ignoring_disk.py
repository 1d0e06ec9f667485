"""A file system that ignores case, as exFAT does: a real one where the machine has it, and one in this process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def mounted_exfat(folder: Path) -> Iterator[Path]:
    """A new exFAT file system of 16 MiB, mounted below *folder*."""
    programs = ("mkfs.exfat", "mount.exfat-fuse", "losetup")
    if os.geteuid() or any(shutil.which(program, path="/usr/sbin:/sbin:/usr/bin") is None for program in programs):
        pytest.skip("exFAT needs root and: apt-get install exfat-fuse exfatprogs")
    image, disk = folder / "exfat.img", folder / "exfat"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    disk.mkdir()
    found = _run("losetup", "--find", "--show", str(image))
    if found.returncode:
        pytest.skip(f"exFAT needs a loop device: {found.stderr}")
    device = found.stdout.strip()
    try:
        _run("mkfs.exfat", device).check_returncode()
        mount = _run("mount.exfat-fuse", device, str(disk))
        if mount.returncode:
            pytest.skip(f"exFAT needs /dev/fuse: {mount.stderr}")
        try:
            yield disk
        finally:
            _run("umount", "--lazy", str(disk)).check_returncode()  # stores have files of it open
    finally:
        _run("losetup", "--detach", device).check_returncode()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)


def ignore_spelling(root: Path, patch: pytest.MonkeyPatch, alike: Callable[[str], object] = str.casefold) -> Path:
    """*root*, below which names with the same *alike* mean the same file from now on, for the calls of this process.

    A file that replaces another keeps that one's name. Dots at the end of names are dropped, as on FAT and NTFS.
    """
    disk = _Disk(root, alike)
    for name in ("open", "stat", "lstat", "unlink", "rmdir", "mkdir"):
        patch.setattr(os, name, disk.finds(getattr(os, name), ("dir_fd",)))
    for name in ("rename", "link"):
        patch.setattr(os, name, disk.finds(getattr(os, name), ("src_dir_fd", "dst_dir_fd")))
    return root


class _Disk:
    def __init__(self, root: Path, alike: Callable[[str], object]) -> None:
        self._root, self._alike = root, alike

    def finds(self, call: Callable[..., Any], folders: tuple[str, ...]) -> Callable[..., Any]:
        """*call*, whose first arguments are paths; *folders* are the arguments with their starting folders."""

        def found(*arguments: Any, **named: Any) -> Any:
            start = [self._spelled(path, named.get(folder)) for path, folder in zip(arguments, folders, strict=False)]
            return call(*start, *arguments[len(start) :], **named)

        return found

    def _spelled(self, path: Any, folder: int | None) -> Any:
        """*path* as the disk spells it, where it is on that disk."""
        if isinstance(path, int):
            return path
        base = self._root if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
        whole = base / path
        if whole == self._root or not whole.is_relative_to(self._root):
            return path
        for name in whole.relative_to(base).parts:
            base /= self._listed(base, name)
        return str(base)

    def _listed(self, folder: Path, name: str) -> str:
        try:
            with os.scandir(folder) as entries:
                key = self._alike(name.rstrip("."))
                return next((entry.name for entry in entries if self._alike(entry.name) == key), name.rstrip("."))
        except OSError:  # not a folder, or not there
            return name
