"""The section ``mill`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from millstream.core.amounts import Duration, Size, parse_duration
from millstream.core.clock import MICROSECONDS
from millstream.core.secrets import SecretCommand, SecretUrl
from millstream.core.settings import Section, require_time

TimeOfDay = Annotated[str, msgspec.Meta(pattern="^(([01][0-9]|2[0-3]):[0-5][0-9])?$")]


SCALED_QUEUES = (
    "audit", "duplication-high", "duplication-low", "bit-integrity", "repair", "bit-error", "bit-report",
    "storage-statistics",
)  # fmt: skip
"""The queues that ``mill.scaling`` may name: all queues of the mill."""


class AlarmSettings(Section, frozen=True):
    """Who is told of each issue of the node (see `millstream status`) while `millstream serve` or `mill work` runs.

    A queue is an issue when it has dead letters, more than ``most`` tasks, or one that has been ready for more than
    ``longest``.

    ``webhook`` is a URL, ``command`` a program with its arguments (it reads JSON), ``mail_to`` are addresses that get
    mail from ``mail_from`` through the server ``smtp_host``. Of ``webhook`` only the host, and of ``command``
    only the program, is shown to users and written to log lines: the rest often holds a token.
    """

    most: int = 1_000_000
    longest: Duration = Duration(24 * 3600 * MICROSECONDS)
    webhook: SecretUrl = SecretUrl("")
    command: SecretCommand = SecretCommand(())
    mail_to: tuple[str, ...] = ()
    mail_from: str = "millstream@localhost"
    smtp_host: str = "localhost"
    smtp_port: int = 25

    @property
    def tells_somebody(self) -> bool:
        """Whether anybody is told."""
        return bool(self.webhook or self.command or self.mail_to)


class ProduceSettings(Section, frozen=True):
    """The looping producers. A loop over every space begins each ``…_frequency`` (0 switches new ones off); a run ends
    when its queue has ``…_most`` tasks. Producers that are not called by cron look again after ``…_every``.

    With ``only_differences`` what is the same at both ends is not put on the queue; what was read and found good in the
    last ``bits_skip`` is not checked again (0: everything is). Spaces are counted from ``statistics_start``, such as
    ``"02:30"`` (UTC), on, or at any time.
    """

    duplication_frequency: Duration = parse_duration("30d")
    duplication_most: int = 10_000
    duplication_every: Duration = parse_duration("10m")
    only_differences: bool = False
    bits_frequency: Duration = parse_duration("30d")
    bits_most: int = 10_000
    bits_every: Duration = parse_duration("7m")
    bits_skip: Duration = parse_duration("0s")
    statistics_frequency: Duration = parse_duration("1d")
    statistics_most: int = 10_000
    statistics_every: Duration = parse_duration("1h")
    statistics_start: TimeOfDay = ""
    audit_log_every: Duration = parse_duration("1d")

    @property
    def statistics_start_time(self) -> int | None:
        """Microseconds from midnight (UTC) to ``statistics_start``; None where there is none."""
        hours, colon, minutes = self.statistics_start.partition(":")
        return (int(hours) * 60 + int(minutes)) * 60 * MICROSECONDS if colon else None


class ChangeGuardSettings(Section, frozen=True):
    """Change guard: the share of a space's copies that may be deleted, or replaced by other bytes, within ``window``
    before a person is asked; ``least`` of them may in any case. An approval is good for ``approval``.
    """

    deletes: float = 0.05
    changes: float = 0.25
    least: int = 100
    window: Duration = parse_duration("24h")
    approval: Duration = parse_duration("7d")


class QueueScalingSettings(Section, frozen=True):
    """Recommended number of workers of one queue, such as ``[mill.scaling.duplication-low]``: one for each
    ``tasks_per_worker`` ready or leased tasks, between ``least`` and ``most``, and at least one while a task is ready,
    leased or delayed. A value that is not set is the default of the queue (see the page on the mill).
    """

    least: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    tasks_per_worker: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"most ({self.most}) must not be less than least ({self.least})")


class MillSettings(Section, frozen=True):
    """Bulk tasks. ``policies`` is the folder of the policy files, or ``STORE:SPACE`` for a space of a store.

    Empty means the folder ``policies`` in the data folder.
    ``audit_log`` is the ``STORE:SPACE`` to which the audit log is exported; without it, it is not.
    ``processes`` do the file work of many small items in local folders, beside the one that has queues and tables
    (without it as many as there are processors, four at most, and none on a machine of one; 0 for none): they are
    started when there is enough to do. ``visibility`` is how long a task is hidden once a worker has it; leases are
    extended while it works. ``pools`` are lists of queues, the first comes first, in addition to (or in the place of)
    those that are built in. ``scaling`` sets, by queue, how many workers are recommended to autoscalers.
    """

    account: str = "local"
    policies: str = ""
    audit_log: str = ""
    workers: int = 8
    processes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    alarms: AlarmSettings = AlarmSettings()
    produce: ProduceSettings = ProduceSettings()
    change_guard: ChangeGuardSettings = ChangeGuardSettings()
    pools: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    visibility: Duration = Duration(60 * MICROSECONDS)
    scaling: Mapping[str, QueueScalingSettings] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.scaling) - set(SCALED_QUEUES)):
            raise ValueError(f"scaling: unknown queue {unknown[0]!r}; the queues are {', '.join(SCALED_QUEUES)}")


class VerdictSettings(Section, frozen=True):
    """When the verdict on the node (console, `millstream status`, ``/metrics``) calls something an issue.

    Each store is asked every ``store_every``; one that does not answer within ``store_timeout`` is shown as unknown.
    An integrity report is stale after ``report_age``, a consumer is behind when its first unread message is older than
    ``consumer_age``, and the ledger is stuck when batches have waited for ``ledger_age``. A disk is full below
    ``least_free`` bytes. The clock is off when the node has recorded a time that is later by ``clock_off``, or when it
    was set by more than that while the node runs. A certificate is about to expire ``certificate_left`` before its end.
    Kinds of issues in ``ignore`` are left out.
    """

    store_every: Duration = parse_duration("15s")
    store_timeout: Duration = parse_duration("10s")
    report_age: Duration = parse_duration("60d")
    consumer_age: Duration = parse_duration("1h")
    ledger_age: Duration = parse_duration("1h")
    least_free: Size = Size(1_000_000_000)
    clock_off: Duration = parse_duration("60s")
    certificate_left: Duration = parse_duration("14d")
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_time(self, "store_every", "store_timeout", "report_age", "consumer_age", "ledger_age", "clock_off")
