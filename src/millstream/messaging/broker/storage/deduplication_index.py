"""Which messages a topic has stored already, by the ids that their producers gave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Name = bytes

DEDUPLICATION_WINDOW: Final = 65_536
"""At least so many of a topic's last messages are remembered by id: one that is sent again is not stored again."""


class DeduplicationIndex:
    """The numbers of at least the *count* last messages that were noted, by name; of twice as many at most.

    Names are noted in two generations: when the younger one is full, the older one is forgotten at once.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._young: dict[Name, int] = {}
        self._old: dict[Name, int] = {}

    def get(self, name: Name) -> int | None:
        """The number that was noted for *name*."""
        found = self._young.get(name)
        return self._old.get(name) if found is None else found

    def contains_none(self, names: Iterable[Name]) -> bool:
        """Whether none of *names* was noted."""
        return self._young.keys().isdisjoint(names) and self._old.keys().isdisjoint(names)

    def add(self, names: Sequence[Name], numbers: Sequence[int]) -> None:
        """*names* have these *numbers*; an empty name is not a name."""
        self._young.update(zip(names, numbers, strict=True))
        self._young.pop(b"", None)
        if len(self._young) >= self._count:
            self._old, self._young = self._young, {}

    def discard_after(self, last: int) -> None:
        """Numbers above *last* do not count."""
        for generation in (self._young, self._old):
            for name in [name for name, number in generation.items() if number > last]:
                del generation[name]
