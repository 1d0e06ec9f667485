"""What batches columns: the order-free rule over tables, and engines for single records over their rows.

With ``latecolumns.py`` and ``routedcolumns.py`` these do what the engines of ``engine.py`` do and take up their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig
from millstream.batching.column_identity import CLOSED_SCHEMA, with_batch_ids
from millstream.batching.column_state import EVENT_SCHEMA, rows_from_state, state_from_rows
from millstream.batching.columns import FARTHEST, REJECT_SCHEMA, CutResult, cut_columns, split_refused
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import BatchingProgress, Engine, EngineState
from millstream.batching.errors import BoundBrokenError, FlushedError
from millstream.batching.event import BatcherOutput, Event, EventBatch
from millstream.batching.open_records import OpenRecords
from millstream.batching.window_boundaries import Integers


class ClosedTables(NamedTuple):
    """The result of a step: batches (``CLOSED_SCHEMA``) and rejects (``REJECT_SCHEMA``), unordered."""

    batches: pa.Table
    rejects: pa.Table


NOTHING = ClosedTables(
    *(pa.Table.from_batches([], schema) for schema in (CLOSED_SCHEMA, REJECT_SCHEMA))
)  # loads no pandas


class ColumnEngine(BatchingProgress, Protocol):
    """A way of batching tables of events (``EVENT_SCHEMA``)."""

    def check(self, events: pa.Table) -> None:
        """Raise what :meth:`step` would raise for *events*, without taking any."""
        ...

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        """Take *events* and let time pass up to *bound*."""
        ...

    def flush(self) -> ClosedTables:
        """Close everything."""
        ...

    def dump(self) -> EngineState:
        """What :meth:`load` needs to continue from here, in this engine or in its like for single records."""
        ...

    def load(self, state: EngineState) -> None:
        """Take up *state*; only on a fresh engine."""
        ...


Naming = Callable[[CutResult], pa.Table]
"""Makes a table of ``CLOSED_SCHEMA`` of what was cut."""


class OrderFreeColumnEngine:
    """The order-free rule. It looks only at sources of which something may be certain by now.

    *name* makes the batches; without it they are named under *config*.
    """

    def __init__(self, config: BatchConfig, name: Naming | None = None) -> None:
        self._config, self._name = config, name or with_batch_ids
        self._records = OpenRecords()
        self._clock: int | None = None
        self.flushed = False

    @property
    def clock(self) -> int | None:
        return self._clock

    @property
    def due(self) -> int | None:
        self._look(self._records.take_unsure(), -FARTHEST)
        return self._records.due

    @property
    def open_sources(self) -> int:
        return self._records.sources

    @property
    def rows(self) -> pa.Table:
        """The open records."""
        return self._records.table()

    def restore_rows(self, clock: int | None, flushed: bool, rows: pa.Table) -> None:
        """Continue from another engine at *clock* with the open records *rows*."""
        self._clock, self.flushed = clock, flushed
        self._look(rows, -FARTHEST)

    def check(self, events: pa.Table) -> None:
        if self.flushed:
            raise FlushedError
        if self._clock is None or not len(events):
            return
        early = pc.min(events["received_at"]).as_py()
        if early < self._clock:
            row = events.filter(pc.field("received_at") == early).slice(0, 1).to_pylist()[0]
            raise BoundBrokenError(
                f"record {row['id']} of source {row['source']!r} has the receive time {early}, but the batcher was "
                f"already advanced to {self._clock}: advance the batcher only to times after which no older record "
                "arrives"
            )

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        self.check(events)
        self._clock = bound if self._clock is None else max(bound, self._clock)
        taken, rejects = split_refused(events, self._config)
        self._records.add(taken, taken["event_time"].to_numpy() + self._config.max_delay, sure=False)
        batches, copies = self._look(self._records.take_due(self._clock), self._clock)
        return ClosedTables(batches, pa.concat_tables([rejects, copies]))

    def flush(self) -> ClosedTables:
        history = cut_columns(self._records.table(), self._config)
        self.flushed, self._records = True, OpenRecords()
        return ClosedTables(self._name(history), history.rejects)

    def dump(self) -> EngineState:
        return state_from_rows(self._clock, self.flushed, self.rows)

    def load(self, state: EngineState) -> None:
        self.restore_rows(state.clock, state.flushed, rows_from_state(state))

    def _look(self, rows: pa.Table, clock: int) -> ClosedTables:
        """Close and refuse what is certain at *clock* of *rows*, all that is open of some sources; keep the rest."""
        if not len(rows):
            return NOTHING
        history = cut_columns(rows, self._config, clock)
        sizes = pc.list_value_length(history.batches["events"]).to_numpy()
        unsettled = history.closing > clock
        kept, closing = np.repeat(unsettled, sizes), np.repeat(history.closing, sizes)
        undecided, rejects = self._copies(history, clock)
        open_rows = np.concatenate([history.rows[kept], undecided])
        open_records = history.events.select(EVENT_SCHEMA.names).take(open_rows)
        decided = open_records["event_time"].to_numpy() + self._config.max_delay + 1  # of copies
        decided[: len(decided) - len(undecided)] = closing[kept]
        self._records.add(open_records, decided, sure=True)
        settled = history._replace(batches=history.batches.filter(pa.array(~unsettled)), rows=history.rows[~kept])
        return ClosedTables(self._name(settled), rejects)

    def _copies(self, history: CutResult, clock: int) -> tuple[Integers, pa.Table]:
        """The rows of copies that another copy may still replace, and the rejects without them."""
        rejects = history.rejects
        if not len(rejects):
            return np.zeros(0, np.int64), rejects
        rows = pc.index_in(rejects["rejected"], history.events["id"].combine_chunks())
        waiting = pc.greater_equal(history.events["event_time"].take(rows), clock - self._config.max_delay)
        return rows.filter(waiting).to_numpy().astype(np.int64), rejects.filter(pc.invert(waiting))


class RecordEngineAdapter(CompositeEngine[Engine]):
    """An engine for single records, fed with the rows of tables: for what depends on the order of records."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    def check(self, events: pa.Table) -> None:
        self._engine.check(events_from_table(events))

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        return joined(
            [output_tables(self._engine.receive(events_from_table(events))), output_tables(self._engine.advance(bound))]
        )

    def flush(self) -> ClosedTables:
        return output_tables(self._engine.flush())

    def dump(self) -> EngineState:
        return self._engine.dump()

    def load(self, state: EngineState) -> None:
        self._engine.load(state)


