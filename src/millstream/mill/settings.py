"""The section ``mill`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from millstream.core.amounts import Duration, parse_duration
from millstream.core.clock import MICROSECONDS
from millstream.core.secrets import SecretCommand, SecretUrl
from millstream.core.settings import Section

TimeOfDay = Annotated[str, msgspec.Meta(pattern="^(([01][0-9]|2[0-3]):[0-5][0-9])?$")]


SCALED_QUEUES = (
    "audit", "duplication-high", "duplication-low", "bit-integrity", "repair", "bit-error", "bit-report",
    "storage-statistics",
)  # fmt: skip
"""The queues that ``mill.scaling`` may name: all queues of the mill."""


class AlarmSettings(Section, frozen=True):
    """Receivers of alarms about issues of the node (see `millstream status`), while `millstream serve` or `mill work`
    runs.

    A queue is an issue if it has dead letters, more than ``most`` tasks, or a task that has been ready for longer than
    ``longest``.

    ``webhook`` is a URL, ``command`` a program with its arguments (it reads JSON), and ``mail_to`` lists addresses that
    get mail from ``mail_from`` through the server ``smtp_host``. Users and log lines see only the host of ``webhook``
    and the program of ``command``: the rest often contains a token.
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
        """Whether a receiver is configured."""
        return bool(self.webhook or self.command or self.mail_to)


class ProduceSettings(Section, frozen=True):
    """The looping producers. A loop over all spaces begins at the interval ``…_frequency`` (0: no new loops). A run
    ends when its queue has ``…_most`` tasks. Producers that cron does not start run again after ``…_every``.

    With ``only_differences`` items that are equal in source and copy are not queued. Items verified within
    ``bits_skip`` are not checked again (0: all are). Counts of spaces begin at ``statistics_start``, such as
    ``"02:30"`` (UTC; empty: at any time).
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
    """Change guard: the maximum share of a space's copies that may be deleted (``deletes``) or replaced by other bytes
    (``changes``) within ``window`` without approval. ``least`` copies are always allowed. An approval expires after
    ``approval``.
    """

    deletes: float = 0.05
    changes: float = 0.25
    least: int = 100
    window: Duration = parse_duration("24h")
    approval: Duration = parse_duration("7d")


class QueueScalingSettings(Section, frozen=True):
    """Recommended number of workers of one queue, such as ``[mill.scaling.duplication-low]``: one for each
    ``tasks_per_worker`` ready or leased tasks, between ``least`` and ``most``, and at least one while a task is ready,
    leased or delayed. A value that is not set is the default of the queue (docs/mill.md#recommended-number-of-workers).
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
    ``processes`` is the number of worker processes for small files in local folders (default: one per processor, at
    most four, and none on a machine with one processor; 0: none); they start when there is enough work. ``visibility``
    is the lease of a task; a worker extends it while it works. ``pools`` lists the queues of each pool by priority, in
    addition to the built-in pools; a pool of the same name replaces one. ``scaling`` sets the recommended number of
    workers of each queue, for autoscalers.
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
