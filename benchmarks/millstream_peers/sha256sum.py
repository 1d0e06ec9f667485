"""``sha256sum``, the yardstick for reading and hashing files."""

from __future__ import annotations

import subprocess
from pathlib import Path


def sha256sum(folder: Path, *, processes: int, at_once: int, path: str = "*") -> int:
    """Hash all files below *folder* whose paths match *path*, *at_once* a call; returns how many there were."""
    find = ["find", str(folder), "-type", "f", "-path", path, "-print0"]
    listed = subprocess.run(find, stdout=subprocess.PIPE, check=True).stdout
    hashing = ["xargs", "-0", f"-P{processes}", "-n", str(at_once), "sha256sum"]
    subprocess.run(hashing, input=listed, stdout=subprocess.DEVNULL, check=True)
    return listed.count(b"\0")