def joined(parts: Sequence[ClosedTables]) -> ClosedTables:
    """All that *parts* hold."""
    return ClosedTables(
        pa.concat_tables([NOTHING.batches, *(part.batches for part in parts)]),
        pa.concat_tables([NOTHING.rejects, *(part.rejects for part in parts)]),
    )


def batch_table(batches: Sequence[EventBatch]) -> pa.Table:
    """*batches* as a table of ``CLOSED_SCHEMA``."""
    columns = [pa.array([getattr(batch, field.name) for batch in batches], field.type) for field in CLOSED_SCHEMA]
    return pa.table(columns, schema=CLOSED_SCHEMA)


def output_tables(outcome: BatcherOutput) -> ClosedTables:
    """*outcome* as tables."""
    ids = pa.array([reject.rejected for reject in outcome.rejects], pa.int64())
    reasons = pa.array([reject.reason for reject in outcome.rejects], pa.string())
    return ClosedTables(batch_table(outcome.batches), pa.table([ids, reasons], schema=REJECT_SCHEMA))


def events_from_table(events: pa.Table) -> list[Event]:
    """The rows of *events* (``EVENT_SCHEMA``), one by one."""
    columns = (events[name].to_pylist() for name in Event.__struct_fields__)
    return [Event(*row) for row in zip(*columns, strict=True)]
