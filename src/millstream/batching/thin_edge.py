"""thin-edge's algorithm exactly as implemented (reference "batching", §1), including its dependence on arrival order.

It is the oracle for migrations and the peer in benchmarks. Receive times are the clock: timers due at or before a
record's ``received_at`` fire first. Borders are kept doubled, so midpoints are exact and no event is ever lost to
rounding (the original loses events whose times lie one clock tick apart).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from millstream.batching.batch_config import BatchConfig
from millstream.batching.engine import EngineState, OpenState, SourceState
from millstream.batching.event import BatcherOutput, CutReason, Event, EventBatch, Reject, Row
from millstream.batching.identity import make_batch
from millstream.batching.lateness import lateness_rule


class _Open:
    """An open batch: borders doubled, both inclusive; one row a key."""

    __slots__ = ("cut", "end2", "rows", "start2")

    def __init__(self, start2: int, end2: int, cut: CutReason, rows: dict[str, Row]) -> None:
        self.start2 = start2
        self.end2 = end2
        self.cut = cut
        self.rows = rows


class ThinEdgeEngine:
    """The faithful engine: open batches of each source in order of creation, and a heap of timers."""

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._refusal = lateness_rule(config)
        self._sources: dict[str, list[_Open]] = {}
        self._timers: list[tuple[int, str]] = []
        self._clock: int | None = None

    @property
    def clock(self) -> int | None:
        """The latest time (receive time) that was seen; None at first."""
        return self._clock

    @property
    def due(self) -> int | None:
        """The time of the next timer; None where there is none."""
        return self._timers[0][0] if self._timers else None

    @property
    def open_sources(self) -> int:
        """How many sources have open batches."""
        return sum(map(bool, self._sources.values()))

    def check(self, events: Sequence[Event]) -> None:
        """Nothing is ever raised: what comes from the past is processed as it comes."""

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Process *events* in the order given, each at its ``received_at``."""
        outcome = BatcherOutput([], [])
        for event in events:
            self._fire(event.received_at, outcome)
            reason = self._refusal(event.event_time, event.received_at)
            if reason is None:
                row = (event.event_time, event.key, event.digest, event.received_at, event.id, event.size)
                self._place(event.source, row, outcome)
            else:
                outcome.rejects.append(Reject(event.id, reason))
        return outcome

    def advance(self, bound: int) -> BatcherOutput:
        """Fire the timers due at or before *bound*, each at its own time."""
        outcome = BatcherOutput([], [])
        self._fire(bound, outcome)
        return outcome

    def flush(self) -> BatcherOutput:
        """Close every open batch, newest first within a source."""
        outcome = BatcherOutput([], [])
        for name in sorted(self._sources):
            for batch in reversed(self._sources[name]):
                outcome.batches.append(self._close(name, batch, None))
        self._sources.clear()
        self._timers.clear()
        return outcome

    def dump(self) -> EngineState:
        """The engine's memory: open batches in order of creation. Timers follow from them."""
        sources = [
            SourceState(
                name,
                [OpenState(list(batch.rows.values()), (batch.start2, batch.end2), batch.cut) for batch in batches],
                [],
            )
            for name, batches in sorted(self._sources.items())
        ]
        return EngineState(self._clock, False, sources)

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        self._clock = state.clock
        for entry in state.sources:
            batches = [_restored(batch) for batch in entry.open]
            self._sources[entry.source] = batches
            for batch in batches:
                heapq.heappush(self._timers, (self._timeout(batch), entry.source))

    def _timeout(self, batch: _Open) -> int:
        """Rule 6: the first whole tick at or after the end plus the longest delay."""
        return (batch.end2 + 1) // 2 + self._config.max_delay

    def _fire(self, until: int, outcome: BatcherOutput) -> None:
        timers = self._timers
        while timers and timers[0][0] <= until:
            due, name = heapq.heappop(timers)
            self._time(name, due, outcome)
        if self._clock is None or until > self._clock:
            self._clock = until

    def _time(self, name: str, now: int, outcome: BatcherOutput) -> None:
        """Rule 7: close every batch of the source that has timed out, in order of creation."""
        batches = self._sources.get(name, [])
        due = [batch for batch in batches if self._timeout(batch) <= now]
        if not due:
            return
        outcome.batches.extend(self._close(name, batch, now) for batch in due)
        rest = [batch for batch in batches if self._timeout(batch) > now]
        if rest:
            self._sources[name] = rest
        else:
            del self._sources[name]

    def _close(self, name: str, batch: _Open, now: int | None) -> EventBatch:
        cut: CutReason = "flush" if now is None else batch.cut
        return make_batch(self._config, name, sorted(batch.rows.values()), now, cut)

    def _place(self, name: str, row: Row, outcome: BatcherOutput) -> None:
        """Rules 2 to 5."""
        time2 = 2 * row[0]
        batches = self._sources.setdefault(name, [])
        target = next((batch for batch in batches if batch.start2 <= time2 <= batch.end2), None)
        if target is None:
            target = self._begin(batches, row)
        elif row[1] not in target.rows:
            target.rows[row[1]] = row
            return
        elif target.rows[row[1]][0] == row[0]:
            outcome.rejects.append(_copy_of(target.rows[row[1]], row))
            return
        else:
            batches.append(_split(target, row))
        self._arm(name, target, row[3], outcome)

    def _begin(self, batches: list[_Open], row: Row) -> _Open:
        """Rule 3: a new batch that ends with its window, or where the next batch begins."""
        start2 = 2 * row[0]
        end2 = start2 + 2 * self._config.window
        following = min((batch.start2 for batch in batches if batch.start2 > start2), default=end2)
        cut: CutReason = "neighbour" if following < end2 else "window"
        batch = _Open(start2, min(end2, following), cut, {row[1]: row})
        batches.append(batch)
        return batch

    def _arm(self, name: str, batch: _Open, now: int, outcome: BatcherOutput) -> None:
        """Rule 6: ask for a timer, or let time pass at once where it is over already."""
        timeout = self._timeout(batch)
        if now < timeout:
            heapq.heappush(self._timers, (timeout, name))
        else:
            self._time(name, now, outcome)


def _split(batch: _Open, row: Row) -> _Open:
    """Rule 5: cut *batch* halfway between *row* and the member of its key; the later half keeps the old end."""
    middle2 = row[0] + batch.rows[row[1]][0]
    rows = [*batch.rows.values(), row]
    later = _Open(middle2, batch.end2, batch.cut, {member[1]: member for member in rows if 2 * member[0] >= middle2})
    batch.rows = {member[1]: member for member in rows if 2 * member[0] < middle2}
    batch.end2, batch.cut = middle2, "conflict"
    return later


def _copy_of(kept: Row, row: Row) -> Reject:
    """Refuse *row*; the first one received stays, whatever it says (the original never compares the values)."""
    return Reject(row[4], "duplicate" if row[2] == kept[2] else "conflicting_duplicate")


def _restored(state: OpenState) -> _Open:
    return _Open(*state.borders, state.cut, {row[1]: row for row in state.rows})
