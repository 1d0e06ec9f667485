"""The metrics of the queues that workers serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from millstream.core.metric_collection.prometheus import MetricFamily, counter, gauge
from millstream.queue.protocol import Depth


class QueueMetrics(msgspec.Struct, frozen=True):
    """The last state of the monitor: the depth of each queue, the workers each should have, alarms that were not
    told."""

    depths: Mapping[str, Depth] = {}
    desired: Mapping[str, int] = {}
    untold: int = 0


def queue_metrics(figures: QueueMetrics) -> Iterator[MetricFamily]:
    """The figures as metrics."""
    states = ("ready", "leased", "delayed", "dead")
    tasks = [
        ({"queue": name, "state": state}, getattr(depth, state))
        for name, depth in figures.depths.items()
        for state in states
    ]
    yield gauge("queue_tasks", "", tasks)
    yield gauge("desired_workers", "", [({"queue": name}, count) for name, count in figures.desired.items()])
    yield counter("alarms_untold", "", figures.untold)
