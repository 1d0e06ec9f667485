"""Events as a table for the column batcher, and its tables as batches and rejects in a fixed order."""

from __future__ import annotations

import pyarrow as pa

from millstream.batching import Event, EventBatch, Reject
from millstream.batching.column_engines import ClosedTables
from millstream.batching.column_state import EVENT_SCHEMA


def table_of(events: list[Event]) -> pa.Table:
    return pa.table({name: [getattr(event, name) for event in events] for name in EVENT_SCHEMA.names}, EVENT_SCHEMA)


def named(closed: ClosedTables) -> tuple[list[EventBatch], list[Reject]]:
    batches = [
        EventBatch(**row | {"events": tuple(row["events"]), "amends": tuple(row["amends"])})
        for row in closed.batches.to_pylist()
    ]
    return in_order(batches, [Reject(**row) for row in closed.rejects.to_pylist()])


def in_order(batches: list[EventBatch], rejects: list[Reject]) -> tuple[list[EventBatch], list[Reject]]:
    batches = sorted(batches, key=lambda batch: (batch.source, batch.start, batch.batch))
    return batches, sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))
