"""The collector keeps what is reported to it, by name and labels."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.metric_collection.collector import BOUNDS, MetricsCollector
from millstream.core.metric_collection.hook import Metrics


def test_counters_add_up_by_label_and_gauges_keep_the_last_value() -> None:
    collector: Metrics = MetricsCollector()
    assert isinstance(collector, MetricsCollector)
    collector.count("rejects", reason="late")
    collector.count("rejects", 3, reason="late", source="p")
    collector.count("rejects", reason="future")
    collector.gauge("open", 7)
    collector.gauge("open", 2)
    figures = collector.figures()
    assert figures.by_label("rejects", "reason") == {"late": 4, "future": 1}
    assert figures.by_label("rejects", "source") == {"": 2, "p": 3}
    assert figures.gauges == {("open", ()): 2}
    collector.gauge("open", 1, log="a")
    collector.remove_gauge("open")
    collector.remove_gauge("open")
    assert collector.figures().gauges == {("open", (("log", "a"),)): 1}


@given(st.lists(st.floats(-1e6, 1e7), min_size=1, max_size=60), st.floats(0, 1))
def test_a_histogram_says_what_so_many_values_do_not_exceed(values: list[float], share: float) -> None:
    collector = MetricsCollector()
    collector.observe("delay", values[0])
    collector.observe_many("delay", np.array(values[1:]))
    (histogram,) = collector.figures().histograms.values()
    assert (histogram.count, histogram.least, histogram.greatest) == (len(values), min(values), max(values))
    assert np.isclose(histogram.total, sum(values))
    assert sum(histogram.classes) == len(values)
    bound = histogram.quantile(share)
    assert sum(value <= bound for value in values) >= share * len(values)
    assert bound in BOUNDS or bound == max(values)


def test_nothing_is_lost_where_threads_report_at_once() -> None:
    collector = MetricsCollector()
    threads = [
        threading.Thread(target=lambda: [collector.count("n") for _ in range(2000)])  # type: ignore[func-returns-value]
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collector.figures().by_label("n", "") == {"": 8000}
