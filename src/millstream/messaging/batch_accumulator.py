"""Which of the items that wait go together, and when: the rules of batching, without I/O, clock or threads.

:class:`~millstream.messaging.async_batcher.AsyncBatcher` runs them on an event loop.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

Item = TypeVar("Item")


class BatchingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a batch may be (an item that is larger goes alone), and how many batches may be in flight.

    With ``lingers`` a batch that is not full waits until it is due; otherwise it goes as soon as a slot is free. It
    also waits while ``max_partial`` batches are in flight: what comes meanwhile fills it.
    """

    max_in_flight: int
    max_partial: int = sys.maxsize
    max_items: int = sys.maxsize
    max_bytes: int = sys.maxsize
    lingers: bool = False


class Slot:
    """The right to have one batch in flight at a time; ``is_loaded`` while a batch is."""

    __slots__ = ("is_loaded",)

    def __init__(self) -> None:
        self.is_loaded = False


class BatchAccumulator(Generic[Item]):
    """Items in the order in which they came, and the slots in which batches of them are in flight.

    The task with a slot takes a batch, finishes it, takes the next one, and releases the slot when none is left.
    """

    def __init__(self, limits: BatchingLimits) -> None:
        self._limits = limits
        self._waiting: deque[tuple[Item, int, int]] = deque()
        self._items = 0
        self._bytes = 0
        self._is_due = False
        self._slots = 0
        self._free = 0  # slots that are about to take a batch

    @property
    def waiting(self) -> list[Item]:
        """The items that are in no batch yet."""
        return [item for item, _, _ in self._waiting]

    @property
    def items(self) -> int:
        """The number of items that wait, as :meth:`add` counts them."""
        return self._items

    @property
    def is_empty(self) -> bool:
        """Whether no item waits."""
        return not self._waiting

    @property
    def is_idle(self) -> bool:
        """Whether no item waits and no slot is held."""
        return not self._waiting and not self._slots

    @property
    def needs_slot(self) -> bool:
        """Whether a batch may go for which no slot is held yet."""
        if not self._waiting or self._slots >= self._max_slots:
            return False
        if not self._free:
            return self._may_go
        ahead = self._free + 1
        return self._items >= ahead * self._limits.max_items or self._bytes >= ahead * self._limits.max_bytes

    def add(self, item: Item, *, count: int = 1, size: int = 0) -> None:
        """*item* waits; it counts as *count* items and *size* bytes."""
        self._waiting.append((item, count, size))
        self._items += count
        self._bytes += size

    def make_due(self) -> None:
        """Send the waiting items without further lingering."""
        self._is_due = bool(self._waiting)

    def reserve(self) -> Slot:
        """A slot for one more batch; ask :attr:`needs_slot` first."""
        self._slots += 1
        self._free += 1
        return Slot()

    def reserve_alone(self) -> Slot | None:
        """A slot for a batch of an item that need not wait; None where others wait or all slots are held."""
        if self._waiting or self._limits.lingers or self._slots >= self._max_slots:
            return None
        slot = self.reserve()
        self._load(slot)
        return slot

    def take(self, slot: Slot, is_wanted: Callable[[Item], bool] | None = None) -> list[Item]:
        """The next batch, in flight in *slot* until :meth:`finish`; empty where none may go now.

        Items that are not wanted any more, as *is_wanted* says, are dropped.
        """
        batch: list[Item] = []
        if self._waiting and self._may_go and self._slots <= self._max_slots:
            items = size = 0
            while self._waiting and items < self._limits.max_items:
                item, count, length = self._waiting[0]
                if batch and size + length > self._limits.max_bytes:
                    break
                self._waiting.popleft()
                self._items -= count
                self._bytes -= length
                if is_wanted is None or is_wanted(item):
                    batch.append(item)
                    items += count
                    size += length
            self._is_due = self._is_due and bool(self._waiting)
        if batch:
            self._load(slot)
        return batch

    def finish(self, slot: Slot) -> None:
        """The batch of *slot* is no longer in flight."""
        if slot.is_loaded:
            slot.is_loaded = False
            self._free += 1

    def release(self, slot: Slot) -> None:
        """Give *slot* up."""
        self.finish(slot)
        self._free -= 1
        self._slots -= 1

    def clear(self) -> list[Item]:
        """The items that waited; none waits any longer."""
        waiting = self.waiting
        self._waiting.clear()
        self._items = self._bytes = 0
        self._is_due = False
        return waiting

    @property
    def _is_full(self) -> bool:
        return self._items >= self._limits.max_items or self._bytes >= self._limits.max_bytes

    @property
    def _may_go(self) -> bool:
        return self._is_full or self._is_due or not self._limits.lingers

    @property
    def _max_slots(self) -> int:
        """How many slots may be held when the next batch goes."""
        limits = self._limits
        return limits.max_in_flight if self._is_full else min(limits.max_in_flight, limits.max_partial)

    def _load(self, slot: Slot) -> None:
        slot.is_loaded = True
        self._free -= 1
