"""The policies for late records over columns: what ``late_engines.py`` does, a table at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig
from millstream.batching.column_engines import ClosedTables, OrderFreeColumnEngine, joined
from millstream.batching.column_identity import CLOSED_SCHEMA, with_batch_ids
from millstream.batching.columns import CutResult
from millstream.batching.composite_engine import TwoStageEngine
from millstream.batching.engine import EngineState
from millstream.batching.event import Kind


class LateSideColumnEngine(TwoStageEngine[OrderFreeColumnEngine]):
    """The policy ``side``: late records are batched among themselves (``late_engines.py``)."""

    def __init__(self, config: BatchConfig) -> None:
        self._max_delay = config.max_delay
        super().__init__(
            OrderFreeColumnEngine(config.punctual, partial(_named, config, kind="batch")),
            OrderFreeColumnEngine(config.patient, partial(_named, config, kind="side")),
        )

    def check(self, events: pa.Table) -> None:
        self._punctual.check(events)

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        self.check(events)
        late = pc.less(events["event_time"], pc.subtract(events["received_at"], self._max_delay))
        others = events.filter(pc.invert(late))
        return joined([self._punctual.step(others, bound), self._other.step(events.filter(late), bound)])

    def flush(self) -> ClosedTables:
        return joined([self._punctual.flush(), self._other.flush()])

    def dump(self) -> EngineState:
        return _both(self._punctual, self._other)

    def load(self, state: EngineState) -> None:
        _load(self._punctual, self._other, state)


class LateAmendColumnEngine(TwoStageEngine[OrderFreeColumnEngine]):
    """The policy ``amend``: batches come out of the punctual records, and once more where late ones change them."""

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        super().__init__(
            OrderFreeColumnEngine(config.punctual, self._give), OrderFreeColumnEngine(config.patient, self._amend)
        )
        self._given: dict[tuple[str, int, str], str] = {}

    def check(self, events: pa.Table) -> None:
        self._punctual.check(events)

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        first, final = self._punctual.step(events, bound), self._other.step(events, bound)
        return ClosedTables(pa.concat_tables([first.batches, final.batches]), final.rejects)

    def flush(self) -> ClosedTables:
        first, final = self._punctual.flush(), self._other.flush()
        return ClosedTables(pa.concat_tables([first.batches, final.batches]), final.rejects)

    def dump(self) -> EngineState:
        given = sorted((*record, batch) for record, batch in self._given.items())
        return msgspec.structs.replace(_both(self._punctual, self._other), given=given)

    def load(self, state: EngineState) -> None:
        _load(self._punctual, self._other, state)
        self._given = {(source, time, key): batch for source, time, key, batch in state.given}

    def _give(self, history: CutResult) -> pa.Table:
        batches = _named(self._config, history, kind="batch")
        for name, records in zip(batches["batch"].to_pylist(), _members(history), strict=True):
            self._given.update(dict.fromkeys(records, name))
        return batches

    def _amend(self, history: CutResult) -> pa.Table:
        """The batches as they finally are, but for those that came out just so before."""
        batches = _named(self._config, history, kind="amendment")
        amends = [self._amended(records) for records in _members(history)]
        pairs = zip(batches["batch"].to_pylist(), amends, strict=True)
        changed = pa.array([name not in old for name, old in pairs], pa.bool_())
        place = CLOSED_SCHEMA.get_field_index("amends")
        field = CLOSED_SCHEMA.field(place)
        return batches.set_column(place, field, pa.array(amends, field.type)).filter(changed)

    def _amended(self, records: Sequence[tuple[str, int, str]]) -> list[str]:
        names = (self._given.pop(record, None) for record in records)
        return list(dict.fromkeys(name for name in names if name))


def _named(config: BatchConfig, history: CutResult, *, kind: Kind) -> pa.Table:
    """The batches of *history*, whatever rules cut them, as *kind* under the rules *config*."""
    return with_batch_ids(history._replace(config=config), kind)


def _members(history: CutResult) -> Iterator[list[tuple[str, int, str]]]:
    """Source, event time and key of the records of each batch."""
    columns = history.events.select(["source", "event_time", "key"]).take(history.rows)
    records = zip(*(column.to_pylist() for column in columns.columns), strict=True)
    for size in pc.list_value_length(history.batches["events"]).to_pylist():
        yield list(islice(records, size))


def _both(punctual: OrderFreeColumnEngine, other: OrderFreeColumnEngine) -> EngineState:
    return msgspec.structs.replace(punctual.dump(), late=other.dump().sources)


def _load(punctual: OrderFreeColumnEngine, other: OrderFreeColumnEngine, state: EngineState) -> None:
    punctual.load(EngineState(state.clock, state.flushed, state.sources))
    other.load(EngineState(state.clock, state.flushed, state.late))
