"""The audit processor: what an audited change means for the audit log, the manifest, and the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.mill.manifest import ManifestEvent
from millstream.mill.notices.receivers import NewSpace, NoticeReceiver, NoticeSender
from millstream.mill.policies.repository import Policies
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import Audit, Duplicate, Notify, QueueName, Task
from millstream.stores.audit import CONTENT_CHANGES, AuditAction, AuditEvent, AuditOutbox
from millstream.stores.protocol import DEFAULT_MIMETYPE

DUPLICATED = frozenset(
    {
        AuditAction.ADD_CONTENT,
        AuditAction.COPY_CONTENT,
        AuditAction.SET_CONTENT_PROPERTIES,
        AuditAction.DELETE_CONTENT,
        AuditAction.DELETE_SPACE,
    }
)
"""Actions that are applied to the copies at once; a new, empty space is not (reference mill §1.7)."""


class AuditProcessor:
    """Takes :class:`Audit` tasks to their end. An event that is not in *outbox* any more was processed before.

    *policies* gives the policies as they are now. Tasks go to the high-priority queue, however long it is. With
    *notify* people are told of new spaces.
    """

    def __init__(self, outbox: AuditOutbox, policies: Callable[[], Policies], *, notify: bool = False) -> None:
        self._outbox, self._policies, self._notify = outbox, policies, notify

    def process(self, task: Audit, attempt: int) -> TaskResult:  # noqa: ARG002
        """The audit log's row, the manifest's row, and a task for each copy."""
        event = self._outbox.get([task.number]).get(task.number)
        return _processed(task) if event is None else self.result(event)

    def process_group(self, tasks: Sequence[Audit]) -> Sequence[TaskResult | None]:
        """All of them, with one look into the outbox."""
        events = self._outbox.get([task.number for task in tasks])
        found = [(task, events.get(task.number)) for task in tasks]
        return [_processed(task) if event is None else self.result(event) for task, event in found]

    def result(self, event: AuditEvent) -> TaskResult:
        """The result of the completed *event*."""
        found = self.result_of_all([event])
        summary = f"{event.action.value} {event.space}/{event.content_id}: {len(found.tasks)} tasks"
        return msgspec.structs.replace(found, summary=summary)

    def result_of_all(self, events: Sequence[AuditEvent]) -> TaskResult:
        """The result of the completed *events* together."""
        policies = self._policies() if events else Policies({})
        tasks = [task for event in events for task in _duplications(event, policies)]
        if self._notify:
            tasks += [
                (QueueName.AUDIT, Notify(event.account, event.store, event.space, event.user, event.at))
                for event in events
                if event.action == AuditAction.CREATE_SPACE
            ]
        recorded = tuple(one for event in events if (one := manifest_event(event)) is not None)
        summary = f"{len(events)} changes: {len(tasks)} tasks"
        return TaskResult(summary, events=recorded, tasks=tuple(tasks), audits=tuple(events))


class NotifyProcessor:
    """Processes :class:`Notify` tasks: each of *receivers* is notified, or the task fails. It is a separate task, so
    that a mail server never delays the audit log, the manifest or the copies.
    """

    def __init__(self, receivers: Sequence[NoticeReceiver]) -> None:
        self._sender = NoticeSender(receivers)

    def process(self, task: Notify, attempt: int) -> TaskResult:
        """Raises :class:`~millstream.mill.notices.receivers.NoticeError` if a receiver was not notified."""
        at = f"{datetime.fromtimestamp(task.at / MICROSECONDS, UTC):%Y-%m-%d %H:%M:%S} UTC"
        text = f"{task.user} made the space {task.space!r} in store {task.store!r} of {task.account!r} at {at}"
        notice = NewSpace(task.account, task.store, task.space, text)
        return TaskResult(f"{self._sender.tell(notice, attempt)} receivers notified of the space {task.space!r}")


def _processed(task: Audit) -> TaskResult:
    return TaskResult(f"audit event {task.number} was processed before")


def manifest_event(event: AuditEvent) -> ManifestEvent | None:
    """The change of the manifest by *event*; None if there is none."""
    if event.action not in CONTENT_CHANGES:
        return None
    return ManifestEvent(
        store=event.store,
        space=event.space,
        content_id=event.content_id,
        at=event.at,
        sha256=event.sha256,
        size=event.size or 0,
        mimetype=event.mimetype or DEFAULT_MIMETYPE,
        deleted=event.action == AuditAction.DELETE_CONTENT,
    )


def _duplications(event: AuditEvent, policies: Policies) -> Iterator[tuple[QueueName, Task]]:
    policy = policies.by_account.get(event.account)
    if policy is None or event.action not in DUPLICATED:
        return
    for pair in policy.lookup(event.space):
        if pair.source == event.store:
            task = Duplicate(pair.source, pair.destination, event.space, event.content_id)
            yield QueueName.DUPLICATION_HIGH, task
