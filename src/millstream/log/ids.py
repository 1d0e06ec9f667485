"""Ranges of message ids."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_ID = 2**63 - 1
"""The largest id that a message can have."""


class IdRange(msgspec.Struct, frozen=True, order=True, gc=False):
    """The ids from ``first`` to ``last``, both included; empty where ``last`` is less."""

    first: int
    last: int

    def __len__(self) -> int:
        return max(self.last - self.first + 1, 0)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last


class BlockRange(msgspec.Struct, frozen=True, gc=False):
    """The ids of one stored block and how many bytes it takes in the store."""

    first_id: int
    last_id: int
    bytes: int


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """The index entry of a block, by which a store finds blocks and computes totals. Times are microseconds.

    ``epoch`` is None where the store does not keep it there.
    """

    first_id: int
    last_id: int
    bytes: int
    min_event_time: int
    max_event_time: int
    min_received_at: int
    max_received_at: int
    epoch: int | None = None
