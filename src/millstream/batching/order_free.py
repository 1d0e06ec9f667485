"""Batching that depends on the records alone: the same batches for any arrival order, any chunks and any restarts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from millstream.batching.batch_config import BatchConfig
from millstream.batching.engine import EngineState, OpenState, SourceState
from millstream.batching.errors import BoundBrokenError, FlushedError
from millstream.batching.event import BatcherOutput, CutReason, Event, EventBatch, Reject, Row
from millstream.batching.identity import make_batch
from millstream.batching.lateness import lateness_rule
from millstream.batching.source_buffer import SourceBuffer, SourceRules

Naming = Callable[[str, Sequence[Row], int | None, CutReason], EventBatch]
"""Makes a batch of its source, rows, closing time and cut."""


class OrderFreeEngine:
    """The order-free engine (reference "batching", §6).

    Accepted rows wait with their source until the clock says that no earlier one can come. A heap of due times finds
    the sources that may have a batch to close, so that quiet sources cost nothing. *name* makes the batches; without it
    they are named under *config*.
    """

    def __init__(self, config: BatchConfig, name: Naming | None = None) -> None:
        self._config = config
        self._name = name or partial(make_batch, config)
        self._waits = SourceRules(config)
        self._refusal = lateness_rule(config)
        self._sources: dict[str, SourceBuffer] = {}
        self._heap: list[tuple[int, str]] = []
        self._clock: int | None = None
        self._flushed = False

    @property
    def clock(self) -> int | None:
        """The time (receive time) below which the caller has declared everything received; None at first."""
        return self._clock

    @property
    def due(self) -> int | None:
        """A clock before which nothing will be closed unless something is received; None where nothing is open."""
        heap, sources = self._heap, self._sources
        while heap and ((source := sources.get(heap[0][1])) is None or source.due != heap[0][0]):
            heapq.heappop(heap)  # the source has another due time by now, which is in the heap as well
        return heap[0][0] if heap else None

    @property
    def open_sources(self) -> int:
        """How many sources have records that are in no closed batch."""
        return len(self._sources)

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events* in any order. All are taken or, where one breaks an earlier bound, none."""
        self.check(events)
        outcome = BatcherOutput([], [])
        sources, heap = self._sources, self._heap
        max_delay, lead, capped = self._config.max_delay, self._config.lead, self._config.caps is not None
        for event in events:
            time, received_at = event.event_time, event.received_at
            if not received_at - max_delay <= time <= received_at + lead:  # few are refused: ask why only then
                reason = self._refusal(time, received_at)
                assert reason is not None
                outcome.rejects.append(Reject(event.id, reason))
                continue
            name, key = event.source, event.key
            source = sources.get(name)
            if source is None:
                source = sources[name] = SourceBuffer(self._waits)
            source.inbox.append((time, key, event.digest, received_at, event.id, event.size))
            if time > source.limit:
                continue
            if capped or key in source.keys or time < source.first:
                if source.seen_at(key, time, event.size):
                    heapq.heappush(heap, (source.due, name))
            else:  # most rows are seen to here: what they do to their source fits one line
                source.keys[key] = time
        self._settle(outcome)
        return outcome

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*, without taking any."""
        self._check_open()
        clock = self._clock
        if clock is None:
            return
        for event in events:
            if event.received_at < clock:
                raise BoundBrokenError(
                    f"record {event.id} of source {event.source!r} has the receive time {event.received_at}, but the "
                    f"batcher was already advanced to {clock}: advance the batcher only to times after which no "
                    "older record arrives"
                )

    def advance(self, bound: int) -> BatcherOutput:
        """Settle all that is certain now that no later record, of any source, has ``received_at`` below *bound*."""
        self._check_open()
        if self._clock is None or bound > self._clock:
            self._clock = bound
        outcome = BatcherOutput([], [])
        self._settle(outcome)
        return outcome

    def flush(self) -> BatcherOutput:
        """Close all that is open; the stream has ended and nothing can be received after it."""
        outcome = BatcherOutput([], [])
        for name, source in self._sources.items():
            pieces, rejects = source.finish()
            outcome.rejects.extend(rejects)
            outcome.batches.extend(self._name(name, piece.rows, None, piece.cut) for piece in pieces)
        outcome.batches.sort(key=by_start)
        self._sources.clear()
        self._heap.clear()
        self._flushed = True
        return outcome

    def dump(self) -> EngineState:
        """The engine's memory: open batches and pending rows."""
        for source in self._sources.values():
            source.merge()
        sources = [
            SourceState(name, [OpenState(source.open.rows if source.open else [])], source.pending)
            for name, source in sorted(self._sources.items())
        ]
        return EngineState(self._clock, self._flushed, sources)

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        self._clock, self._flushed = state.clock, state.flushed
        for entry in state.sources:
            rows = [row for batch in entry.open for row in batch.rows]
            source = self._sources[entry.source] = SourceBuffer(self._waits, rows, entry.pending)
            heapq.heappush(self._heap, (source.due, entry.source))

    def _check_open(self) -> None:
        if self._flushed:
            raise FlushedError

    def _settle(self, outcome: BatcherOutput) -> None:
        clock, heap = self._clock, self._heap
        if clock is None or not heap or heap[0][0] > clock:
            return
        while heap and heap[0][0] <= clock:
            due, name = heapq.heappop(heap)
            source = self._sources.get(name)
            if source is not None and source.due == due:
                self._settle_source(name, source, clock, outcome)
        outcome.batches.sort(key=by_close)

    def _settle_source(self, name: str, source: SourceBuffer, clock: int, outcome: BatcherOutput) -> None:
        pieces, rejects = source.settle(clock)
        outcome.rejects.extend(rejects)
        wait = self._waits.max_delay
        outcome.batches.extend([self._name(name, rows, decided + wait, cut) for rows, cut, decided in pieces])
        if source.is_empty:
            del self._sources[name]
        else:
            heapq.heappush(self._heap, (source.due, name))


by_close = attrgetter("closed_at", "source", "start")
"""The order in which batches come out while a stream continues; at its end it is :data:`by_start`."""
by_start = attrgetter("start", "source")
