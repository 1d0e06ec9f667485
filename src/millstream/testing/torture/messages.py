"""The messages of a torture: each says which writer sent it, and where it stands in its pack."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class PackPosition(msgspec.Struct, frozen=True):
    """Message number ``n`` of pack ``turn`` of one thread of the process ``run``. Thread 0 sends with sequences."""

    run: int
    thread: int
    turn: int
    n: int


def body(place: PackPosition) -> bytes:
    """The message of *place*: its numbers, and a filling whose length and bytes follow from them."""
    numbers = b"%d %d %d %d " % (place.run, place.thread, place.turn, place.n)
    return numbers + bytes([place.turn % 256]) * (place.turn * 31 % 200)


def parse(found: bytes) -> PackPosition | None:
    """The place that *found* says it has; None where these bytes were never sent."""
    try:
        run, thread, turn, n = map(int, found.split(b" ", 4)[:4])
    except ValueError:
        return None
    place = PackPosition(run, thread, turn, n)
    return place if body(place) == found else None


def pack(run: int, thread: int, turn: int, count: int) -> Sequence[bytes]:
    """The messages of one pack."""
    return [body(PackPosition(run, thread, turn, n)) for n in range(count)]
