"""The node's mill: tables, checks, reports and workers, wired from the node's database, stores and queues."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from millstream.anchoring import LedgerEntry, LogLedger
from millstream.anchoring.manifest import anchor_string
from millstream.core.cached import locked_cached_property
from millstream.core.cid import cid_of
from millstream.core.clock import MICROSECONDS, Clock
from millstream.log import LogStore
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.audit_processor import AuditProcessor, NotifyProcessor
from millstream.mill.audit.export import AuditExport
from millstream.mill.duplication.change_guard import ChangeBudgets, ChangeGuard
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker, BitCheckProcessor
from millstream.mill.integrity.space_reports import BitReportProcessor, NotifyReportProcessor, Reporter
from millstream.mill.integrity.superseded import recheck_superseded
from millstream.mill.manifest import CheckResult, Manifest
from millstream.mill.notices.alarms import Alarms
from millstream.mill.notices.receivers import CommandReceiver, MailReceiver, NoticeReceiver, WebHookReceiver
from millstream.mill.policies.locations import PolicyLocation
from millstream.mill.policies.repository import CachedPolicies, Policies, PolicyRepository
from millstream.mill.producers.bits import BitMorsel, BitProducer
from millstream.mill.producers.duplication import DuplicationMorsel, DuplicationProducer
from millstream.mill.producers.producer_loop import LoopRun, ProducerLoop
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.producers.state import StateFile
from millstream.mill.producers.statistics import StatisticsMorsel, StatisticsProducer
from millstream.mill.providers import Providers
from millstream.mill.repair.bit_errors import BitErrorProcessor
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer, RepairProcessor
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import IntegrityReport, encode_report
from millstream.mill.reports.statistics import SpaceStatistics, StatisticsProcessor
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
from millstream.mill.workers.monitor import QueueMonitor
from millstream.mill.workers.result_sink import Processor, ProcessorRegistry, ResultSink
from millstream.queue import WorkQueue
from millstream.settings import AlarmSettings, Settings
from millstream.stores.audit import AuditedStore, AuditOutbox

REPORT_LEDGER = "mill.ledger"
"""The log of the ledger of integrity reports."""


class MillNode(abc.ABC):
    """What the mill of a node is made of. Thread-safe."""

    settings: Settings
    folder: Path
    clock: Clock

    @property
    @abc.abstractmethod
    def store(self) -> LogStore:
        """The store of the message logs."""

    @property
    @abc.abstractmethod
    def database(self) -> sa.Engine:
        """The node's database."""

    @property
    @abc.abstractmethod
    def providers(self) -> Providers:
        """The storage providers by id."""

    @property
    @abc.abstractmethod
    def policies(self) -> Policies:
        """The duplication policies, as they are now."""

    @property
    @abc.abstractmethod
    def policy_location(self) -> PolicyLocation:
        """Where the duplication policies lie."""

    @abc.abstractmethod
    def queue(self, name: str) -> WorkQueue:
        """The work queue *name*, opened once and kept."""

    @locked_cached_property
    def outbox(self) -> AuditOutbox:
        """Changes of audited stores that are on their way to the audit log."""
        return AuditOutbox(self.database, self.clock)

    @locked_cached_property
    def audit_log(self) -> AuditLog:
        """Every change that was made to audited stores."""
        return AuditLog(self.database)

    @locked_cached_property
    def audit_export(self) -> AuditExport | None:
        """Exports the audit log to the space that the settings name; None where they name none."""
        place = self.settings.audit_log_space
        return None if place is None else AuditExport(self.providers, self.audit_log, self.outbox, *place)

    @locked_cached_property
    def manifest(self) -> Manifest:
        """What each copy must hash to, and when it last did."""
        return Manifest(self.database)

    @locked_cached_property
    def bit_log(self) -> BitLog:
        """What checks found since the last report of each space."""
        return BitLog(self.database)

    @locked_cached_property
    def statistics(self) -> SpaceStatistics:
        """How much each space held, and when."""
        return SpaceStatistics(self.database)

    @locked_cached_property
    def audit_lookup(self) -> AuditLookup:
        """What the audit says of items, for checks."""
        audited = [name for name, store in self.providers.items() if isinstance(store, AuditedStore)]
        return AuditLookup(self.audit_log, self.outbox, audited, account=self.settings.mill.account)

    @locked_cached_property
    def checker(self) -> BitChecker:
        """Checks single items by all four sources."""
        return BitChecker(self.providers, self.manifest, self.audit_lookup)

    @locked_cached_property
    def reports(self) -> ReportFolder:
        """The integrity reports, each chained to the one before."""
        return ReportFolder(self.folder / "reports")

    @locked_cached_property
    def reporter(self) -> Reporter:
        """Makes reports, and writes down in a ledger that they were made."""
        return Reporter(
            self.reports,
            self.bit_log,
            account=self.settings.mill.account,
            anchor=self.anchor_report,
            kinds={name: urlsplit(store.url).scheme for name, store in self.providers.items()},
        )

    @locked_cached_property
    def check_writer(self) -> CheckWriter:
        """Writes down what checks found."""
        return CheckWriter(self.manifest, self.bit_log)

    def recheck_superseded(self, findings: Iterable[CheckResult]) -> list[CheckResult]:
        """New results for *findings* of a sweep that changes have overtaken, also written down.

        To be called before the findings are written down: they change the manifest, too.
        """
        results = list(recheck_superseded(findings, self.manifest, self.checker))
        self.check_writer.write(results)
        return results

    @locked_cached_property
    def report_ledger(self) -> LogLedger:
        """The ledger of the integrity reports."""
        return LogLedger(self.store, self.clock, name=REPORT_LEDGER)

    def anchor_report(self, report: IntegrityReport) -> LedgerEntry:
        """The ledger's entry for *report*, made if need be: ``1.<CID of its canonical JSON>``."""
        return self.report_ledger.append(_anchor(report))

    def is_anchored(self) -> Callable[[IntegrityReport], bool]:
        """Whether a report is in the ledger, whose chain is checked first. Raises :class:`LedgerError`."""
        self.report_ledger.verify()
        anchored = {entry.anchor_string for entry in self.report_ledger.entries()}
        return lambda report: _anchor(report) in anchored

    @locked_cached_property
    def repairs(self) -> RepairLog:
        """What was healed, and what was not and why."""
        return RepairLog(self.database)

    @locked_cached_property
    def repairer(self) -> Repairer:
        """Heals copies by a vote of the manifest and the others."""
        return Repairer(self.providers, self.manifest, self.repairs, sources=self._sources)

    def _sources(self, space: str) -> frozenset[str]:
        return self.policies.sources(space)  # as they are when it is asked: somebody may have saved another policy

    def workers(self, *names: QueueName, on_progress: Callable[[WorkTally], None] | None = None) -> WorkerManager:
        """A worker manager for the queues *names*, the first of them first."""
        providers, manifest, checker = self.providers, self.manifest, self.checker
        policies = CachedPolicies(PolicyRepository(self.policy_location), self.clock)
        receivers = _receivers(self.settings.mill.alarms)
        processors: dict[type[Any], Processor] = {
            Duplicate: DuplicationProcessor(providers, manifest, self.change_guard, policies=policies),
            BitCheck: BitCheckProcessor(checker),
            BitError: BitErrorProcessor(checker, self.repairer, self.audit_lookup),
            BitReport: BitReportProcessor(
                providers, manifest, self.bit_log, checker, self.reporter, notify=bool(receivers)
            ),
            StorageStatistics: StatisticsProcessor(manifest, self.statistics, providers),
            Repair: RepairProcessor(self.repairer),
            Audit: AuditProcessor(self.outbox, policies, notify=bool(receivers)),
            Notify: NotifyProcessor(receivers),
            NotifyReport: NotifyReportProcessor(receivers),
        }
        mill = self.settings.mill
        return WorkerManager(
            [self.queue(name) for name in names],
            ProcessorRegistry(processors),
            ResultSink(self.manifest, _Queues(self), (self.audit_log, self.outbox), self.bit_log),
            self.clock,
            WorkerSettings(threads=mill.workers, visibility=mill.visibility / MICROSECONDS),
            on_progress=on_progress,
        )

    @locked_cached_property
    def change_guard(self) -> ChangeGuard:
        """Holds mass deletes and mass changes of copies for a person's approval."""
        limits = self.settings.mill.brake
        budgets = ChangeBudgets(limits.deletes, limits.changes, limits.least, limits.window, limits.approval)
        return ChangeGuard(self.database, self.clock, self.manifest.count, budgets)

    def duplication_loop(
        self,
        spaces: SpaceFilter,
        *,
        only_differences: bool = False,
        on_progress: Callable[[LoopRun], None] | None = None,
    ) -> tuple[ProducerLoop[DuplicationMorsel], DuplicationProducer]:
        """The looping duplication producer of *spaces*; with *only_differences* it leaves out what is the same."""
        queue, settings = self.queue(QueueName.DUPLICATION_LOW), self.settings.mill.produce
        producer = DuplicationProducer(
            CachedPolicies(PolicyRepository(self.policy_location), self.clock),
            self.providers,
            self.manifest,
            queue,
            change_guard=self.change_guard,
            only_differences=only_differences or settings.only_differences,
            spaces=spaces,
        )
        file = StateFile(self.folder / "producers" / "duplication.json", DuplicationMorsel)
        limits = {"frequency": settings.duplication_frequency, "most": settings.duplication_most}
        return ProducerLoop(file, producer, queue, self.clock, on_progress=on_progress, **limits), producer

    def bit_loop(
        self, spaces: SpaceFilter, *, on_progress: Callable[[LoopRun], None] | None = None
    ) -> ProducerLoop[BitMorsel]:
        """The looping bit producer of *spaces*."""
        queue, settings = self.queue(QueueName.BIT_INTEGRITY), self.settings.mill.produce
        producer = BitProducer(
            self.providers,
            self.manifest,
            queue,
            self.queue(QueueName.BIT_REPORT),
            self.clock,
            spaces=spaces,
            account=self.settings.mill.account,
            skip=settings.bits_skip,
        )
        file = StateFile(self.folder / "producers" / "bits.json", BitMorsel)
        limits = {"frequency": settings.bits_frequency, "most": settings.bits_most}
        return ProducerLoop(file, producer, queue, self.clock, on_progress=on_progress, **limits)

    def statistics_loop(
        self, spaces: SpaceFilter, *, on_progress: Callable[[LoopRun], None] | None = None
    ) -> ProducerLoop[StatisticsMorsel]:
        """The looping producer of the storage statistics of *spaces*."""
        queue, settings = self.queue(QueueName.STORAGE_STATISTICS), self.settings.mill.produce
        account = self.settings.mill.account
        producer = StatisticsProducer(self.manifest, self.statistics, queue, spaces=spaces, account=account)
        file = StateFile(self.folder / "producers" / "statistics.json", StatisticsMorsel)
        return ProducerLoop(
            file, producer, queue, self.clock, frequency=settings.statistics_frequency, most=settings.statistics_most,
            start=settings.statistics_start_time, on_progress=on_progress,
        )  # fmt: skip

    def monitor(self, *names: QueueName) -> QueueMonitor:
        """Watches the queues *names*, and tells whom the settings name of alarms."""
        alarms = self.settings.mill.alarms
        watch = Alarms(alarms.most, alarms.longest / MICROSECONDS)
        queues = {name.value: self.queue(name) for name in names}
        return QueueMonitor(
            queues, self.clock, watch, _receivers(alarms), held=lambda: len(self.change_guard.pending())
        )


def _anchor(report: IntegrityReport) -> str:
    return anchor_string(1, cid_of(encode_report(report)))


def _receivers(alarms: AlarmSettings) -> list[NoticeReceiver]:
    receivers: list[NoticeReceiver] = []
    if alarms.webhook:
        receivers.append(WebHookReceiver(alarms.webhook))
    if alarms.command:
        receivers.append(CommandReceiver(alarms.command))
    if alarms.mail_to:
        receivers.append(MailReceiver(alarms.smtp_host, alarms.smtp_port, alarms.mail_from, alarms.mail_to))
    return receivers


class _Queues(dict[str, WorkQueue]):
    """The node's queues by name, each opened when a task is first put on it."""

    def __init__(self, node: MillNode) -> None:
        super().__init__()
        self._node = node

    def __missing__(self, name: str) -> WorkQueue:
        return self._node.queue(name)
