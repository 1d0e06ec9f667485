"""``sha256sum``, the yardstick for reading and hashing files."""

from __future__ import annotations

import subprocess
from pathlib import Path


def sha256sum(folder: Path, *, processes: int, at_once: int, path: str = "*") -> int:
    """Hash all files below *folder* whose paths match *path*; returns how many there were.

    Each call of ``sha256sum`` gets *at_once* files, or fewer, so that each of the *processes* gets some.
    """
    find = ["find", str(folder), "-type", "f", "-path", path, "-print0"]
    listed = subprocess.run(find, stdout=subprocess.PIPE, check=True).stdout
    count = listed.count(b"\0")
    share = max(1, min(at_once, -(-count // processes)))
    hashing = ["xargs", "-0", f"-P{processes}", "-n", str(share), "sha256sum"]
    subprocess.run(hashing, input=listed, stdout=subprocess.DEVNULL, check=True)
    return count
