"""The location of blocks in a bucket, so that another process reads them without opening the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class BlockLocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The block of *first_id* to *last_id*: *size* bytes of the object *name* from the byte *start* on.

    ``sha256`` is empty where no other object ever has that name.
    """

    first_id: int
    last_id: int
    name: str
    start: int
    size: int
    sha256: bytes


@runtime_checkable
class LocatesBlocks(Protocol):
    """A backend whose blocks other processes can read directly."""

    def locate(self, log: str, first_id: int, last_id: int) -> Sequence[BlockLocation]:
        """Where the blocks with *first_id* to *last_id* lie, in order; there may be none of some ids."""
        ...


def cover(locations: Sequence[BlockLocation], first_id: int, last_id: int) -> bool:
    """Whether *locations* hold every id from *first_id* to *last_id*."""
    expected = first_id
    for location in locations:
        if location.first_id > expected:
            return False
        expected = max(expected, location.last_id + 1)
    return expected > last_id
