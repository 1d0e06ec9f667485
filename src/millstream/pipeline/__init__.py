"""Spark jobs: whatever reads all records or all content runs as one.

This is the only package that imports PySpark. Names are loaded when they are first used; :mod:`.java` works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.pipeline.errors import PipelineError, PipelineInputError
    from millstream.pipeline.history import batch_range, write_batches
    from millstream.pipeline.java import explain_java, find_java
    from millstream.pipeline.jobs.advise import try_rules
    from millstream.pipeline.jobs.anchor import anchor_history
    from millstream.pipeline.jobs.audit import AnchorAuditResult, audit_anchors, audit_identifiers
    from millstream.pipeline.jobs.batch import BatchJob, run_batch
    from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
    from millstream.pipeline.jobs.changes import find_changes
    from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
    from millstream.pipeline.jobs.ingest import run_ingest
    from millstream.pipeline.jobs.integrity import run_integrity
    from millstream.pipeline.jobs.inventory import run_inventory
    from millstream.pipeline.jobs.operations import OperationsPlan, run_operations
    from millstream.pipeline.jobs.report import JudgedSweep, SpaceSweep, run_report
    from millstream.pipeline.jobs.statistics import space_statistics
    from millstream.pipeline.jobs.verify_batches import BatchMismatch, BatchVerification, verify_batches
    from millstream.pipeline.output.batch_sink import Trigger
    from millstream.pipeline.output.job_folder import JobRecord, remove_old_jobs
    from millstream.pipeline.planning.due_items import DueRule
    from millstream.pipeline.planning.source_files import find_files
    from millstream.pipeline.session import SparkOptions, spark_session, warm_up
    from millstream.pipeline.source import follow_log, read_log, register, write_log
    from millstream.pipeline.stream_progress import StreamLag, stream_lag
    from millstream.pipeline.tables import (
        read_anchored_batches,
        read_anchors,
        read_batches,
        read_facts,
        read_findings,
        read_rejects,
    )
    from millstream.pipeline.tasks.copy_comparison import compare_copies
    from millstream.pipeline.tasks.file_parsing import ParsingRules

__all__ = [
    "AnchorAuditResult",
    "BatchJob",
    "BatchMismatch",
    "BatchVerification",
    "DueRule",
    "JobRecord",
    "JudgedSweep",
    "OperationsPlan",
    "ParsingRules",
    "PipelineError",
    "PipelineInputError",
    "SpaceSweep",
    "SparkOptions",
    "StreamLag",
    "StreamPlan",
    "Trigger",
    "anchor_history",
    "audit_anchors",
    "audit_identifiers",
    "batch_range",
    "compare_copies",
    "copy_missing",
    "explain_java",
    "find_changes",
    "find_files",
    "find_java",
    "follow_log",
    "plan_duplication",
    "read_anchored_batches",
    "read_anchors",
    "read_batches",
    "read_facts",
    "read_findings",
    "read_log",
    "read_rejects",
    "register",
    "remove_old_jobs",
    "run_batch",
    "run_ingest",
    "run_integrity",
    "run_inventory",
    "run_operations",
    "run_report",
    "run_stream",
    "space_statistics",
    "spark_session",
    "stream_lag",
    "try_rules",
    "verify_batches",
    "warm_up",
    "write_batches",
    "write_log",
]

__getattr__ = lazy_names(__name__)
