"""Recommended number of workers of each queue: a function of its depth and of the settings, without a history.

Every process that reads the depth gets the same number. Autoscalers wait by themselves before they remove workers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.mill.settings import QueueScalingSettings
from millstream.mill.tasks import QueueName
from millstream.queue.protocol import Depth


class QueueScaling(msgspec.Struct, frozen=True):
    """The bounds of the recommended number of workers of one queue, and the number of tasks for each worker."""

    least: int
    most: int
    tasks_per_worker: int


DEFAULT_SCALING: Mapping[str, QueueScaling] = {
    QueueName.AUDIT.value: QueueScaling(0, 10, 1000),
    QueueName.DUPLICATION_HIGH.value: QueueScaling(0, 10, 500),
    QueueName.DUPLICATION_LOW.value: QueueScaling(0, 10, 5000),
    QueueName.BIT_INTEGRITY.value: QueueScaling(0, 10, 500),
    QueueName.REPAIR.value: QueueScaling(0, 10, 100),
    QueueName.BIT_ERROR.value: QueueScaling(0, 1, 100),
    QueueName.BIT_REPORT.value: QueueScaling(0, 1, 100),
    QueueName.STORAGE_STATISTICS.value: QueueScaling(0, 1, 100),
}
"""Each queue of the mill. Bounds and sizes are those of the original deployment (reference mill, section 1.2), where it
had the queue and counted tasks; it kept a worker for `audit` also without tasks."""


def scaling_of(settings: Mapping[str, QueueScalingSettings]) -> Mapping[str, QueueScaling]:
    """The scaling of each queue of the mill, with what ``mill.scaling`` sets in the place of the defaults."""
    return {name: _with(default, settings.get(name)) for name, default in DEFAULT_SCALING.items()}


def recommended_workers(depth: Depth, scaling: QueueScaling) -> int:
    """The number of workers for a queue with *depth*: a worker for each ``tasks_per_worker`` ready or leased tasks,
    within the bounds, and at least one while a task is ready, leased or delayed."""
    if not depth.open:
        return scaling.least
    wanted = -(-(depth.ready + depth.leased) // scaling.tasks_per_worker)
    return max(1, scaling.least, min(wanted, scaling.most))


def recommended(depths: Mapping[str, Depth], scaling: Mapping[str, QueueScaling]) -> Mapping[str, int]:
    """:func:`recommended_workers` of each queue of *depths* that has a *scaling*, by name."""
    return {name: recommended_workers(depth, scaling[name]) for name, depth in depths.items() if name in scaling}


def _with(default: QueueScaling, given: QueueScalingSettings | None) -> QueueScaling:
    if given is None:
        return default
    least = default.least if given.least is None else given.least
    most = max(default.most, least) if given.most is None else given.most
    return QueueScaling(min(least, most), most, given.tasks_per_worker or default.tasks_per_worker)
