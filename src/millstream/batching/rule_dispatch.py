"""Batching by a rulebook: one engine for each set of rules, every record in the one that is for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.batching.batch_config import BatchConfig
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import Engine, EngineState
from millstream.batching.event import BatcherOutput, Event
from millstream.batching.order_free import by_close, by_start
from millstream.batching.rulebook import Rulebook


def rule_engine(rules: Rulebook, make: Callable[[BatchConfig], Engine]) -> Engine:
    """The engine for *rules*, of the engines that *make* makes for each set of rules."""
    periods = [_period_engine(period, make) for period in rules.periods]
    if len(periods) == 1:
        return periods[0]
    return DispatchEngine(periods, lambda event: rules.period_at(event.event_time, event.received_at))


def _period_engine(rules: Rulebook, make: Callable[[BatchConfig], Engine]) -> Engine:
    """The engine for the rules of one period."""
    if not rules.overrides:
        return make(rules.default)
    choose, numbers = rules.chooser(), {config: number for number, config in enumerate(rules.configs)}
    return DispatchEngine([make(config) for config in numbers], lambda e: numbers[choose(e.source, e.key)])


class DispatchEngine(CompositeEngine[Engine]):
    """Several *engines*, each with other rules; *place* returns the number of the engine that a record is for.

    What each gives depends on the records that are for it alone, so all together are as independent of order as one.
    """

    def __init__(self, engines: Sequence[Engine], place: Callable[[Event], int]) -> None:
        self._place = place
        super().__init__(*engines)

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        for engine, mine in self._dealt(events):
            engine.check(mine)

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events*; all are taken or none."""
        dealt = self._dealt(events)
        for engine, mine in dealt:
            engine.check(mine)
        outcome = _joined([engine.receive(mine) for engine, mine in dealt])
        outcome.batches.sort(key=by_close)
        return outcome

    def advance(self, bound: int) -> BatcherOutput:
        """Let time pass up to *bound* in all engines."""
        outcome = _joined([engine.advance(bound) for engine in self._parts])
        outcome.batches.sort(key=by_close)
        return outcome

    def flush(self) -> BatcherOutput:
        """Close everything in all engines."""
        outcome = _joined([engine.flush() for engine in self._parts])
        outcome.batches.sort(key=by_start)
        return outcome

    def dump(self) -> EngineState:
        """The memory of all engines, in their order."""
        return EngineState(self.clock, False, [], parts=[engine.dump() for engine in self._parts])

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        for engine, part in zip(self._parts, state.parts, strict=True):
            engine.load(part)

    def _dealt(self, events: Sequence[Event]) -> list[tuple[Engine, list[Event]]]:
        dealt: dict[int, list[Event]] = {}
        for event in events:
            dealt.setdefault(self._place(event), []).append(event)
        return [(self._parts[number], mine) for number, mine in dealt.items()]


def _joined(outcomes: Sequence[BatcherOutput]) -> BatcherOutput:
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    return BatcherOutput(batches, [reject for outcome in outcomes for reject in outcome.rejects])
