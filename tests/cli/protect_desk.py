"""A folder with photos, two disks and a node, for tests of ``millstream protect``."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Answer = tuple[int, dict[str, Any]]


class Desk(NamedTuple):
    """A folder with photos, two empty disks, and the node's folder; nothing of it but the photos is there yet."""

    photos: Path
    disks: tuple[Path, Path]
    data: Path
    call: Callable[..., Answer]

    def protect(self, *arguments: str) -> Answer:
        """Run the command with ``--json``; its exit code and its report."""
        to = [part for disk in self.disks for part in ("--to", str(disk))]
        return self.call("protect", str(self.photos), *to, *arguments)

    def rot(self, name: str, data: bytes) -> None:
        path = self.photos / name
        before = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def written(self) -> dict[Path, int]:
        """When each file of the node and of the disks was written, but for what SQLite keeps beside a database."""
        gc.collect()  # stores of the runs before remove their lock files when they are collected
        files = [path for root in (self.data, *self.disks) for path in root.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files if not path.name.endswith(("-shm", "-wal"))}

    def copies(self, name: str) -> list[bytes | None]:
        paths = [disk / "photos" / name for disk in self.disks]
        return [path.read_bytes() if path.exists() else None for path in paths]


def verified(report: dict[str, Any]) -> list[int]:
    return [copy["verified"] for copy in report["copies"]]


def found(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["content_id"], one["kind"]) for one in report["findings"]]
