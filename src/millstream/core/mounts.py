"""Whether one folder lies in another, also where a folder is mounted in a second place (a bind mount); and the mount of
an open file."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount point of the folder *root* of the filesystem *device*."""

    device: str
    root: PurePosixPath
    point: PurePosixPath


class Location(NamedTuple):
    """A path in its filesystem: the same for every mount through which it is seen."""

    device: str
    path: PurePosixPath


def lies_in(path: Path, folder: Path) -> bool:
    """Whether *path* is *folder* or lies below it, by whichever mounts; either may not be there yet."""
    path, folder = path.resolve(), folder.resolve()
    if path.is_relative_to(folder):
        return True
    if folder.exists() and any(one.exists() and one.samefile(folder) for one in (path, *path.parents)):
        return True  # also where the system does not say what is mounted
    mounts = _read_mounts()
    found = _locate(path, mounts)
    return found is not None and any(
        found.device == tree.device and found.path.is_relative_to(tree.path) for tree in _trees(folder, mounts)
    )


def mount_of(handle: int) -> tuple[int, str]:
    """The device of the open *handle*, and the number of its mount, which is empty where the system does not say it.

    Both stay the same as long as the disk is mounted, also while it is detached. Those of the mount point are others.
    """
    try:
        lines = Path(f"/proc/self/fdinfo/{handle}").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    number = next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")
    return os.fstat(handle).st_dev, number


def _trees(folder: Path, mounts: list[Mount]) -> list[Location]:
    """Where *folder* lies, and whatever is mounted below it."""
    own = _locate(folder, mounts)
    below = [Location(mount.device, mount.root) for mount in mounts if folder in Path(mount.point).parents]
    return below if own is None else [own, *below]


def _locate(path: Path, mounts: list[Mount]) -> Location | None:
    """None where the system does not say what is mounted."""
    above = [mount for mount in mounts if path.is_relative_to(mount.point)]
    if not above:
        return None
    mount = max(enumerate(above), key=lambda one: (len(one[1].point.parts), one[0]))[1]  # the last one covers others
    return Location(mount.device, mount.root / path.relative_to(mount.point))


def _read_mounts() -> list[Mount]:
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    fields = [line.split(" ") for line in lines]
    return [Mount(one[2], PurePosixPath(_plain(one[3])), PurePosixPath(_plain(one[4]))) for one in fields]


def _plain(text: str) -> str:
    """*text* without the escapes that the kernel writes for blanks and backslashes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
