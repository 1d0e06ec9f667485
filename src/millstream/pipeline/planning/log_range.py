"""A range of a log, as jobs are asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.clock import Clock
from millstream.log import Log, LogInfo, LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.stores.tiers import open_log_store


class LogRange(msgspec.Struct, frozen=True):
    """Messages *first_id* to *last_id* of *log*, received between *received_from* and *received_to*.

    Both times are within the numbers of JSON: what was received beyond them is in no batch.
    """

    log: str
    first_id: int
    last_id: int
    received_from: int
    received_to: int

    @property
    def count(self) -> int:
        """How many messages that are."""
        return self.last_id - self.first_id + 1


def sampled_ids(wanted: LogRange, numbers: Iterable[int], places: int, rows: int) -> Iterator[tuple[int, int]]:
    """The first and the last id of *rows* messages at those with *numbers* of evenly spaced *places* of *wanted*.

    Where the range is shorter, all places together are all of its messages.
    """
    for number in numbers:
        first, following = (wanted.first_id + place * wanted.count // places for place in (number, number + 1))
        if first < following:
            yield first, min(following, first + rows) - 1


def plan_range(store_url: str, log: str, first_id: int | None, last_id: int | None, clock: Clock) -> LogRange:
    """The messages of *log* from *first_id* to *last_id* (None: what it has). Raises :class:`PipelineInputError`."""
    with open_log_store(store_url, clock=clock, create=False) as store:
        opened = store.log(LogSpec(log), create=False)
        info = opened.info()
        last_id = info.last_id if last_id is None else min(last_id, info.last_id)
        begin = info.first_id if first_id is None else first_id
        if begin < info.first_id:
            raise PipelineInputError(
                f"cannot start at id {begin}: log {log!r} was trimmed and begins at id {info.first_id}; start at that "
                "id or a later one"
            )
        if last_id < begin:
            what = f"up to {last_id}" if first_id is None else f"from {begin} to {last_id}"
            is_empty = info.last_id < info.first_id
            remedy = "append some first" if is_empty else f"choose ids of {info.first_id} to {info.last_id}"
            raise PipelineInputError(f"log {log!r} has no messages {what}: {remedy}")
        times = _receive_times(opened, info, begin, last_id)
        received_from, received_to = (max(min(time, MAX_SAFE_INTEGER), -MAX_SAFE_INTEGER) for time in times)
        return LogRange(log, begin, last_id, received_from, received_to)


def _receive_times(log: Log, info: LogInfo, first_id: int, last_id: int) -> tuple[int, int]:
    """The first and the last receive time of the range: a function of it alone, whatever came after it."""
    known = info.min_received_at is not None and info.max_received_at is not None
    if known and (first_id, last_id) == (info.first_id, info.last_id):
        assert info.min_received_at is not None
        assert info.max_received_at is not None
        return info.min_received_at, info.max_received_at
    spans = list(log.receive_times(first_id, last_id))
    return min(low for low, _ in spans), max(high for _, high in spans)
