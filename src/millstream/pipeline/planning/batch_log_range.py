"""Which part of a log of batches bears on a range of the log that was batched.

Commits of a log of batches are in order of the clock, and each holds its batches by closing time and then its rejects
(``docs/formats/batch-log.md``). So closing times ascend, and a few looks find where those of a range begin and end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from millstream.core.decoding import prepared
from millstream.log import Log
from millstream.pipeline.planning.log_range import LogRange


class _Body(msgspec.Struct, frozen=True):
    """The part of a message of a log of batches that is read: only a batch has a closing time."""

    closed_at: int | None = None


_decoder = msgspec.json.Decoder(prepared(_Body))


def find_batch_log_range(output: Log, wanted: LogRange) -> tuple[int, int]:
    """The ids of *output* between which all lies that came of *wanted*, and little else; none where the second is less.

    That is all batches that were closed after its first receipt and up to its last one, and all rejects of its messages
    that came out in the commits of these.
    """
    first_id, last_id = (_after_closed(output, clock) for clock in (wanted.received_from, wanted.received_to))
    return first_id, _end_of_commit(output, last_id)


def last_received(log: Log, wanted: LogRange, clock: int) -> int:
    """The last id of *wanted*, a range in order of receipt, that was received at *clock* or before; 0 for none."""
    ids = range(wanted.first_id, wanted.last_id + 1)
    place = bisect_left(ids, True, key=lambda number: _received(log, number) > clock)
    return ids[place - 1] if place else 0


def _received(log: Log, number: int) -> int:
    (batch,) = log.read(number, number, ["received_at"], gaps="none")
    received_at: int = batch.arrow.column("received_at")[0].as_py()
    return received_at


def _after_closed(output: Log, clock: int) -> int:
    """The id after the last batch that was closed at *clock* or before."""
    ids = range(output.first_id, output.last_id + 1)

    def later(number: int) -> bool:
        closed = next((closed_at for _, closed_at in _from(output, number) if closed_at is not None), None)
        return closed is None or closed > clock

    return output.first_id + bisect_left(ids, True, key=later)


def _end_of_commit(output: Log, first_id: int) -> int:
    """The last id of the commit that comes next at *first_id*: rejects before it, its batches, its rejects."""
    batches = False
    last_id, ended = first_id - 1, False
    for number, closed_at in _from(output, first_id):
        ended = ended or (batches and closed_at is None)
        if ended and closed_at is not None:
            break
        batches = batches or closed_at is not None
        last_id = number
    return last_id


def _from(output: Log, first_id: int) -> Iterator[tuple[int, int | None]]:
    """Id and closing time of the messages of *output* from *first_id* on; a reject has no such time."""
    for batch in output.read(first_id, None, ["id", "body"], gaps="none"):
        for number, body in zip(*(batch.arrow.column(name).to_pylist() for name in ("id", "body")), strict=True):
            yield number, _closing_time(body)


def _closing_time(body: bytes) -> int | None:
    """That of a batch; None for a refused message, and for what is neither: the job names it."""
    try:
        return _decoder.decode(body).closed_at
    except msgspec.DecodeError:
        return None
