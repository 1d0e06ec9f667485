"""A folder that other programs write, and its adoption."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.mill.adoption.adopter import Adopter, ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionSummary, AdoptionTarget
from millstream.mill.adoption.catalog import AdoptedItem, AdoptionCatalog
from millstream.mill.adoption.checksum_files import ChecksumList, parse_checksums
from millstream.mill.manifest import Manifest
from millstream.stores import FolderStore

SPACE = "photos"


class SourceFolder:
    """A folder, the store "here" on it, and its catalog and manifest."""

    def __init__(self, root: Path, engine: sa.Engine) -> None:
        self.root, self.clock = root, VirtualClock()
        self.catalog, self.manifest = AdoptionCatalog(engine), Manifest(engine, self.clock)
        self.store = FolderStore(root, space=SPACE)
        self.target = AdoptionTarget(self.store, "here", self.catalog, self.manifest, self.clock)

    def write(self, name: str, data: bytes = b"grain", *, at: int | None = None) -> None:
        """Write a file, with the time *at* (nanoseconds) where that is given."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if at is not None:
            os.utime(path, ns=(at, at))

    def rot(self, name: str, data: bytes) -> None:
        """Change the bytes and neither the size nor the time."""
        path = self.root / name
        before = path.stat()
        assert before.st_size == len(data)
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def adopt(self, reading: ReadExtent = ReadExtent.SHARE, listed: str | None = None) -> AdoptionSummary:
        """Adopt the folder, a second after what was done before."""
        self.clock.advance(1)
        checksums: ChecksumList | None = None if listed is None else parse_checksums(listed.encode(), "LIST")
        return Adopter(self.target, threads=2).adopt(SPACE, reading=reading, checksums=checksums)

    def item(self, name: str) -> AdoptedItem:
        return self.catalog.get_many("here", SPACE, [name])[name]

    def findings(self) -> Sequence[tuple[str, str]]:
        return [(one.content_id, one.kind) for one in self.catalog.findings("here", SPACE)]
