"""Stores that go wrong on purpose: decorators over any :class:`millstream.stores.Store`.

Each fault takes *when*, which picks the calls that go wrong (all of them without it), so that one test can break one
item of one space. Faults can be stacked.
"""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from millstream.core.clock import Clock
from millstream.stores import Entry, Store, StoreUnavailableError, UnreadableError
from millstream.stores.protocol import item_not_found
from millstream.stores.wrapper import WRITES, Answer, StoreCall, StoreWrapper

When = Callable[[StoreCall], bool]


def always(_: StoreCall) -> bool:
    """Picks every call."""
    return True


class FaultyStore(StoreWrapper):
    """The store *store*, of which subclasses step in :meth:`before` or :meth:`after` those calls that *when* picks."""

    def __init__(self, store: Store, when: When = always) -> None:
        super().__init__(store)
        self.when = when

    def before(self, call: StoreCall) -> None:
        """Called before every call; what it raises is the outcome."""

    def after(self, call: StoreCall) -> None:
        """Called after every call that succeeded; what it raises is the outcome."""

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:
        self.before(call)
        answer = super().perform(call, act)
        self.after(call)
        return answer


class _Times:
    """Counts down, whoever asks."""

    def __init__(self, times: int | None) -> None:
        self._left = times
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0


class UnavailableStore(FaultyStore):
    """Does not answer the first *times* calls (every call with None)."""

    def __init__(self, store: Store, times: int | None = None, when: When = always) -> None:
        super().__init__(store, when)
        self._times = _Times(times)

    def before(self, call: StoreCall) -> None:
        if self.when(call) and self._times.take():
            raise StoreUnavailableError(f"{self.url} did not answer {call.method}; try again")


class ArchivingStore(FaultyStore):
    """Knows its items, and does not give out their bytes: they are in an archive."""

    def before(self, call: StoreCall) -> None:
        if call.method == "open" and self.when(call):
            raise UnreadableError(f"{call.content_id!r} in {self.url} is archived")


class LostReplyStore(FaultyStore):
    """Makes the first *times* changes, and fails as if it had not: the reply is lost."""

    def __init__(self, store: Store, times: int | None = None, when: When = always) -> None:
        super().__init__(store, when)
        self._times = _Times(times)

    def after(self, call: StoreCall) -> None:
        if call.method in WRITES and self.when(call) and self._times.take():
            raise StoreUnavailableError(f"the reply of {self.url} to {call.method} was lost; try again")


class SlowStore(FaultyStore):
    """Takes *seconds* a call, on *clock*."""

    def __init__(self, store: Store, clock: Clock, seconds: float, when: When = always) -> None:
        super().__init__(store, when)
        self._clock, self._seconds = clock, seconds

    def before(self, call: StoreCall) -> None:
        if self.when(call):
            self._clock.sleep(self._seconds)


class VanishingStore(FaultyStore):
    """Lists items that it then says do not exist."""

    def before(self, call: StoreCall) -> None:
        if call.method in ("info", "open") and self.when(call):
            raise item_not_found(call.content_id, call.space, self.url)


class StaleListingStore(FaultyStore):
    """Lists every space as it was when it was first listed, whatever has happened since."""

    def __init__(self, store: Store, when: When = always) -> None:
        super().__init__(store, when)
        self._listings: dict[str, Sequence[Entry]] = {}

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        if not self.when(StoreCall("entries", space)):
            return super().entries(space, prefix=prefix, after=after, limit=limit)
        if space not in self._listings:
            self._listings[space] = super().entries(space, limit=10**9)
        low, start = after.encode("utf-8"), prefix.encode("utf-8")
        keyed = ((entry.content_id.encode("utf-8"), entry) for entry in self._listings[space])
        return [entry for key, entry in keyed if key > low and key.startswith(start)][:limit]


class DamagingStore(FaultyStore):
    """Gives *damage* of an item's bytes and id in place of its bytes; listings and checksums stay as they are."""

    def __init__(self, store: Store, damage: Callable[[bytes, str], bytes], when: When = always) -> None:
        super().__init__(store, when)
        self._damage = damage

    def open(
        self, space: str, content_id: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BinaryIO]:
        if not self.when(StoreCall("open", space, content_id)):
            return super().open(space, content_id, start=start, length=length)
        with super().open(space, content_id) as source:
            damaged = self._damage(source.read(), content_id)
        return io.BytesIO(damaged[start:] if length is None else damaged[start : start + length])


def flips_bit(store: Store, when: When = always, *, seed: int = 0) -> DamagingStore:
    """*store*, but one bit of what is read is flipped; always the same one of an item, chosen by *seed*."""

    def damage(data: bytes, content_id: str) -> bytes:
        if not data:
            return data
        bit = random.Random(f"{seed}/{content_id}").randrange(8 * len(data))
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    return DamagingStore(store, damage, when)


def truncates(store: Store, when: When = always, *, share: float = 0.5) -> DamagingStore:
    """*store*, but only the first *share* (0 to 1, rounded down) of an item's bytes is read."""
    return DamagingStore(store, lambda data, _: data[: int(len(data) * share)], when)
