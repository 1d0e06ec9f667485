"""Batching by a rulebook: one engine for each set of rules, every record in the one that is for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.batching.batch_config import BatchConfig
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import Engine, EngineState
from millstream.batching.event import BatcherOutput, Event
from millstream.batching.order_free import by_close, by_start
from millstream.batching.rulebook import Rulebook


class RuleDispatchEngine(CompositeEngine[Engine]):
    """The engines of a rulebook; *make* makes the engine of some rules.

    What each gives depends on the records that are for it alone, so all together are as independent of order as one.
    """

    def __init__(self, rules: Rulebook, make: Callable[[BatchConfig], Engine]) -> None:
        self._choose = rules.chooser()
        self._engines = {config: make(config) for config in rules.configs}
        super().__init__(*self._engines.values())

    def check(self, events: Sequence[Event]) -> None:
        """Raise what :meth:`receive` would raise for *events*."""
        for config, mine in self._dealt(events):
            self._engines[config].check(mine)

    def receive(self, events: Sequence[Event]) -> BatcherOutput:
        """Take *events*; all are taken or none."""
        dealt = self._dealt(events)
        for config, mine in dealt:
            self._engines[config].check(mine)
        outcome = _joined([self._engines[config].receive(mine) for config, mine in dealt])
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
        """The memory of all engines, in the order of the rulebook."""
        return EngineState(self.clock, False, [], parts=[engine.dump() for engine in self._parts])

    def load(self, state: EngineState) -> None:
        """Continue from *state*."""
        for engine, part in zip(self._parts, state.parts, strict=True):
            engine.load(part)

    def _dealt(self, events: Sequence[Event]) -> list[tuple[BatchConfig, list[Event]]]:
        dealt: dict[BatchConfig, list[Event]] = {}
        for event in events:
            dealt.setdefault(self._choose(event.source, event.key), []).append(event)
        return list(dealt.items())


def _joined(outcomes: Sequence[BatcherOutput]) -> BatcherOutput:
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    return BatcherOutput(batches, [reject for outcome in outcomes for reject in outcome.rejects])
