"""Batching that depends on the records alone: the same batches for any arrival order, any chunks and any restarts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from millstream.batching.accept import acceptance
from millstream.batching.config import BatchConfig
from millstream.batching.cut import OpenBatch, Piece
from millstream.batching.engine import EngineState, OpenState, SourceState
from millstream.batching.errors import BoundBrokenError, FlushedError
from millstream.batching.event import Event, EventBatch, Outcome, Reject, Row
from millstream.batching.identity import name_batch

_IDLE = 1 << 65  # a due time that never comes: above every clock


class _Source:
    """One source: its open batch, the rows not yet in it, and the clock at which there is something to do."""

    __slots__ = ("due", "open", "pending")

    def __init__(self, open_batch: OpenBatch, pending: list[Row]) -> None:
        self.open = open_batch
        self.pending = pending
        self.due = _IDLE


class OrderFree:
    """The order-free engine (reference "batching", §6).

    Accepted rows wait in their source's ``pending`` until the clock says that no earlier one can come. A heap of due
    times finds the sources that have something to settle, so that quiet sources cost nothing.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._refusal = acceptance(config)
        self._midpoint = config.conflict_cut == "midpoint"
        self._sources: dict[str, _Source] = {}
        self._heap: list[tuple[int, str]] = []
        self._clock: int | None = None
        self._flushed = False

    @property
    def clock(self) -> int | None:
        """The time (receive time) below which the caller has declared everything received; None at first."""
        return self._clock

    def receive(self, events: Sequence[Event]) -> Outcome:
        """Take *events* in any order. All are taken or, where one breaks an earlier bound, none."""
        self._check_open()
        self._check_bound(events)
        outcome = Outcome([], [])
        refusal, grace = self._refusal, self._config.max_delay + self._midpoint
        sources = self._sources
        for event in events:
            time, received_at = event.event_time, event.received_at
            reason = refusal(time, received_at)
            if reason is not None:
                outcome.rejects.append(Reject(event.id, reason))
                continue
            source = sources.get(event.source) or self._add(event.source)
            source.pending.append((time, event.key, event.digest, received_at, event.id))
            if time + grace < source.due:
                source.due = time + grace
                heapq.heappush(self._heap, (source.due, event.source))
        self._settle(outcome)
        return outcome

    def advance(self, bound: int) -> Outcome:
        """Settle all that is certain now that no later record, of any source, has ``received_at`` below *bound*."""
        self._check_open()
        if self._clock is None or bound > self._clock:
            self._clock = bound
        outcome = Outcome([], [])
        self._settle(outcome)
        return outcome

    def flush(self) -> Outcome:
        """Close all that is open; the stream has ended and nothing can be received after it."""
        outcome = Outcome([], [])
        for name, source in self._sources.items():
            source.pending.sort()
            pieces, rejects = source.open.finish(source.pending)
            outcome.rejects.extend(rejects)
            outcome.batches.extend(name_batch(self._config, name, piece.rows, None, piece.cut) for piece in pieces)
        outcome.batches.sort(key=_by_start)
        self._sources.clear()
        self._heap.clear()
        self._flushed = True
        return outcome

    def dump(self) -> EngineState:
        """The engine's memory: open batches and pending rows."""
        sources = [
            SourceState(name, [OpenState(source.open.rows)], sorted(source.pending))
            for name, source in sorted(self._sources.items())
        ]
        return EngineState(self._clock, self._flushed, sources)

    def load(self, state: EngineState) -> None:
        """Go on from *state*."""
        self._clock, self._flushed = state.clock, state.flushed
        for entry in state.sources:
            rows = [row for batch in entry.open for row in batch.rows]
            source = _Source(self._open(rows), list(entry.pending))
            self._sources[entry.source] = source
            self._schedule(entry.source, source)

    def _open(self, rows: Sequence[Row] = ()) -> OpenBatch:
        return OpenBatch(self._config.window, midpoint=self._midpoint, rows=rows)

    def _add(self, name: str) -> _Source:
        source = self._sources[name] = _Source(self._open(), [])
        return source

    def _check_open(self) -> None:
        if self._flushed:
            raise FlushedError

    def _check_bound(self, events: Sequence[Event]) -> None:
        clock = self._clock
        if clock is None:
            return
        for event in events:
            if event.received_at < clock:
                raise BoundBrokenError(
                    f"record {event.id} of source {event.source!r} was received at {event.received_at}, but the clock "
                    f"stands at {clock}: advance only to a time that no later record was received before"
                )

    def _settle(self, outcome: Outcome) -> None:
        clock, heap = self._clock, self._heap
        if clock is None or not heap or heap[0][0] > clock:
            return
        while heap and heap[0][0] <= clock:
            due, name = heapq.heappop(heap)
            source = self._sources.get(name)
            if source is not None and source.due == due:
                self._settle_source(name, source, clock, outcome)
        outcome.batches.sort(key=_by_close)

    def _settle_source(self, name: str, source: _Source, clock: int, outcome: Outcome) -> None:
        source.pending.sort()
        pieces, rejects = source.open.settle(source.pending, clock - self._config.max_delay)
        outcome.rejects.extend(rejects)
        outcome.batches.extend(self._close(name, piece) for piece in pieces)
        self._schedule(name, source)

    def _close(self, name: str, piece: Piece) -> EventBatch:
        return name_batch(self._config, name, piece.rows, piece.decided + self._config.max_delay, piece.cut)

    def _schedule(self, name: str, source: _Source) -> None:
        """Note when there will be something to do for *source*; forget it where there never will be."""
        if not source.pending and not source.open.rows:
            del self._sources[name]
            return
        delay, due = self._config.max_delay, _IDLE
        if source.pending:
            time = source.pending[0][0]
            looked_at = self._clock is not None and time <= self._clock - delay
            due = time + delay + (self._midpoint or looked_at)
        if source.open.rows:
            due = min(due, source.open.full_at + delay)
        source.due = due
        heapq.heappush(self._heap, (due, name))


def _by_close(batch: EventBatch) -> tuple[int, str, int]:
    assert batch.closed_at is not None
    return batch.closed_at, batch.source, batch.start


def _by_start(batch: EventBatch) -> tuple[int, str]:
    return batch.start, batch.source
