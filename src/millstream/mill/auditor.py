"""The audit processor: what an audited change means for the audit log, the manifest, and the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.mill.manifest import Event
from millstream.mill.policy_repository import Policies
from millstream.mill.processor import Result
from millstream.mill.tasks import Audit, Duplicate, QueueName, Task
from millstream.stores.audit import AuditAction, AuditEvent, Outbox
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
"""What is brought to the copies at once; a new, empty space is not (reference mill §1.7)."""


class AuditProcessor:
    """Takes :class:`Audit` tasks to their end. An event that is not in *outbox* any more was processed before.

    *policies* gives the policies as they are now. Tasks go to the high-priority queue, however long it is.
    """

    def __init__(self, outbox: Outbox, policies: Callable[[], Policies]) -> None:
        self._outbox = outbox
        self._policies = policies

    def process(self, task: Audit, attempt: int) -> Result:  # noqa: ARG002
        """The audit log's row, the manifest's row, and a task for each copy."""
        event = self._outbox.get([task.number]).get(task.number)
        if event is None:
            return Result(f"audit event {task.number} was processed before")
        recorded = manifest_event(event)
        tasks = tuple(_duplications(event, self._policies()))
        return Result(
            f"{event.action.value} {event.space}/{event.content_id}: {len(tasks)} copies to bring in line",
            events=(recorded,) if recorded else (),
            tasks=tasks,
            audits=(event,),
        )


def manifest_event(event: AuditEvent) -> Event | None:
    """What *event* says to the manifest; None where the manifest has nothing of it."""
    if event.action not in (AuditAction.ADD_CONTENT, AuditAction.COPY_CONTENT, AuditAction.DELETE_CONTENT):
        return None
    return Event(
        event.store,
        event.space,
        event.content_id,
        event.at,
        event.sha256,
        event.size or 0,
        event.mimetype or DEFAULT_MIMETYPE,
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
