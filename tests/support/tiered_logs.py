"""Logs with older blocks in an object store that can be made to fail, for tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from millstream.core.clock import VirtualClock
from millstream.log import Log, LogSpec
from millstream.log.tiering import TierObjects
from millstream.stores import MemoryStore, Store
from millstream.stores.tiers import SPACE, TierSpace
from millstream.stores.wrapper import StoreCall

SPEC = LogSpec("weather", compression="plain")
URL = "memory://tier"
"""Where the objects lie that :meth:`Cloud.open` opens."""


class Cloud:
    """An object store that several log stores share, and that can be made to fail."""

    def __init__(self) -> None:
        self.real = MemoryStore("tier")
        self.store: Store = self.real
        self.calls: list[StoreCall] = []

    def open(self, url: str) -> TierObjects:
        return TierSpace(Recorder(self)) if url == URL else TierSpace(MemoryStore("elsewhere"))

    def names(self) -> list[str]:
        return [entry.content_id for entry in self.real.entries(SPACE)] if self.real.has_space(SPACE) else []

    def change(self, name: str, change: Callable[[bytearray], None]) -> None:
        with self.real.open(SPACE, name) as source:
            data = bytearray(source.read())
        change(data)
        self.real.delete(SPACE, name)
        self.real.put(SPACE, name, io.BytesIO(bytes(data)))


class Recorder:
    """Passes every call on to the cloud's present store."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud.store, name)


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d %0150d" % (n, n) for n in range(first, last + 1)]


def fill(log: Log, count: int = 200, *, clock: VirtualClock | None = None) -> Log:
    """Blocks of ten messages, about 1.7 kB each."""
    with log.writer() as writer:
        for first in range(log.last_id + 1, log.last_id + count, 10):
            writer.append(bodies(first, first + 9))
            if clock is not None:
                clock.advance(86_400)
    return log


def ids_of(log: Log, first: int | None = None, last: int | None = None) -> list[int]:
    found = [message for batch in log.read(first, last) for message in batch]
    assert [message.body for message in found] == [b"%d %0150d" % (m.id, m.id) for m in found if m.id is not None]
    return [message.id for message in found if message.id is not None]
