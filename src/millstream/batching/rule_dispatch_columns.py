"""Batching columns by a rulebook: one engine for each set of rules, every record in the one that is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig
from millstream.batching.column_engines import ClosedTables, ColumnEngine, joined
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import EngineState
from millstream.batching.rulebook import Rulebook
from millstream.batching.window_boundaries import Flags, Integers


class RuleDispatchColumnEngine(CompositeEngine[ColumnEngine]):
    """The engines of a rulebook; *make* makes the engine of some rules (``routed.py`` does so for single records)."""

    def __init__(self, rules: Rulebook, make: Callable[[BatchConfig], ColumnEngine]) -> None:
        self._rules = rules
        self._engines = {config: make(config) for config in rules.configs}
        super().__init__(*self._engines.values())

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

    def _places(self, events: pa.Table) -> Integers:
        """The place of each record's rules: overrides for keys, over them those for sources, over these for both."""
        places = {config: number for number, config in enumerate(self._engines)}
        found = np.zeros(len(events), np.int64)
        for override in sorted(self._rules.overrides, key=lambda o: (o.source is not None, o.key is not None)):
            chosen: Flags = np.ones(len(events), np.bool_)
            for name, value in (("source", override.source), ("key", override.key)):
                if value is not None:
                    chosen &= pc.equal(events[name], value).to_numpy()
            found[chosen] = places[override.config]
        return found
