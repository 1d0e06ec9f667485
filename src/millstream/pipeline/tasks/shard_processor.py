"""The batcher inside a Spark stream: one value of state a shard, taken up, moved on and put back in each trigger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from millstream.batching import Rulebook
from millstream.batching.batch_log import OUTPUT_SCHEMA, output_rows
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.column_engines import ClosedTables
from millstream.batching.message_columns import split_out_of_range
from millstream.batching.metrics import record_closed, record_delays
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import events_of, read_share

if TYPE_CHECKING:
    import pandas as pd

STATE = "open"
"""The state variable of a shard: a batcher's snapshot."""

STATE_SCHEMA = "snapshot binary"

CLOSED_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("first_id", pa.int64(), nullable=False),
        pa.field("last_id", pa.int64(), nullable=False),
        pa.field("due", pa.int64()),
        pa.field("closed", pa.binary(), nullable=False),
        pa.field("batches", pa.int64(), nullable=False),
        pa.field("late", pa.int64(), nullable=False),
        pa.field("rejected", pa.int64(), nullable=False),
        pa.field("open_sources", pa.int64(), nullable=False),
        pa.field("figures", pa.binary(), nullable=False),
    ]
)
"""One row a shard and trigger: the ids of the trigger, when the shard will have more, and an Arrow IPC stream of
``OUTPUT_SCHEMA`` with what the trigger closed and refused. Then how much that is, how many sources are open, and what
the shard's collector holds, as MessagePack (``batching/metrics.py``)."""


class ShardBatchProcessor(StatefulProcessor):
    """Batches the shares of a shard by *rules*. Every trigger brings each shard one tick row (``SHARD_SCHEMA``)."""

    def __init__(self, rules: Rulebook) -> None:
        self._rules = rules
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._state = handle.getValueState(STATE, STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N803
        """One trigger of the shard *key*."""
        parts = [row for frame in rows for row in frame.itertuples(index=False)]
        ticks = [row for row in parts if row.tick]
        if len(ticks) != 1:
            raise PipelineError(
                f"shard {key[0]} has {len(ticks)} time marks in a trigger of the stream, expected 1: please report this"
            )
        (tick,) = ticks
        kept = self._state.get()
        batcher = ColumnBatcher(self._rules, kept[0] if kept else tick.seed)
        shares = sorted((row for row in parts if not row.tick), key=lambda row: row.first_id)
        events, beyond = split_out_of_range(events_of(read_share(row.share) for row in shares))
        closed = batcher.step(events, min(tick.received_to, MAX_SAFE_INTEGER))
        closed = closed._replace(rejects=pa.concat_tables([closed.rejects, beyond]))
        self._state.update((batcher.snapshot(),))
        told = (int(key[0]), tick.first_id, tick.last_id, batcher.due, _write(output_rows(closed)))
        yield _frame((*told, *_counts(closed), batcher.open_sources, _figures(events, closed)))

    def close(self) -> None:
        """Nothing is held."""


def closed_schema() -> Any:
    """:data:`CLOSED_SCHEMA` for Spark."""
    return spark_schema(CLOSED_SCHEMA)


def _counts(closed: ClosedTables) -> tuple[int, int, int]:
    """How many batches there are, and how many records are refused as late and in all."""
    return len(closed.batches), pc.sum(pc.equal(closed.rejects["reason"], "late")).as_py() or 0, len(closed.rejects)


def _figures(events: pa.Table, closed: ClosedTables) -> bytes:
    collector = MetricsCollector()
    record_delays(collector, events)
    record_closed(collector, closed)
    return msgspec.msgpack.encode(collector.figures())


def _write(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, OUTPUT_SCHEMA) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _frame(row: tuple[Any, ...]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame([row], columns=CLOSED_SCHEMA.names)
    return frame.astype({"due": "Int64", "shard": "int32"})
