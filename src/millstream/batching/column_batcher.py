"""The batcher for hosts that have their records in columns: a table of events in, tables of batches and rejects out.

It gives what :class:`~millstream.batching.batcher.Batcher` gives for the same calls (a property test holds the two
together) and continues from its snapshots, without a Python object for an event. It keeps the records of open batches
only; the end of a batch depends on nothing before its first record, so these are all it needs to know.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.batching.batch_config import BatchConfig
from millstream.batching.column_engines import ClosedTables, ColumnEngine, OrderFreeColumnEngine, RecordEngineAdapter
from millstream.batching.engine import EngineHost
from millstream.batching.late_column_engines import LateAmendColumnEngine, LateSideColumnEngine
from millstream.batching.rule_dispatch_columns import rule_column_engine
from millstream.batching.rulebook import Rulebook
from millstream.batching.snapshot import decode_columns, decode_snapshot_for, encode_columns, encode_snapshot
from millstream.batching.thin_edge import ThinEdgeEngine


class ColumnBatcher(EngineHost):
    """Batches a stream of tables by *rules*; *snapshot* is where another batcher left off.

    Raises :class:`~millstream.batching.errors.SnapshotError` where *snapshot* was taken under other rules.
    """

    _engine: ColumnEngine

    def __init__(self, rules: BatchConfig | Rulebook, snapshot: bytes | None = None) -> None:
        self.rules = Rulebook(rules) if isinstance(rules, BatchConfig) else rules
        self._engine = rule_column_engine(self.rules, _engine)
        if snapshot is not None:
            self._restore(snapshot)

    def step(self, events: pa.Table, bound: int) -> ClosedTables:
        """Take *events* (``EVENT_SCHEMA``, any order) and let time pass up to *bound*, a receive time.

        As :meth:`Batcher.receive_many` and then :meth:`Batcher.advance`. Raises
        :class:`~millstream.batching.errors.BoundBrokenError` where a record was received before an earlier bound.
        """
        return self._engine.step(events, bound)

    def flush(self) -> ClosedTables:
        """Close all that is open: the stream has ended."""
        return self._engine.flush()

    def snapshot(self) -> bytes:
        """The whole state, for this class and for :meth:`Batcher.restore`."""
        engine = self._engine
        if isinstance(engine, OrderFreeColumnEngine):
            return encode_columns(self.rules, engine.clock, engine.flushed, engine.rows)
        return encode_snapshot(self.rules, engine.dump())

    def _restore(self, snapshot: bytes) -> None:
        engine = self._engine
        if isinstance(engine, OrderFreeColumnEngine):
            kept, *rows = decode_columns(snapshot)
            if kept == self.rules:
                engine.restore_rows(*rows)
                return
        engine.load(decode_snapshot_for(snapshot, self.rules))


def _engine(config: BatchConfig) -> ColumnEngine:
    """The column engine for *config*."""
    if config.mode == "faithful":
        return RecordEngineAdapter(ThinEdgeEngine(config))
    if config.policy == "reject":
        return OrderFreeColumnEngine(config)
    return LateSideColumnEngine(config) if config.policy == "side" else LateAmendColumnEngine(config)
