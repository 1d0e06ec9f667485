"""Writes the results of tasks: to the manifest, the queues, the bit log and the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.core.sql import writing
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import add_missed
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.manifest import Manifest
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import QueueName, encode_task
from millstream.queue.protocol import WorkQueue
from millstream.stores.audit import AuditOutbox


class ResultSink:
    """Writes down results: the manifest's events, then new tasks, then what checks found, and audits last.

    *audit* is the audit log, and the outbox from which its events come; *bit_log* has what checks find.

    All is durable when :meth:`settle` returns. A task whose results were written twice (its worker died before the
    acknowledgement) changes nothing more.
    """

    def __init__(
        self,
        manifest: Manifest,
        queues: Mapping[str, WorkQueue],
        audit: tuple[AuditLog, AuditOutbox] | None = None,
        bit_log: BitLog | None = None,
    ) -> None:
        self._manifest = manifest
        self._checks = CheckWriter(manifest, bit_log)
        self._queues = queues
        self._audit_parts = audit

    def settle(self, results: Sequence[TaskResult]) -> None:
        """Write down *results* in one transaction a place, or in one for all where they make no tasks."""
        if self._audit_parts is not None and not any(result.tasks for result in results):
            log, outbox = self._audit_parts
            if self._manifest.writer.engine is log.engine is outbox.engine:
                with writing(log.engine):
                    self._settle(results)
                return
        self._settle(results)

    def _settle(self, results: Sequence[TaskResult]) -> None:
        events = [event for result in results for event in result.events]
        checks = [check for result in results for check in result.checks]
        if events:
            self._manifest.writer.record(events)  # first: a delete that is duplicated at once needs its tombstone
        for name in QueueName:
            bodies = [encode_task(task) for result in results for queue, task in result.tasks if queue == name]
            if bodies:
                self._queues[name].put(bodies)
        if checks:
            self._checks.write(checks)
        if self._audit_parts is not None:
            self._audit(*self._audit_parts, results)

    @staticmethod
    def _audit(log: AuditLog, outbox: AuditOutbox, results: Sequence[TaskResult]) -> None:
        if missed := [event for result in results for event in result.missed]:
            add_missed(outbox, log, missed)
        if audits := [audit for result in results for audit in result.audits]:
            log.append(audits)
            outbox.remove([audit.number for audit in audits])
