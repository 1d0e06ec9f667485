"""Batching columns by a rulebook: one engine for each set of rules, every record in the one that is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig
from millstream.batching.column_engines import ClosedTables, ColumnEngine, joined
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import EngineState
from millstream.batching.rulebook import Rulebook
from millstream.batching.window_boundaries import Flags, Integers


def rule_column_engine(rules: Rulebook, make: Callable[[BatchConfig], ColumnEngine]) -> ColumnEngine:
    """The engine for *rules*, of the engines that *make* makes for each set of rules."""
    periods = [_period_engine(period, make) for period in rules.periods]
    return periods[0] if len(periods) == 1 else DispatchColumnEngine(periods, partial(_periods_of, rules))


def _period_engine(rules: Rulebook, make: Callable[[BatchConfig], ColumnEngine]) -> ColumnEngine:
    """The engine for the rules of one period."""
    if not rules.overrides:
        return make(rules.default)
    return DispatchColumnEngine([make(config) for config in rules.configs], partial(_rules_of, rules))


class DispatchColumnEngine(CompositeEngine[ColumnEngine]):
    """Several *engines*, each with other rules; *places* returns the number of the engine of each row of a table
    (``rule_dispatch.py`` does so for single records)."""

    def __init__(self, engines: Sequence[ColumnEngine], places: Callable[[pa.Table], Integers]) -> None:
        self._places = places
        super().__init__(*engines)

    def check(self, events: pa.Table) -> None:
        for engine, mine in self._dealt(events):
            engine.check(mine)

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        dealt = list(self._dealt(events))
        for engine, mine in dealt:
            engine.check(mine)
        return joined([engine.step(mine, bound) for engine, mine in dealt])

    def flush(self) -> ClosedTables:
        return joined([engine.flush() for engine in self._parts])

    def dump(self) -> EngineState:
        return EngineState(self.clock, False, [], parts=[engine.dump() for engine in self._parts])

    def load(self, state: EngineState) -> None:
        for engine, part in zip(self._parts, state.parts, strict=True):
            engine.load(part)

    def _dealt(self, events: pa.Table) -> Iterator[tuple[ColumnEngine, pa.Table]]:
        """The part of *events* that each engine gets, empty ones too."""
        place = self._places(events)
        for number, engine in enumerate(self._parts):
            yield engine, events.filter(pa.array(place == number))


def _periods_of(rules: Rulebook, events: pa.Table) -> Integers:
    """The period of *rules* that each record is in: see :meth:`Rulebook.period_at`."""
    event_times, received = (events[name].to_numpy() for name in ("event_time", "received_at"))
    found = np.zeros(len(events), np.int64)
    for number, change in enumerate(rules.later, start=1):
        found[(event_times >= change.since) & (received > change.decided)] = number
    return found


def _rules_of(rules: Rulebook, events: pa.Table) -> Integers:
    """The place of each record's rules: overrides for keys, over them those for sources, over these for both."""
    places = {config: number for number, config in enumerate(rules.configs)}
    found = np.zeros(len(events), np.int64)
    for override in sorted(rules.overrides, key=lambda o: (o.source is not None, o.key is not None)):
        chosen: Flags = np.ones(len(events), np.bool_)
        for name, value in (("source", override.source), ("key", override.key)):
            if value is not None:
                chosen &= pc.equal(events[name], value).to_numpy()
        found[chosen] = places[override.config]
    return found
