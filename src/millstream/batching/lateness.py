"""Which records are taken at all: a question about the record alone, whatever came before it."""

from __future__ import annotations

from collections.abc import Callable

from millstream.batching.batch_config import BatchConfig
from millstream.batching.event import Reason


def lateness_rule(config: BatchConfig) -> Callable[[int, int], Reason | None]:
    """The test that *config* puts to a record's event time and receive time: None if taken, else the reason.

    A delay of exactly ``max_delay`` and a lead of exactly ``leap`` are taken (reference "batching", §1 rule 1). A
    record that is both late and a copy of another is late: only records that are taken are compared.
    """
    max_delay, lead = config.max_delay, config.lead

    def refusal(event_time: int, received_at: int) -> Reason | None:
        if event_time < received_at - max_delay:
            return "late"
        if event_time > received_at + lead:
            return "future"
        return None

    return refusal
