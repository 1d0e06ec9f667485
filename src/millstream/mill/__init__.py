"""Bulk care of copies: duplication by policy, bit integrity checks, repair by vote, honest reports, workers.

Decisions are pure functions over frozen structs (:mod:`.duplication.duplication_decision`, :mod:`.integrity_decision`,
:mod:`.repair.vote`); everything that touches a provider, the manifest or a queue executes what they decided.

Names are loaded when they are first used. An import contract in ``pyproject.toml`` holds the order of the modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.mill.adoption.dry_run import ProtectionPlan
    from millstream.mill.adoption.protection import Protection, ProtectionReport
    from millstream.mill.audit.audit_log import AuditLog
    from millstream.mill.audit.audit_queue import AuditQueue
    from millstream.mill.audit.export import AuditExport
    from millstream.mill.configured_stores import ConfiguredStores
    from millstream.mill.duplication.change_guard import ChangeBudgets, ChangeGuard, PendingApproval
    from millstream.mill.duplication.differences import DuplicationPlan
    from millstream.mill.duplication.planning import plan_space_duplication
    from millstream.mill.errors import MillError, PolicyError, TaskError, UnknownSpaceError, UnknownStoreError
    from millstream.mill.integrity.bit_log import BitLog
    from millstream.mill.integrity.checker import BitChecker
    from millstream.mill.integrity.sweep import check_space
    from millstream.mill.integrity_decision import CheckVerdict
    from millstream.mill.manifest import Manifest, ManifestEvent, ManifestRow
    from millstream.mill.notices.alarms import Alarm, Alarms
    from millstream.mill.policies.lint import lint_policies
    from millstream.mill.policies.policy import Pair, Policy, encode_policy
    from millstream.mill.policies.repository import CachedPolicies, Policies, PolicyRepository
    from millstream.mill.policies.saving import PolicyConflictError, read_policy, save_policy
    from millstream.mill.producers.duplication import DuplicationProducer
    from millstream.mill.producers.producer_loop import LoopOutcome, LoopRun, ProducerLoop
    from millstream.mill.producers.space_filter import SpaceFilter
    from millstream.mill.repair.repair_log import RepairEvent, RepairLog
    from millstream.mill.repair.repairer import Repairer
    from millstream.mill.reports.coverage import SpaceCoverage
    from millstream.mill.reports.report import IntegrityReport, ReportResult, SpaceTally
    from millstream.mill.task_processor import Processor, ProcessorRegistry, TaskResult
    from millstream.mill.tasks import QueueName, Task, decode_task, encode_task
    from millstream.mill.workers.manager import WorkerManager, WorkerSettings, WorkTally
    from millstream.mill.workers.monitor import QueueMonitor
    from millstream.mill.workers.result_sink import ResultSink

__all__ = [
    "Alarm",
    "Alarms",
    "AuditExport",
    "AuditLog",
    "AuditQueue",
    "BitChecker",
    "BitLog",
    "CachedPolicies",
    "ChangeBudgets",
    "ChangeGuard",
    "CheckVerdict",
    "ConfiguredStores",
    "DuplicationPlan",
    "DuplicationProducer",
    "IntegrityReport",
    "LoopOutcome",
    "LoopRun",
    "Manifest",
    "ManifestEvent",
    "ManifestRow",
    "MillError",
    "Pair",
    "PendingApproval",
    "Policies",
    "Policy",
    "PolicyConflictError",
    "PolicyError",
    "PolicyRepository",
    "Processor",
    "ProcessorRegistry",
    "ProducerLoop",
    "Protection",
    "ProtectionPlan",
    "ProtectionReport",
    "QueueMonitor",
    "QueueName",
    "RepairEvent",
    "RepairLog",
    "Repairer",
    "ReportResult",
    "ResultSink",
    "SpaceCoverage",
    "SpaceFilter",
    "SpaceTally",
    "Task",
    "TaskError",
    "TaskResult",
    "UnknownSpaceError",
    "UnknownStoreError",
    "WorkTally",
    "WorkerManager",
    "WorkerSettings",
    "check_space",
    "decode_task",
    "encode_policy",
    "encode_task",
    "lint_policies",
    "plan_space_duplication",
    "read_policy",
    "save_policy",
]

__getattr__ = lazy_names(__name__)
