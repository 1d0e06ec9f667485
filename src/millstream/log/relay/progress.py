"""How far an outbox was moved: the number of the last batch, and the rows of it while they are in the table still."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from millstream.log.ids import IdRange


class RelayProgress(msgspec.Struct, frozen=True):
    """``outbox`` names the outbox for ever (it is a producer of the log); ``target`` is the log that it goes to.

    ``number`` counts the batches, and is the sequence under which the log has each of them. ``rows`` are those of the
    last batch: they were handed to the log, or are about to be, and are taken out of the table next.
    """

    outbox: str
    target: str
    number: int = 0
    rows: tuple[IdRange, ...] = ()

    @property
    def producer(self) -> str:
        """The producer name of the relay in the log."""
        return f"outbox/{self.outbox}"


def runs(ids: Sequence[int]) -> tuple[IdRange, ...]:
    """*ids*, which rise, as ranges that have no other id in them: one may be of a row that no process can see yet."""
    groups = itertools.groupby(enumerate(ids), lambda pair: pair[1] - pair[0])
    found = ([number for _, number in group] for _, group in groups)
    return tuple(IdRange(run[0], run[-1]) for run in found)


def each_id(rows: Sequence[IdRange]) -> Iterator[int]:
    """The ids in *rows*, in order."""
    return itertools.chain.from_iterable(rows)


def encode_rows(rows: Sequence[IdRange]) -> str:
    """*rows* as text, for a column: ``1:500,502``."""
    return ",".join(f"{run.first}:{run.last}" if len(run) > 1 else str(run.first) for run in rows)


def decode_rows(text: str) -> tuple[IdRange, ...]:
    """The rows in *text*."""
    pairs = (part.partition(":") for part in text.split(",") if part)
    return tuple(IdRange(int(first), int(last or first)) for first, _, last in pairs)
