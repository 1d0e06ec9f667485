"""Whether a folder is still as it was when its names were read."""

from __future__ import annotations

import os
from typing import NamedTuple, Self

SETTLED = 2_000_000_000
"""Nanoseconds after its last change at which a folder is believed: file systems keep times as coarse as seconds."""


class FolderStamp(NamedTuple):
    """The inode of a folder and its two times of change (mtime, ctime), in nanoseconds: a new name changes the times.

    Other programs may set the mtime back, but not the ctime.
    """

    inode: int
    modified: int
    changed: int

    @classmethod
    def of(cls, handle: int) -> Self:
        """The stamp of the open folder *handle*."""
        status = os.fstat(handle)
        return cls(status.st_ino, status.st_mtime_ns, status.st_ctime_ns)

    def is_settled(self, now: int) -> bool:
        """Whether a change after *now* (nanoseconds), when the names were read, would give another stamp."""
        return now - max(self.modified, self.changed) >= SETTLED
