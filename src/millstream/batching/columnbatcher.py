"""The batcher for hosts that have their records in columns: a table of events in, tables of batches and rejects out.

It gives what :class:`~millstream.batching.batcher.Batcher` gives for the same calls (a property test holds the two
together) and goes on from its snapshots, without a Python object for an event. After each step it keeps the records of
open batches only; the end of a batch depends on nothing before its first record, so these are all it needs to know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batcher import Batcher
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columns import REJECT_SCHEMA, History, cut_columns
from millstream.batching.config import BatchConfig
from millstream.batching.errors import BoundBrokenError, FlushedError, SnapshotError
from millstream.batching.event import Event, EventBatch, Outcome
from millstream.batching.naming import name_columns
from millstream.batching.rulebook import Rulebook
from millstream.batching.snapshot import decode_columns, encode_columns

CLOSED_SCHEMA = pa.schema(
    [
        pa.field("batch", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("closed_at", pa.int64()),
        pa.field("cut", pa.string(), nullable=False),
        pa.field("events", pa.large_list(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("amends", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
"""One row a batch, as :class:`~millstream.batching.event.EventBatch` has it."""

_COPIES = pa.array(["duplicate", "conflicting_duplicate"])


class Closed(NamedTuple):
    """What a step brought about: batches (:data:`CLOSED_SCHEMA`) and rejects (``REJECT_SCHEMA``), in no order."""

    batches: pa.Table
    rejects: pa.Table


class ColumnBatcher:
    """Batches a stream of tables by *rules*; *snapshot* is where another batcher left off.

    Rules with overrides, late policies or the mode ``faithful`` are left to a :class:`Batcher` inside, record by
    record. Raises :class:`~millstream.batching.errors.SnapshotError` where *snapshot* was taken under other rules.
    """

    def __init__(self, rules: BatchConfig | Rulebook, snapshot: bytes | None = None) -> None:
        self.rules = Rulebook(rules) if isinstance(rules, BatchConfig) else rules
        config = self.rules.default
        columnar = config.mode == "order-free" and config.policy == "reject" and not self.rules.overrides
        self._engine: _Columns | _Records = (_Columns if columnar else _Records)(self.rules, snapshot)

    @property
    def clock(self) -> int | None:
        """The latest bound of a step; None before the first."""
        return self._engine.clock

    @property
    def due(self) -> int | None:
        """A clock at which something will be closed even if nothing is received; None where nothing is open."""
        return self._engine.due

    def step(self, events: pa.Table, bound: int) -> Closed:
        """Take *events* (``EVENT_SCHEMA``, any order) and let time pass up to *bound*, a receive time.

        As :meth:`Batcher.receive_many` and then :meth:`Batcher.advance`. Raises
        :class:`~millstream.batching.errors.BoundBrokenError` where a record was received before an earlier bound.
        """
        return self._engine.step(events, bound)

    def flush(self) -> Closed:
        """Close all that is open: the stream has ended."""
        return self._engine.flush()

    def snapshot(self) -> bytes:
        """The whole state, for this class and for :meth:`Batcher.restore`."""
        return self._engine.snapshot()


class _Columns:
    """The order-free rule over the open records and those of a step together."""

    def __init__(self, rules: Rulebook, snapshot: bytes | None) -> None:
        self._rules, self._config = rules, rules.default
        self.clock: int | None = None
        self._flushed, self._rows = False, EVENT_SCHEMA.empty_table()
        if snapshot is not None:
            kept, self.clock, self._flushed, self._rows = decode_columns(snapshot)
            _check_rules(kept, rules)

    @property
    def due(self) -> int | None:
        if not len(self._rows):
            return None
        first: int = pc.min(self._rows["event_time"]).as_py()
        return first + self._config.window + 1 + self._config.max_delay

    def step(self, events: pa.Table, bound: int) -> Closed:
        if self._flushed:
            raise FlushedError
        self._check_bound(events)
        self.clock = bound if self.clock is None else max(bound, self.clock)
        return self._settle(cut_columns(pa.concat_tables([self._rows, events]), self._config, self.clock))

    def flush(self) -> Closed:
        history = cut_columns(self._rows, self._config)
        self._flushed, self._rows = True, EVENT_SCHEMA.empty_table()
        return Closed(name_columns(history), history.rejects)

    def snapshot(self) -> bytes:
        return encode_columns(self._rules, self.clock, self._flushed, self._rows)

    def _check_bound(self, events: pa.Table) -> None:
        if self.clock is None or not len(events):
            return
        early = pc.min(events["received_at"]).as_py()
        if early < self.clock:
            raise BoundBrokenError(
                f"a record was received at {early}, but the clock stands at {self.clock}: advance only to a time that "
                "no later record was received before"
            )

    def _settle(self, history: History) -> Closed:
        """Take what is certain by now out of *history*, and keep the records of the rest."""
        sizes = pc.list_value_length(history.batches["events"]).to_numpy()
        open_ended = history.batches["closed_at"].is_null().to_numpy()
        kept = history.rows[np.repeat(open_ended, sizes)]
        undecided, rejects = self._copies(history)
        self._rows = history.events.select(EVENT_SCHEMA.names).take(np.concatenate([kept, undecided])).combine_chunks()
        done = ~open_ended
        settled = history._replace(
            batches=history.batches.filter(pa.array(done)), rows=history.rows[np.repeat(done, sizes)]
        )
        return Closed(name_columns(settled), rejects)

    def _copies(self, history: History) -> tuple[np.ndarray, pa.Table]:
        """The rows of copies that another copy may still replace, and the rejects without them."""
        rejects, copies = history.rejects, pc.is_in(history.rejects["reason"], _COPIES)
        if not pc.any(copies).as_py():
            return np.zeros(0, np.int64), rejects
        assert self.clock is not None
        rows = pc.index_in(rejects["rejected"], history.events["id"].combine_chunks())
        young = pc.greater_equal(history.events["event_time"].take(rows), self.clock - self._config.max_delay)
        waiting = pc.and_(copies, young)
        return rows.filter(waiting).to_numpy().astype(np.int64), rejects.filter(pc.invert(waiting))


class _Records:
    """A batcher that takes the records one by one."""

    def __init__(self, rules: Rulebook, snapshot: bytes | None) -> None:
        self._batcher = Batcher.of(rules) if snapshot is None else Batcher.restore(snapshot, rules)

    @property
    def clock(self) -> int | None:
        return self._batcher.clock

    @property
    def due(self) -> int | None:
        return self._batcher.due

    def step(self, events: pa.Table, bound: int) -> Closed:
        columns = (events[name].to_pylist() for name in Event.__struct_fields__)
        received = self._batcher.receive_many([Event(*row) for row in zip(*columns, strict=True)])
        settled = self._batcher.advance(bound)
        return _closed(Outcome(received.batches + settled.batches, received.rejects + settled.rejects))

    def flush(self) -> Closed:
        return _closed(self._batcher.flush())

    def snapshot(self) -> bytes:
        return self._batcher.snapshot()


def closed_batches(batches: list[EventBatch]) -> pa.Table:
    """*batches* as a table of :data:`CLOSED_SCHEMA`."""
    columns = [pa.array([getattr(batch, field.name) for batch in batches], field.type) for field in CLOSED_SCHEMA]
    return pa.table(columns, schema=CLOSED_SCHEMA)


def _closed(outcome: Outcome) -> Closed:
    ids = pa.array([reject.rejected for reject in outcome.rejects], pa.int64())
    reasons = pa.array([reject.reason for reject in outcome.rejects], pa.string())
    return Closed(closed_batches(outcome.batches), pa.table([ids, reasons], schema=REJECT_SCHEMA))


def _check_rules(kept: Rulebook, rules: Rulebook) -> None:
    if kept != rules:
        raise SnapshotError(
            f"the snapshot was taken under other rules ({kept.version}) than asked for ({rules.version}): "
            "flush the old batcher first, or go on under its rules"
        )
