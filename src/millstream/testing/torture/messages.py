"""The messages of a torture: each says which writer sent it, where it stands in its pack, and how long that is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class PackPosition(msgspec.Struct, frozen=True):
    """Message ``n`` (from 0) of the ``count`` messages of pack ``turn``, of one thread of the process ``run``.

    Thread 0 sends with sequences.
    """

    run: int
    thread: int
    turn: int
    n: int
    count: int

    @property
    def is_last(self) -> bool:
        """Whether its pack ends here."""
        return self.n == self.count - 1


def body(place: PackPosition) -> bytes:
    """The message of *place*: its numbers, and a filling whose length and bytes follow from them."""
    numbers = b"%d %d %d %d %d " % msgspec.structs.astuple(place)
    return numbers + bytes([place.turn % 256]) * (place.turn * 31 % 200)


def parse(found: bytes) -> PackPosition | None:
    """The place that *found* says it has; None where these bytes were never sent."""
    try:
        run, thread, turn, n, count = map(int, found.split(b" ", 5)[:5])
    except ValueError:
        return None
    place = PackPosition(run, thread, turn, n, count)
    return place if body(place) == found else None


def pack(run: int, thread: int, turn: int, count: int) -> Sequence[bytes]:
    """The messages of one pack."""
    return [body(PackPosition(run, thread, turn, n, count)) for n in range(count)]
