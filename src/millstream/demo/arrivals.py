"""The arrivals of records, by log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from millstream.demo import datasets
from millstream.demo.delivery import deliver, with_receive_times
from millstream.demo.plan import FLIGHTS_LOG, DemoPlan
from millstream.demo.userfile import UserRecords


class Arrivals(NamedTuple):
    """A log's name, and the function that makes its messages, in order of arrival, when they are needed."""

    log: str
    messages: Callable[[], pa.Table]


FLIGHTS = 27_004
"""The flights of January, with which the log of flights ends."""

_FLIGHTS_SHARE = 8
"""Of this many measurements of the weather a limited demo has one flight, as the whole one has."""


def arrivals_of(plan: DemoPlan, records: UserRecords | None) -> Sequence[Arrivals]:
    """The user's *records*, or else the weather and the flights: the first log is the one of which is proven."""
    if records is not None:
        return [Arrivals(plan.log, lambda: _own(records, plan))]
    weather = Arrivals(plan.log, lambda: deliver(datasets.weather(plan.limit), plan.delivery))
    if not plan.flights:
        return [weather]
    limit = FLIGHTS if plan.limit is None else min(FLIGHTS, -(-plan.limit // _FLIGHTS_SHARE))
    return [weather, Arrivals(FLIGHTS_LOG, lambda: deliver(datasets.flights(limit), plan.delivery))]


def _own(records: UserRecords, plan: DemoPlan) -> pa.Table:
    return with_receive_times(records.records) if records.timed else deliver(records.records, plan.delivery)
