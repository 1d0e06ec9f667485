"""Task processors: each executes the tasks of one kind, and returns the records to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from millstream.mill.errors import TaskError
from millstream.mill.manifest import CheckResult, ManifestEvent
from millstream.mill.tasks import QueueName, Task, decode_task
from millstream.stores.audit import AuditEvent


class TaskResult(msgspec.Struct, frozen=True, gc=False):
    """A processed task: ``summary`` for people, what is to be written, tasks to put on queues.

    Written are manifest events, check results, audited changes (to the audit log, out of the outbox), and events that
    the audit missed (into the outbox). With ``again`` the task is not settled: it goes back to the queue for that many
    seconds.
    """

    summary: str
    events: tuple[ManifestEvent, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    tasks: tuple[tuple[QueueName, Task], ...] = ()
    again: float | None = None
    audits: tuple[AuditEvent, ...] = ()
    missed: tuple[AuditEvent, ...] = ()


class Processor(Protocol):
    """Takes tasks of one kind to their end. Thread-safe; running a task twice does no harm."""

    def process(self, task: Any, attempt: int) -> TaskResult:
        """Do *task*, for the *attempt*-th time (1 is the first). Any error raised means that the attempt failed."""
        ...


@runtime_checkable
class GroupProcessor(Processor, Protocol):
    """A processor that can do several tasks together, in less time than one after the other."""

    def process_group(self, tasks: Sequence[Any]) -> Sequence[TaskResult | None]:
        """What each of *tasks*, of whatever attempt, came to; None for one that is to be done alone.

        Tasks that take long, and those with which anything is out of the ordinary, are done alone. An error raised here
        means that all of them are.
        """
        ...


class ProcessorRegistry:
    """Processors by the kind of task they take (the document's root task processor factory)."""

    def __init__(self, processors: Mapping[type[Any], Processor]) -> None:
        self._processors = dict(processors)
        self._grouped = {kind for kind, one in processors.items() if isinstance(one, GroupProcessor)}

    def process(self, task: Task, attempt: int) -> TaskResult:
        """Let the right processor do *task*. Raises :class:`TaskError` where no one takes this kind."""
        processor = self._processors.get(type(task))
        if processor is None:
            raise TaskError(f"no processor is registered for tasks of kind {type(task).__name__!r}")
        return processor.process(task, attempt)

    def is_grouped(self, body: bytes) -> bool:
        """Whether the task that *body* encodes may be done together with others of its kind."""
        try:
            return type(decode_task(body)) in self._grouped
        except TaskError:
            return False

    def process_group(self, tasks: Sequence[Task]) -> Sequence[TaskResult | None]:
        """What those of *tasks* came to that could be done together; None for those that are to be done alone."""
        results: dict[int, TaskResult | None] = {}
        for kind in dict.fromkeys(map(type, tasks)):
            processor = self._processors.get(kind)
            if isinstance(processor, GroupProcessor):
                numbers = [number for number, task in enumerate(tasks) if type(task) is kind]
                results |= dict(zip(numbers, processor.process_group([tasks[n] for n in numbers]), strict=True))
        return [results.get(number) for number in range(len(tasks))]
