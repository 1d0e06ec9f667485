"""What must hold after a process was killed. Each check yields what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millstream.log import Log, LogError
from millstream.testing.torture.messages import PackPosition, pack, parse
from millstream.testing.torture.plan import WINDOW_SECONDS


class ConfirmedPack(msgspec.Struct, frozen=True):
    """A pack that a writer was told is durable."""

    run: int
    thread: int
    turn: int
    first: int
    last: int


def read_confirmed(run: int, lines: Sequence[str]) -> list[ConfirmedPack]:
    """The packs that the writer *run* has printed."""
    return [ConfirmedPack(run, *map(int, line.split())) for line in lines if not line.startswith("ready")]


def check_confirmed(log: Log, confirmed: Sequence[ConfirmedPack]) -> Iterator[str]:
    """Every confirmed pack is stored under its ids."""
    for one in confirmed:
        try:
            found = [message.body for batch in log.read(one.first, one.last) for message in batch]
        except LogError as error:
            yield f"a confirmed pack cannot be read: {error}"
            continue
        if found != pack(one.run, one.thread, one.turn, one.last - one.first + 1):
            yield f"ids {one.first} to {one.last} were confirmed to {one} and are not what it sent"


class OrderCheck:
    """Goes through a log from its beginning, a part after each kill: packs are whole, each once, and in order."""

    def __init__(self) -> None:
        self.checked = 0
        self._before: PackPosition | None = None
        self._turns: dict[tuple[int, int], int] = {}

    def check(self, log: Log) -> Iterator[str]:
        """All that was stored since the last call, when no writer is at work; reading it compares every checksum."""
        try:
            for batch in log.read(self.checked + 1):
                for message in batch:
                    yield from self._next(message.id, message.body)
                self.checked = batch.last_id
        except LogError as error:
            yield f"the log cannot be read: {error}"
            return
        if self._before is not None and not self._before.is_last:
            yield f"the log ends with {self._before}: a pack is not whole"

    @property
    def sequence(self) -> int:
        """The last sequence that was found."""
        return self._turns.get((0, 0), 0)

    def _next(self, number: int, found: bytes) -> Iterator[str]:
        place = parse(found)
        before, self._before = self._before, place
        if place is None:
            yield f"id {number} holds what nobody sent: {found[:60]!r}"
        elif place.n == 0:
            if before is not None and not before.is_last:
                yield f"id {number} is {place}, after {before}: a pack is not whole"
            yield from self._begin(number, place)
        elif before != msgspec.structs.replace(place, n=place.n - 1):
            yield f"id {number} is {place}, after {before}: a pack is not whole"

    def _begin(self, number: int, place: PackPosition) -> Iterator[str]:
        sender = (place.run, place.thread) if place.thread else (0, 0)  # sequences continue from writer to writer
        expected = self._turns.get(sender, 0) + 1
        if place.turn != expected:
            yield f"id {number} begins pack {place.turn} of {place}, where pack {expected} is due"
        self._turns[sender] = place.turn


class ReaderDelivery(msgspec.Struct, frozen=True):
    """What a reader has printed before it was killed at *killed_at* (seconds), having begun after *pointer*."""

    pointer: int
    lines: Sequence[str]
    killed_at: float

    @property
    def given(self) -> list[tuple[int, int]]:
        """The first and the last id of each batch that it was given."""
        words = [line.split() for line in self.lines]
        return [(int(word[1]), int(word[2])) for word in words if word[0] == "given"]

    @property
    def last_given(self) -> int:
        """The last id that it was given; where it began, if it was given none."""
        return max([self.pointer, *(last for _, last in self.given)])

    @property
    def acknowledged_in_time(self) -> int:
        """The last id that it acknowledged longer ago than the window."""
        words = [line.split() for line in self.lines]
        acked = [
            int(word[1]) for word in words if word[0] == "acked" and self.killed_at - float(word[2]) > WINDOW_SECONDS
        ]
        return max([0, *acked])


def check_delivery(delivery: ReaderDelivery, pointer: int, *, server_was_away: bool) -> Iterator[str]:
    """A reader got every id in order, and *pointer*, which it has left, is one that it acknowledged."""
    expected = delivery.pointer + 1
    for first, last in delivery.given:
        if first != expected:
            yield f"a reader was given ids {first} to {last} where {expected} was next"
        expected = last + 1
    if pointer > delivery.last_given:
        yield f"the pointer is {pointer}, but its reader was given ids up to {delivery.last_given}"
    if pointer < delivery.acknowledged_in_time and not server_was_away:
        acked = delivery.acknowledged_in_time
        yield f"id {acked} was acknowledged longer ago than the window, and the pointer is {pointer}"
