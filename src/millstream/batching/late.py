"""What becomes of late records other than being refused: two order-free engines beside one another.

The first takes the records that are not late, the second those that took up to ``grace`` ticks longer. Each depends on
the records alone, so what the two give together does as well (``docs/formats/batch-id.md``, "Late records").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millstream.batching.config import BatchConfig
from millstream.batching.engine import Engine, EngineState, earliest
from millstream.batching.event import Cut, Event, EventBatch, Outcome, Row
from millstream.batching.identity import name_batch
from millstream.batching.orderfree import OrderFree, by_close, by_start


class Side:
    """The policy ``side``: late records are batched among themselves, by the same rules and a longer delay."""

    def __init__(self, config: BatchConfig) -> None:
        self._max_delay = config.max_delay
        self._punctual = OrderFree(config.punctual, partial(name_batch, config))
        self._late = OrderFree(config.patient, partial(name_batch, config, kind="side"))

    @property
    def clock(self) -> int | None:
        """The clock of both engines."""
        return self._punctual.clock

    @property
    def due(self) -> int | None:
        """The earlier of what the two engines say."""
        return earliest([self._punctual, self._late])

    @property
    def open_sources(self) -> int:
        """How many sources have open records in the engine that has most of them."""
        return max(self._punctual.open_sources, self._late.open_sources)

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        self._punctual.check(events)

    def receive(self, events: Sequence[Event]) -> Outcome:
        """Take *events*: each goes to the one engine or the other."""
        self._punctual.check(events)
        late = [event for event in events if event.event_time < event.received_at - self._max_delay]
        others = [event for event in events if event.event_time >= event.received_at - self._max_delay]
        return _together(self._punctual.receive(others), self._late.receive(late), by_close)

    def advance(self, bound: int) -> Outcome:
        """Settle what is certain at *bound* in both."""
        return _together(self._punctual.advance(bound), self._late.advance(bound), by_close)

    def flush(self) -> Outcome:
        """Close everything in both."""
        return _together(self._punctual.flush(), self._late.flush(), by_start)

    def dump(self) -> EngineState:
        """The memory of both."""
        return msgspec.structs.replace(self._punctual.dump(), late=self._late.dump().sources)

    def load(self, state: EngineState) -> None:
        """Go on from *state*."""
        _load(self._punctual, self._late, state)


class Amend:
    """The policy ``amend``: batches come out of the punctual records, and once more where late ones change them.

    Both engines get every record. ``_given`` holds, for each record of a batch that came out, that batch; it is asked,
    and emptied, when the second engine closes what is there at that time. A grace of at least the window sees to it
    that the first engine is always ahead.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._punctual = OrderFree(config.punctual, self._give)
        self._patient = OrderFree(config.patient, self._amend)
        self._given: dict[tuple[str, int, str], str] = {}

    @property
    def clock(self) -> int | None:
        """The clock of both engines."""
        return self._punctual.clock

    @property
    def due(self) -> int | None:
        """The earlier of what the two engines say."""
        return earliest([self._punctual, self._patient])

    @property
    def open_sources(self) -> int:
        """How many sources have open records in the engine that has most of them."""
        return max(self._punctual.open_sources, self._patient.open_sources)

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        self._punctual.check(events)

    def receive(self, events: Sequence[Event]) -> Outcome:
        """Take *events*; a record is refused where the second engine refuses it."""
        return self._both(lambda engine: engine.receive(events), by_close)

    def advance(self, bound: int) -> Outcome:
        """Settle what is certain at *bound*."""
        return self._both(lambda engine: engine.advance(bound), by_close)

    def flush(self) -> Outcome:
        """Close everything: first the batches, then what amends them."""
        return self._both(lambda engine: engine.flush(), by_start)

    def dump(self) -> EngineState:
        """The memory of both, and the batches that may be amended still."""
        given = sorted((*record, batch) for record, batch in self._given.items())
        return msgspec.structs.replace(self._punctual.dump(), late=self._patient.dump().sources, given=given)

    def load(self, state: EngineState) -> None:
        """Go on from *state*."""
        _load(self._punctual, self._patient, state)
        self._given = {(source, time, key): batch for source, time, key, batch in state.given}

    def _both(self, call: Callable[[Engine], Outcome], order: Callable[[EventBatch], object]) -> Outcome:
        batches = call(self._punctual).batches
        final = call(self._patient)
        changed = [batch for batch in final.batches if batch.batch not in batch.amends]
        return _together(Outcome(batches, []), Outcome(changed, final.rejects), order)

    def _give(self, source: str, rows: Sequence[Row], closed_at: int | None, cut: Cut) -> EventBatch:
        batch = name_batch(self._config, source, rows, closed_at, cut)
        self._given.update(((source, row[0], row[1]), batch.batch) for row in rows)
        return batch

    def _amend(self, source: str, rows: Sequence[Row], closed_at: int | None, cut: Cut) -> EventBatch:
        """The batch as it finally is; one that came out just so before names itself."""
        batch = name_batch(self._config, source, rows, closed_at, cut, kind="amendment")
        given = (self._given.pop((source, row[0], row[1]), None) for row in rows)
        return msgspec.structs.replace(batch, amends=tuple(dict.fromkeys(name for name in given if name)))


def _load(first: OrderFree, second: OrderFree, state: EngineState) -> None:
    first.load(EngineState(state.clock, state.flushed, state.sources))
    second.load(EngineState(state.clock, state.flushed, state.late))


def _together(one: Outcome, other: Outcome, order: Callable[[EventBatch], object]) -> Outcome:
    batches = [*one.batches, *other.batches]
    if one.batches and other.batches:
        batches.sort(key=order)  # type: ignore[arg-type]
    return Outcome(batches, [*one.rejects, *other.rejects])
