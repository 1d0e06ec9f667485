"""The benchmark of identifiers does what it says, at its smallest size."""

from __future__ import annotations

import pytest

from millstream.bench.runner import run_benchmark
from millstream.core.clock import SystemClock

pytestmark = pytest.mark.served


def test_every_part_gives_a_rate() -> None:
    report = run_benchmark("anchoring", size="quick", runs=1, clock=SystemClock(), show=lambda _: None)
    assert len(report.results) == 10
    assert all(row.median > 0 for result in report.results for row in result.rows)
