"""The target of sealed objects of a log, and the rules for moving blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from millstream.log.backend import BlockStatistics
from millstream.log.errors import LogInputError

MIN_COMMITS = 10
"""A log is compacted after so many commits at least: fewer cost as much as the compaction."""


class TieringResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the number of ``objects`` with ``messages`` and ``bytes``, and what the store freed."""

    log: str
    objects: int = 0
    messages: int = 0
    bytes: int = 0
    freed_bytes: int = 0

    @classmethod
    def of(cls, log: str, sums: Iterable[BlockStatistics], freed_bytes: int) -> Self:
        """The result of a run whose objects add up to *sums*, one for each."""
        each = list(sums)
        return cls(
            log=log,
            objects=len(each),
            messages=sum(one.count for one in each),
            bytes=sum(one.bytes for one in each),
            freed_bytes=freed_bytes,
        )


class Compaction(msgspec.Struct, frozen=True):
    """The rule for merging commits of a log in a bucket into sealed objects in that bucket.

    As soon as there are ``commits`` commits, or ``bytes`` bytes of blocks, all but the newest few are. An object has
    ``bytes`` bytes at most, unless a single block has more. Raises :class:`LogInputError`.
    """

    commits: int = 500
    bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.commits < MIN_COMMITS:
            raise LogInputError(f"commits of a Compaction must be at least {MIN_COMMITS}, not {self.commits}")


class Tiering(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules by which older messages of a log are moved to an object store.

    Objects of about ``segment_bytes`` bytes are written to ``url``, under names that begin with ``folder`` (set by the
    log), as soon as that many bytes are older than ``keep_age`` microseconds and not among the newest ``keep_bytes``.
    With ``parquet`` the messages of each object are also written as a Parquet file.
    """

    url: str
    segment_bytes: int = 128 << 20
    keep_age: int | None = None
    keep_bytes: int | None = None
    parquet: bool = False
    folder: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= 4 << 30:
            raise LogInputError(f"segment_bytes must be 1 byte to 4 GiB, not {self.segment_bytes:,} bytes")


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed objects of a log: their number, the bytes of all of them, and the ids they hold."""

    url: str
    objects: int
    bytes: int
    first_id: int
    last_id: int
