"""What hosts of the batcher report, under the same names everywhere (``docs/formats/batch-log.md``, "Metrics")."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.column_engines import ClosedTables
from millstream.core.clock import MICROSECONDS
from millstream.core.metric_collection.collector import MetricsSnapshot
from millstream.core.metric_collection.hook import Metrics


def record_delays(metrics: Metrics, messages: pa.RecordBatch | pa.Table) -> None:
    """How long each of *messages*, or events, took from event to receipt."""
    delays = pc.subtract(messages.column("received_at"), messages.column("event_time")).to_numpy()
    metrics.observe_many("batching_delay_seconds", delays / MICROSECONDS)


def record_closed(metrics: Metrics, closed: ClosedTables) -> None:
    """The batches of *closed* by why they ended and their kind, and its rejects by reason."""
    for reason in pc.value_counts(closed.rejects["reason"]).to_pylist():
        metrics.count("batching_rejects_total", reason["counts"], reason=reason["values"])
    cuts, kinds = (closed.batches[name].to_pylist() for name in ("cut", "kind"))
    for (cut, kind), count in Counter(zip(cuts, kinds, strict=True)).items():
        metrics.count("batching_batches_total", count, cut=cut, kind=kind)


OPEN_GAUGES = ("batching_open_sources", "batching_settle_lag_seconds")
"""What :func:`record_open` sets: to be removed when a service has ended, which another process may continue."""


def record_open(metrics: Metrics, sources: int, due: int | None, now: int) -> None:
    """How many *sources* are open, and for how long the next batch, *due* at a clock if at all, has been so *now*."""
    lag = 0.0 if due is None else max(0, now - due) / MICROSECONDS
    for gauge, value in zip(OPEN_GAUGES, (sources, lag), strict=True):
        metrics.gauge(gauge, value)


def delay_quantiles(figures: MetricsSnapshot) -> dict[str, float]:
    """How many seconds half of the messages, 99 % and all of them took from event to receipt at most."""
    delays = figures.histograms.get(("batching_delay_seconds", ()))
    return {} if delays is None else {name: delays.quantile(share) for name, share in _SHARES.items()}


_SHARES = {"half": 0.5, "most": 0.99, "all": 1.0}
