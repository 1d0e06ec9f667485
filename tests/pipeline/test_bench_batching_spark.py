"""The benchmark of batching on Spark does the work that it times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.bench.batching_spark import SparkBatchingRuns, fleet_messages
from millstream.core.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_every_host_batches_all_messages(spark: SparkSession, tmp_path: Path) -> None:
    comparison = SparkBatchingRuns(spark, tmp_path, SystemClock(), 2).hosts(3000, 50)
    samples = {contender.name: contender.run() for contender in comparison.contenders}
    assert all(sample.value > 0 and sample.figures["CPU µs/message"] > 0 for sample in samples.values())
    for name in ("history, batches", "history, batches and lines"):
        assert samples[name].figures["steady messages/s"] > 0
    counts = [samples[name].figures["batches"] for name in ("history, batches", "history, batches and lines")]
    assert counts[0] == counts[1] >= samples["stream"].figures["batches"] > 0


def test_a_fleet_reports_in_order_of_receipt() -> None:
    messages = fleet_messages(1000, 7)
    received = messages["received_at"].to_pylist()
    assert received == sorted(received)
    assert len(set(messages["source"].to_pylist())) == 7
    assert all(len(body) == 40 for body in messages["body"].to_pylist())
