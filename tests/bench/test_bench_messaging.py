"""The messaging benchmark runs, and all its contenders do all the work."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")

from millstream.bench.messaging import comparisons
from millstream.bench.messaging.task import MessagingTask, delay_figures
from millstream.bench.runner import measure
from millstream_peers.messaging.grpc_floor import (
    receive_batches_floor,
    send_batches_floor,
    send_gathered_floor,
    send_singly_floor,
)


@pytest.mark.served
def test_every_comparison_gives_figures_of_every_contender(tmp_path: Path) -> None:
    for comparison in comparisons("quick", tmp_path):
        result = measure(comparison, 1, lambda _: None)
        assert result.rows[0].contender == "Millstream's client and broker"
        for row in result.rows:
            assert row.median > 0
            assert row.figures["server CPU µs/message"] >= 0


def test_the_minimal_server_stores_what_it_is_timed_for(tmp_path: Path) -> None:
    work = MessagingTask("", tmp_path, (), lambda _name: None)
    for run in (send_gathered_floor, send_singly_floor):
        assert run(work.of(200)).value > 0
    for run in (send_batches_floor, receive_batches_floor):
        assert run(work.of(1_500)).value > 0, "two calls"


def test_delays_are_told_in_milliseconds() -> None:
    figures = delay_figures([number / 1000 for number in range(1, 101)])
    assert figures["p50 ms"] == pytest.approx(50.5)
    assert figures["p99 ms"] == pytest.approx(99.99)
    assert delay_figures([1.0]) == {}
