"""What hosts of the batcher report, under the same names everywhere (``docs/formats/batch-log.md``, "Metrics")."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.columnengines import Closed
from millstream.core.clock import MICROSECONDS
from millstream.core.metrics import Metrics


def measure_delays(metrics: Metrics, messages: pa.RecordBatch) -> None:
    """How long each of *messages* took from event to receipt."""
    delays = pc.subtract(messages.column("received_at"), messages.column("event_time")).to_numpy()
    metrics.observe_many("batching_delay_seconds", delays / MICROSECONDS)


def measure_closed(metrics: Metrics, closed: Closed) -> None:
    """The batches of *closed* by why they ended and their kind, and its rejects by reason."""
    for reason in pc.value_counts(closed.rejects["reason"]).to_pylist():
        metrics.count("batching_rejects_total", reason["counts"], reason=reason["values"])
    for row in closed.batches.group_by(["cut", "kind"]).aggregate([([], "count_all")]).to_pylist():
        metrics.count("batching_batches_total", row["count_all"], cut=row["cut"], kind=row["kind"])
