"""The traces of messages on their way through batches to an anchor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.anchoring.index import AnchorIndex
from millstream.batching import EventBatch
from millstream.core import tracing
from millstream.core.clock import Clock, SystemClock
from millstream.log import Log

TRACE_HEADERS = frozenset({tracing.HEADER, "mq:trace"})
"""The headers that a trace may be in: ours, and what the broker makes of the field of the protocol."""

MAX_WAITING = 10_000
"""Traced messages that are remembered until their batch is anchored; the oldest are forgotten first."""


class TracedMessage(msgspec.Struct, frozen=True):
    """A message that is part of a trace, and the batch that it is in; ``since`` in microseconds."""

    log: str
    message: int
    batch: str
    trace: str
    since: int


class MessageTraces:
    """Adds two spans to the trace of each message: ``batch`` when its batch is handed over, ``anchor`` until it is in
    the ledger and was read back. *index* says where batches are anchored."""

    def __init__(self, index: AnchorIndex, clock: Clock | None = None) -> None:
        self._index, self._clock = index, clock or SystemClock()
        self._waiting: OrderedDict[tuple[str, int], TracedMessage] = OrderedDict()

    def batches_submitted(self, log: str, batches: Sequence[EventBatch], messages: pa.Table) -> None:
        """*batches* with these *messages* of *log* are in the batch writer's hands."""
        if not tracing.is_on():
            return
        batch_of = {number: batch for batch in batches for number in batch.events}
        for number, received_at, trace in _traced(messages):
            batch = batch_of[number]
            facts: dict[str, Any] = {"log": log, "message": number, "batch": batch.batch, "cut": str(batch.cut)}
            with tracing.span("batch", parent=trace, began=received_at, **facts) as own:
                self._waiting[log, number] = TracedMessage(log, number, batch.batch, own or trace, self._clock.now())
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    def cut(self) -> None:
        """Some batches may be anchored now: add this to the traces of their messages."""
        for key, one in list(self._waiting.items()):
            for place in self._index.find_batch(one.log, one.batch)[:1]:
                facts: dict[str, Any] = {
                    "log": one.log,
                    "message": one.message,
                    "batch": one.batch,
                    "anchor": place.number,
                }
                with tracing.span("anchor", parent=one.trace, began=one.since, file=place.uri, **facts):
                    del self._waiting[key]


def trace_history(index: AnchorIndex, log: Log, first_id: int, last_id: int, *, after: int, began: int) -> int:
    """Add the span ``anchor`` to the traces of those messages of *log*, of these ids, that anchors behind the entry
    *after* hold, since *began* (microseconds); of :data:`MAX_WAITING` messages at most. Returns of how many.

    A job over history hands batches over by the ten thousand, so it looks for traces once, at its end.
    """
    if not tracing.is_on():
        return 0
    found = 0
    for part in log.read(first_id, last_id, columns=["id", "received_at", "headers"], gaps="none"):
        for number, _, trace in _traced(pa.Table.from_batches([part.arrow])):
            place = index.locate(log.name, number)
            if place is None or place.number <= after:
                continue
            facts: dict[str, Any] = {"log": log.name, "message": number, "batch": place.batch, "anchor": place.number}
            with tracing.span("anchor", parent=trace, began=began, file=place.uri, **facts):
                found += 1
            if found == MAX_WAITING:
                return found
    return found


def _traced(messages: pa.Table) -> Iterator[tuple[int, int | None, str]]:
    """Id, time of receipt and trace of those of *messages* that have one."""
    some = messages.filter(pc.greater(pc.list_value_length(messages["headers"]), 0))
    columns = (some[name].to_pylist() for name in ("id", "received_at", "headers"))
    for number, received_at, headers in zip(*columns, strict=True):
        for header in headers:
            if header["name"] in TRACE_HEADERS:
                yield number, received_at, header["value"].decode("ascii", "replace")
                break
