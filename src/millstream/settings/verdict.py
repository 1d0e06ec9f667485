"""The section ``verdict``: when the state of a node is an issue."""

from __future__ import annotations

from millstream.core.amounts import Duration, Size, parse_duration
from millstream.core.settings import Section, require_time


class VerdictSettings(Section, frozen=True):
    """Limits of the verdict on the node (console, `millstream status`, ``/metrics``).

    Each store is probed at the interval ``store_every``; a store that does not answer within ``store_timeout`` is shown
    as unknown. An integrity report is stale after ``report_age``, a consumer is behind if its first unread message is
    older than ``consumer_age``, the ledger is stuck if batches have waited for ``ledger_age`` after they were due, and
    a space is not well if an item that was recorded ``copy_age`` ago still lacks a copy. A disk is full below
    ``least_free`` bytes, and is about to be full if that takes less than ``disk_full_within`` at the rate of the last
    day. The clock is wrong if the node has recorded a time later than now by ``clock_off``, or if the
    clock was set by more than that while the node runs. A certificate is about to expire ``certificate_left`` before
    its end. A member that was lost is an issue for ``lost_member_age``. Kinds of issues in ``ignore`` are not reported.
    """

    store_every: Duration = parse_duration("15s")
    store_timeout: Duration = parse_duration("10s")
    report_age: Duration = parse_duration("60d")
    consumer_age: Duration = parse_duration("1h")
    ledger_age: Duration = parse_duration("1h")
    copy_age: Duration = parse_duration("1h")
    least_free: Size = Size(1_000_000_000)
    disk_full_within: Duration = parse_duration("24h")
    clock_off: Duration = parse_duration("60s")
    certificate_left: Duration = parse_duration("14d")
    lost_member_age: Duration = parse_duration("1h")
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_time(
            self, "store_every", "store_timeout", "report_age", "consumer_age", "ledger_age", "copy_age", "clock_off",
            "lost_member_age",
        )  # fmt: skip
