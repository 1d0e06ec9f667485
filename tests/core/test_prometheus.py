"""Figures as Prometheus reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.metric_collection.collector import BOUNDS, MetricsCollector
from millstream.core.metric_collection.prometheus import counter, families_of, gauge, prometheus_text, write_prometheus


def test_figures_stand_by_name_with_their_labels_and_kind(tmp_path: Path) -> None:
    collector = MetricsCollector()
    collector.count("rejects_total", 3, reason="late")
    collector.count("rejects_total", 1, reason='a "quoted\\ one"\n')
    collector.gauge("open_sources", 7)
    write_prometheus(tmp_path / "figures.prom", collector.figures())
    assert (tmp_path / "figures.prom").read_text().splitlines() == [
        "# TYPE millstream_rejects_total counter",
        r'millstream_rejects_total{reason="a \"quoted\\ one\"\n"} 1',
        'millstream_rejects_total{reason="late"} 3',
        "# TYPE millstream_open_sources gauge",
        "millstream_open_sources 7",
    ]


def test_a_histogram_counts_all_up_to_each_bound() -> None:
    collector = MetricsCollector()
    collector.observe_many("delay_seconds", np.array([0.0, 0.002, 2.0, 1e9]), log="in")
    lines = prometheus_text(families_of(collector.figures())).splitlines()
    assert lines[0] == "# TYPE millstream_delay_seconds histogram"
    assert 'millstream_delay_seconds_bucket{log="in",le="0.005"} 2' in lines
    assert lines[-3:] == [
        'millstream_delay_seconds_bucket{log="in",le="+Inf"} 4',
        'millstream_delay_seconds_sum{log="in"} 1000000002.002',
        'millstream_delay_seconds_count{log="in"} 4',
    ]
    assert len(lines) == len(BOUNDS) + 4


def test_a_histogram_with_several_labels_has_one_type_line() -> None:
    collector = MetricsCollector()
    for log in ("a", "b"):
        collector.observe("delay_seconds", 1.0, log=log)
    lines = prometheus_text(families_of(collector.figures())).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# TYPE millstream_delay_seconds histogram"]
    assert [line for line in lines if "_count" in line] == [
        'millstream_delay_seconds_count{log="a"} 1',
        'millstream_delay_seconds_count{log="b"} 1',
    ]


def test_a_family_has_a_help_text_and_numbers_without_a_needless_fraction() -> None:
    families = [
        gauge("age_seconds", "how old", [({"queue": "a"}, 2.0), ({}, 0.25)]),
        counter("anchors_total", "", 2**60),
    ]
    assert prometheus_text(families).splitlines() == [
        "# HELP millstream_age_seconds how old",
        "# TYPE millstream_age_seconds gauge",
        'millstream_age_seconds{queue="a"} 2',
        "millstream_age_seconds 0.25",
        "# TYPE millstream_anchors_total counter",
        f"millstream_anchors_total {2**60}",
    ]


@given(st.lists(st.lists(st.integers(-5, 10**6), max_size=9), max_size=5))
def test_collectors_that_are_added_up_hold_what_one_would_have_held(parts: list[list[int]]) -> None:
    whole, joined = MetricsCollector(), MetricsCollector()
    for values in parts:
        part = MetricsCollector()
        for collector in (whole, part):
            collector.count("batches_total", len(values))
            collector.gauge("open", len(values))
            collector.observe_many("delay", [float(value) for value in values])
        joined.absorb(part.figures())
    assert joined.figures() == whole.figures()
