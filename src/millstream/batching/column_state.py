"""Open records as columns: what a :class:`~millstream.batching.column_batcher.ColumnBatcher` remembers.

It can also be exported as an :class:`~millstream.batching.engine.EngineState`, so that either batcher continues from
the snapshot of the other.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from millstream.batching.engine import EngineState, SourceState
from millstream.batching.errors import OLDER_SNAPSHOT, SnapshotError

EVENT_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("received_at", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)
"""One row an event: the source, then the members of a :data:`~millstream.batching.event.Row`."""


def rows_from_state(state: EngineState) -> pa.Table:
    """The open records of *state*, which must be that of one order-free engine, in no batch yet."""
    found: list[tuple[Any, ...]] = []
    for source in state.sources:
        opened = [row for batch in source.open for row in batch.rows]
        found.extend((source.source, *row) for row in [*opened, *source.pending])
    columns = zip(*found, strict=True) if found else ((),) * len(EVENT_SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)], EVENT_SCHEMA
    )


def state_from_rows(clock: int | None, flushed: bool, rows: pa.Table) -> EngineState:
    """The memory of an order-free engine in which *rows* are open; the batches they begin are found again."""
    ordered = sorted(zip(*(rows[name].to_pylist() for name in EVENT_SCHEMA.names), strict=True))
    groups = groupby(ordered, key=itemgetter(0))
    return EngineState(clock, flushed, [SourceState(name, [], [row[1:] for row in mine]) for name, mine in groups])


def write_rows(rows: pa.Table) -> bytes:
    """*rows* as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def read_rows(data: bytes) -> pa.Table:
    """What :func:`write_rows` wrote. Raises :class:`SnapshotError`."""
    try:
        rows = pa.ipc.open_stream(data).read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise SnapshotError(f"cannot read the open records of the snapshot: {error}; {OLDER_SNAPSHOT}") from error
    if rows.schema != EVENT_SCHEMA or any(column.null_count for column in rows.columns):
        raise SnapshotError(
            f"the open records of the snapshot have the columns {', '.join(rows.schema.names)}, expected "
            f"{', '.join(EVENT_SCHEMA.names)} without nulls: {OLDER_SNAPSHOT}"
        )
    return rows
