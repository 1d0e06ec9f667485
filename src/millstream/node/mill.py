"""The mill of a node: its parts, and the workers on its queues."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.mill.audit.audit_processor import AuditProcessor, NotifyProcessor
from millstream.mill.duplication.direct import DirectDuplicator
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.errors import PolicyError
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.space_reports import BitReportProcessor, NotifyReportProcessor
from millstream.mill.notices.alarms import Alarm, Alarms
from millstream.mill.notices.receivers import CommandReceiver, MailReceiver, NoticeReceiver, WebHookReceiver
from millstream.mill.policies.repository import CachedPolicies, PolicyRepository
from millstream.mill.repair.bit_errors import BitErrorProcessor
from millstream.mill.repair.repairer import RepairProcessor
from millstream.mill.reports.statistics import StatisticsProcessor
from millstream.mill.task_processor import Processor, ProcessorRegistry
from millstream.mill.tasks import (
    Audit,
    BitCheck,
    BitError,
    BitReport,
    Duplicate,
    Notify,
    NotifyReport,
    QueueName,
    Repair,
    StorageStatistics,
)
from millstream.mill.workers.manager import WorkerManager, WorkerSettings, WorkTally
from millstream.mill.workers.monitor import EVERY, QueueMonitor, UndeliveredAlarm
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.scaling import scaling_of
from millstream.node.audit import AuditPart
from millstream.node.checks import ChecksPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.ledger_trees import LedgerTreesPart
from millstream.node.logs import LogsPart
from millstream.node.policies import PoliciesPart
from millstream.node.producers import ProducersPart
from millstream.node.queues import QueuesPart
from millstream.node.repairs import RepairsPart
from millstream.node.reports import ReportsPart
from millstream.node.stores import StoresPart
from millstream.queue import WorkQueue
from millstream.settings import AlarmSettings, Settings
from millstream.stores import StoreError

_QUIET_LOOKS = 2
"""An alarm is over after so many looks without it: the depth of a busy queue goes up and down around its limit."""

_IDLE_FIRST, _IDLE_LONGEST = 1.0, 10.0
"""How long, in seconds, idle workers of a shared queue wait at first and at most: a look at all takes 12 ms."""


class MillPart:
    """Audit, checks, reports, repairs and producers, each a separate part, and their workers."""

    def __init__(
        self,
        context: NodeContext,
        *,
        databases: DatabasesPart,
        logs: LogsPart,
        stores: StoresPart,
        policies: PoliciesPart,
        queues: QueuesPart,
        trees: LedgerTreesPart,
    ) -> None:
        self._context = context
        self._databases = databases
        self._stores = stores
        self._policies = policies
        self._queues = queues
        self._monitors: list[QueueMonitor] = []
        self.audit = AuditPart(context, databases, stores)
        self.checks = ChecksPart(databases, stores, self.audit)
        self.reports = ReportsPart(
            context,
            databases=databases,
            logs=logs,
            stores=stores,
            policies=policies,
            checks=self.checks,
            trees=trees,
        )
        self.repairs = RepairsPart(databases, stores, policies, self.audit)
        self.producers = ProducersPart(context, databases, stores, policies=policies, queues=queues, audit=self.audit)

    def workers(self, *names: QueueName, on_progress: Callable[[WorkTally], None] | None = None) -> WorkerManager:
        """A worker manager for the queues *names*, the first of them first.

        What killed workers were writing to the copies is removed: the others may have nothing to write there.
        """
        stores = self._stores
        with contextlib.suppress(PolicyError, StoreError):  # the part that needs the policies reports the error
            stores.clear_drafts(PolicyRepository(self._policies.location).load().destinations)
        return WorkerManager(
            [self._queues.open(name) for name in names],
            ProcessorRegistry(self._processors()),
            self._sink(),
            self._context.clock,
            worker_settings(self._context.settings),
            on_progress=on_progress,
            metrics=self._context.metrics,
            others_can_do=self._databases.members.other_workers().can_do,
        )

    def direct(self) -> DirectDuplicator:
        """Copies what a plan of this process finds, with no queue between."""
        outbox, policies = self._stores.outbox, self._cached_policies()
        audit = self._audit_processor(policies, notify=bool(_receivers(self._context.settings.mill.alarms)))
        return DirectDuplicator(self._duplication(policies), self._sink().settle, audit, outbox)

    def monitor(
        self,
        *names: QueueName,
        others: Callable[[], Sequence[Alarm] | None] = lambda: None,
        guards: bool = True,
        every: float = EVERY,
    ) -> QueueMonitor:
        """Watches the queues *names*, with *guards* the change guard, and *others*, *every* so many seconds: tells whom
        the settings name."""
        alarms = self._context.settings.mill.alarms
        watch = Alarms(alarms.most, alarms.longest / MICROSECONDS, quiet_looks=_QUIET_LOOKS)
        queues = {name.value: self._queues.open(name) for name in names}
        monitor = QueueMonitor(
            queues,
            self._context.clock,
            watch,
            _receivers(alarms),
            held=self._stores.change_guard.count_undecided if guards else lambda: 0,
            others=others,
            scaling=scaling_of(self._context.settings.mill.scaling),
            every=every,
        )
        self._monitors.append(monitor)
        return monitor

    @property
    def undelivered_alarms(self) -> Sequence[UndeliveredAlarm]:
        """The alarms of this process that did not arrive yet."""
        return [one for monitor in list(self._monitors) for one in monitor.undelivered]

    def prepare(self) -> None:
        """Open the tables of repairs and the folder of reports now."""
        _ = self.repairs.log, self.reports.archive

    def _processors(self) -> dict[type[Any], Processor]:
        providers, manifest = self._stores.providers, self._stores.manifest
        checks, reports, repairer = self.checks, self.reports, self.repairs.repairer
        policies = self._cached_policies()
        receivers = _receivers(self._context.settings.mill.alarms)
        return {
            Duplicate: self._duplication(policies),
            BitCheck: BitCheckProcessor(checks.checker),
            BitError: BitErrorProcessor(checks.checker, repairer, self.audit.lookup),
            BitReport: BitReportProcessor(
                providers, manifest, checks.bit_log, checks.checker, reports.reporter, notify=bool(receivers)
            ),
            StorageStatistics: StatisticsProcessor(manifest, self._stores.statistics, providers),
            Repair: RepairProcessor(repairer),
            Audit: self._audit_processor(policies, notify=bool(receivers)),
            Notify: NotifyProcessor(receivers),
            NotifyReport: NotifyReportProcessor(receivers),
        }

    def _duplication(self, policies: CachedPolicies) -> DuplicationProcessor:
        stores = self._stores
        return DuplicationProcessor(
            stores.providers, stores.manifest, stores.change_guard, policies=policies, outbox=stores.outbox,
            audit_lookup=self.audit.lookup,
        )  # fmt: skip

    def _audit_processor(self, policies: CachedPolicies, *, notify: bool) -> AuditProcessor:
        required = self._policies.required  # without policies that are there the changes would never be copied
        return AuditProcessor(self._stores.outbox, lambda: required(policies()), notify=notify)

    def _cached_policies(self) -> CachedPolicies:
        return CachedPolicies(PolicyRepository(self._policies.location), self._context.clock)

    def _sink(self) -> ResultSink:
        audit = self.audit.log, self._stores.outbox
        return ResultSink(self._stores.manifest, _OpenedQueues(self._queues), audit, self.checks.bit_log)


def _receivers(alarms: AlarmSettings) -> list[NoticeReceiver]:
    receivers: list[NoticeReceiver] = []
    if alarms.webhook:
        receivers.append(WebHookReceiver(alarms.webhook))
    if alarms.command:
        receivers.append(CommandReceiver(alarms.command))
    if alarms.mail_to:
        receivers.append(MailReceiver(alarms.smtp_host, alarms.smtp_port, alarms.mail_from, alarms.mail_to))
    return receivers


class _OpenedQueues(dict[str, WorkQueue]):
    """The node's queues by name, each opened when a task is first put on it."""

    def __init__(self, queues: QueuesPart) -> None:
        super().__init__()
        self._queues = queues

    def __missing__(self, name: str) -> WorkQueue:
        return self._queues.open(name)


def worker_settings(settings: Settings) -> WorkerSettings:
    """The settings of the workers of a node. If other processes also put tasks on the queues, idle workers poll every
    few seconds: only producers of their own process wake them."""
    own = WorkerSettings(threads=settings.mill.workers, visibility=settings.mill.visibility / MICROSECONDS)
    if not settings.queue.broker:
        return own
    return msgspec.structs.replace(own, idle_first=_IDLE_FIRST, idle_longest=_IDLE_LONGEST)
