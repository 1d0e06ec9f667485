"""The seam between the work of the benchmark and those who do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

Part: TypeAlias = tuple[Sequence[int], Sequence[bytes]]
"""Ids and bodies, message by message."""


class QueueLocation(msgspec.Struct, frozen=True):
    """Where a contender works: its name, the URL or folder of its store, the name of its queue there.

    Each request to a bucket takes ``latency`` seconds longer.
    """

    contender: str
    url: str
    queue: str
    latency: float = 0.0


class QueueSender(Protocol):
    """Writes to one queue. Both ways of appending return the first id once all of it is durable."""

    def append(self, bodies: Sequence[bytes]) -> int: ...

    async def append_async(self, bodies: Sequence[bytes]) -> int: ...

    def close(self) -> None: ...


class QueueReceiver(Protocol):
    """Reads one queue from its beginning."""

    def follow(self, total: int) -> Iterator[Part]:
        """The first *total* messages in order, as they come in, acknowledged part by part."""
        ...

    def close(self) -> None: ...
