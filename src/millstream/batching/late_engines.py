"""The late policies other than rejection: two order-free engines.

The first takes the records that are not late, the second those that took up to ``grace`` ticks longer. Each depends on
the records alone, and so does their combined output (``docs/formats/batch-id.md``, "Late records").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.composite_engine import TwoStageEngine
from millstream.batching.engine import Engine, EngineState
from millstream.batching.event import BatcherOutput, CutReason, Event, EventBatch, Row
from millstream.batching.identity import make_batch
from millstream.batching.order_free import OrderFreeEngine, by_close, by_start


class LateSideEngine(TwoStageEngine[OrderFreeEngine]):
    """The policy ``side``: late records are batched among themselves, by the same rules and a longer delay."""

    def __init__(self, config: BatchConfig) -> None:
        self._max_delay = config.max_delay
        super().__init__(
            OrderFreeEngine(config.punctual, partial(make_batch, config)),
            OrderFreeEngine(config.patient, partial(make_batch, config, kind="side")),
        )

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        self._punctual.check(events)

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events*: each goes to the one engine or the other."""
        self._punctual.check(events)
        late = [event for event in events if event.event_time < event.received_at - self._max_delay]
        others = [event for event in events if event.event_time >= event.received_at - self._max_delay]
        return _together(self._punctual.receive(others), self._other.receive(late), by_close)

    def advance(self, bound: int) -> BatcherOutput:
        """Settle what is certain at *bound* in both."""
        return _together(self._punctual.advance(bound), self._other.advance(bound), by_close)

    def flush(self) -> BatcherOutput:
        """Close everything in both."""
        return _together(self._punctual.flush(), self._other.flush(), by_start)

    def dump(self) -> EngineState:
        """The memory of both."""
        return msgspec.structs.replace(self._punctual.dump(), late=self._other.dump().sources)

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        _load(self._punctual, self._other, state)


class LateAmendEngine(TwoStageEngine[OrderFreeEngine]):
    """The policy ``amend``: batches come out of the punctual records, and once more where late ones change them.

    Both engines get every record. ``_given`` holds, for each record of a batch that came out, that batch; it is asked,
    and emptied, when the second engine closes what is there at that time. A grace of at least the window sees to it
    that the first engine is always ahead.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        super().__init__(OrderFreeEngine(config.punctual, self._give), OrderFreeEngine(config.patient, self._amend))
        self._given: dict[tuple[str, int, str], str] = {}

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        self._punctual.check(events)

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events*; a record is refused where the second engine refuses it."""
        return self._both(lambda engine: engine.receive(events), by_close)

    def advance(self, bound: int) -> BatcherOutput:
        """Settle what is certain at *bound*."""
        return self._both(lambda engine: engine.advance(bound), by_close)

    def flush(self) -> BatcherOutput:
        """Close everything: first the batches, then what amends them."""
        return self._both(lambda engine: engine.flush(), by_start)

    def dump(self) -> EngineState:
        """The memory of both, and the batches that may be amended still."""
        given = sorted((*record, batch) for record, batch in self._given.items())
        return msgspec.structs.replace(self._punctual.dump(), late=self._other.dump().sources, given=given)

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        _load(self._punctual, self._other, state)
        self._given = {(source, time, key): batch for source, time, key, batch in state.given}

    def _both(self, call: Callable[[Engine], BatcherOutput], order: Callable[[EventBatch], object]) -> BatcherOutput:
        batches = call(self._punctual).batches
        final = call(self._other)
        changed = [batch for batch in final.batches if batch.batch not in batch.amends]
        return _together(BatcherOutput(batches, []), BatcherOutput(changed, final.rejects), order)

    def _give(self, source: str, rows: Sequence[Row], closed_at: int | None, cut: CutReason) -> EventBatch:
        batch = make_batch(self._config, source, rows, closed_at, cut)
        self._given.update(((source, row[0], row[1]), batch.batch) for row in rows)
        return batch

    def _amend(self, source: str, rows: Sequence[Row], closed_at: int | None, cut: CutReason) -> EventBatch:
        """The batch as it finally is; one that came out just so before names itself."""
        batch = make_batch(self._config, source, rows, closed_at, cut, kind="amendment")
        given = (self._given.pop((source, row[0], row[1]), None) for row in rows)
        return msgspec.structs.replace(batch, amends=tuple(dict.fromkeys(name for name in given if name)))


def _load(first: OrderFreeEngine, second: OrderFreeEngine, state: EngineState) -> None:
    first.load(EngineState(state.clock, state.flushed, state.sources))
    second.load(EngineState(state.clock, state.flushed, state.late))


def _together(one: BatcherOutput, other: BatcherOutput, order: Callable[[EventBatch], object]) -> BatcherOutput:
    batches = [*one.batches, *other.batches]
    if one.batches and other.batches:
        batches.sort(key=order)  # type: ignore[arg-type]
    return BatcherOutput(batches, [*one.rejects, *other.rejects])
