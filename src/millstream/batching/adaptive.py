"""The batcher for hosts that get much at once and then little: columns for large steps, single records for small ones.

A step of columns costs some milliseconds, however little is in it; a single record some microseconds. Both batchers
give the same (a property test holds them together) and continue from each other's snapshots, so which is at work shows
in the time alone.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.batching.batch_config import BatchConfig
from millstream.batching.batcher import Batcher
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.column_engines import ClosedTables, events_from_table, output_tables
from millstream.batching.composite_engine import CompositeEngine
from millstream.batching.engine import EngineHost
from millstream.batching.event import BatcherOutput
from millstream.batching.rulebook import Rulebook

LARGE_STEP = 2000
"""From this many records in a step on, processing columns is faster than single records."""

SMALL_STEPS_BEFORE_SWITCH = 64
"""After this many small steps in a row, a change to single records pays off: it copies all open records."""


class AdaptiveBatcher(EngineHost):
    """Batches a stream of tables by *rules*; *snapshot* is where another batcher left off.

    Raises :class:`~millstream.batching.errors.SnapshotError` where *snapshot* was taken under other rules.
    """

    def __init__(self, rules: BatchConfig | Rulebook, snapshot: bytes | None = None) -> None:
        self.rules = Rulebook(rules) if isinstance(rules, BatchConfig) else rules
        self._engine: ColumnBatcher | _RecordBatcher = ColumnBatcher(self.rules, snapshot)
        self._small = SMALL_STEPS_BEFORE_SWITCH  # what comes first decides

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        """As :meth:`ColumnBatcher.step`."""
        self._choose(len(events))
        return self._engine.step(events, bound)

    def flush(self) -> ClosedTables:
        """Close all that is open: the stream has ended."""
        return self._engine.flush()

    def snapshot(self) -> bytes:
        """The whole state, for either batcher."""
        return self._engine.snapshot()

    def _choose(self, count: int) -> None:
        """Let the batcher continue that is right for steps of *count* records."""
        in_columns = isinstance(self._engine, ColumnBatcher)
        self._small = self._small + 1 if count < LARGE_STEP else 0
        if in_columns and self._small > SMALL_STEPS_BEFORE_SWITCH:
            self._engine = _RecordBatcher(self.rules, self._engine.snapshot())
        elif not in_columns and not self._small:
            self._engine = ColumnBatcher(self.rules, self._engine.snapshot())


class _RecordBatcher(CompositeEngine[Batcher]):
    """A :class:`Batcher` that takes tables."""

    def __init__(self, rules: Rulebook, snapshot: bytes) -> None:
        self._batcher = Batcher.restore(snapshot, rules)
        super().__init__(self._batcher)

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        first, then = self._batcher.receive_many(events_from_table(events)), self._batcher.advance(bound)
        return output_tables(BatcherOutput([*first.batches, *then.batches], [*first.rejects, *then.rejects]))

    def flush(self) -> ClosedTables:
        return output_tables(self._batcher.flush())

    def snapshot(self) -> bytes:
        return self._batcher.snapshot()
