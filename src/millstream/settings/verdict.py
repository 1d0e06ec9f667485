"""The section ``verdict`` of the settings."""

from __future__ import annotations

from millstream.core.amounts import Duration, Size, parse_duration
from millstream.core.settings import Section, require_time


class VerdictSettings(Section, frozen=True):
    """When the verdict on the node (console, `millstream status`, ``/metrics``) calls something an issue.

    Each store is asked every ``store_every``; one that does not answer within ``store_timeout`` is shown as unknown.
    An integrity report is stale after ``report_age``, a consumer is behind when its first unread message is older than
    ``consumer_age``, and the ledger is stuck when batches have waited for ``ledger_age``. A disk is full below
    ``least_free`` bytes. The clock is off when the node has recorded a time that is later by ``clock_off``. Kinds of
    issues in ``ignore`` are left out.
    """

    store_every: Duration = parse_duration("15s")
    store_timeout: Duration = parse_duration("10s")
    report_age: Duration = parse_duration("60d")
    consumer_age: Duration = parse_duration("1h")
    ledger_age: Duration = parse_duration("1h")
    least_free: Size = Size(1_000_000_000)
    clock_off: Duration = parse_duration("60s")
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_time(self, "store_every", "store_timeout", "report_age", "consumer_age", "ledger_age", "clock_off")
