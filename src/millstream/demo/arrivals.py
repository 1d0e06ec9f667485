"""What arrives in which log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from millstream.demo import datasets
from millstream.demo.delivery import deliver, with_receive_times
from millstream.demo.plan import DemoPlan
from millstream.demo.userfile import UserRecords


class Arrivals(NamedTuple):
    """A log's name, and the function that makes its messages, in order of arrival, when they are needed."""

    log: str
    messages: Callable[[], pa.Table]


def arrivals_of(plan: DemoPlan, records: UserRecords | None) -> Arrivals:
    """The user's *records*, or else the weather."""
    if records is not None:
        return Arrivals(plan.log, lambda: _own(records, plan))
    return Arrivals(plan.log, lambda: deliver(datasets.weather(plan.limit), plan.delivery))


def _own(records: UserRecords, plan: DemoPlan) -> pa.Table:
    return with_receive_times(records.records) if records.timed else deliver(records.records, plan.delivery)
