"""The work queues of a node, for people to look at and to act on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from millstream.core.errors import MillstreamError
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.queue import (
    DeadLetterGroup,
    DeadLetters,
    DeadTask,
    Depth,
    LogWorkQueue,
    QueueView,
    UnknownQueueError,
    WorkQueue,
    queue_log,
    queues_on_logs,
)


class NodeQueues:
    """The work queues of *node*: looked at without taking them, and taken only for as long as something is done."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._views: dict[str, QueueView] = {}

    def names(self) -> Sequence[str]:
        """Every queue that there is, and those of the mill, sorted."""
        if self._node.settings.queue.broker:
            found = set(self._node.queues.names_on_broker())
        else:
            found = set(queues_on_logs(self._node.logs.store))
        return sorted(found | {name.value for name in QueueName})

    def depth(self, name: str) -> Depth:
        """The number of tasks of the queue *name* in each state. Raises :class:`UnknownQueueError`."""
        view = self._view(name)
        return (
            view.depth()
            if view
            else Depth(ready=0, leased=0, delayed=0, dead=0, exact=True, as_of=self._node.clock.now())
        )

    def depths(self) -> tuple[Mapping[str, Depth], Mapping[str, str]]:
        """The depths of all queues by name, and why those of other queues cannot be read."""
        if self._node.settings.queue.broker:
            return self._node.queues.depths_on_broker(self.names()), {}
        depths, unreadable = dict[str, Depth](), dict[str, str]()
        for name in self.names():
            try:
                depths[name] = self.depth(name)
            except MillstreamError as error:
                unreadable[name] = str(error)
        return depths, unreadable

    def former(self) -> Mapping[str, Depth]:
        """The depths of the mill's queues that are left on logs since before the node's queues were on a broker."""
        if not self._node.settings.queue.broker:
            return {}
        left = set(queues_on_logs(self._node.logs.store)).intersection(QueueName)
        return {name: self._view_of_log(name).depth() for name in sorted(left)}

    def dead(self, name: str, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id; with *cause* only those of that group."""
        view = self._view(name)
        return view.dead(limit=limit, after=after, cause=cause) if view else []

    def causes(self, name: str) -> Sequence[DeadLetterGroup]:
        """The dead tasks by cause, the largest group first."""
        view = self._view(name)
        return view.causes() if view else []

    def holder(self, name: str) -> str | None:
        """The worker of the queue; None if there is none, or may be many."""
        with suppress(MillstreamError):
            return self._node.logs.store.log(queue_log(name), create=False).current_writer
        return None

    @contextmanager
    def taken(self, name: str) -> Iterator[WorkQueue]:
        """The queue *name*, to act on it. Raises the log's ``WriterBusyError`` where another process works on it."""
        self._require(name)
        if self._node.settings.queue.broker or self._node.queues.is_open(name):
            yield self._node.queues.open(name)
            return
        with LogWorkQueue(self._node.logs.store.log(queue_log(name)), self._node.clock) as queue:
            yield queue

    def _view(self, name: str) -> QueueView | _SharedQueueView | None:
        """How to look at the queue *name*; None where nothing was ever put on it."""
        self._require(name)
        if self._node.settings.queue.broker:
            return _SharedQueueView(self._node.queues.open(name))
        if name not in self._views and name not in queues_on_logs(self._node.logs.store):
            return None
        return self._view_of_log(name)

    def _view_of_log(self, name: str) -> QueueView:
        with self._lock:
            if name not in self._views:
                log = self._node.logs.store.log(queue_log(name), create=False)
                self._views[name] = QueueView(log, self._node.clock)
            return self._views[name]

    def _require(self, name: str) -> None:
        if name not in self.names():
            raise UnknownQueueError(name)


class _SharedQueueView:
    """A queue that everybody may have open, looked at like one on a log."""

    MOST = 10_000
    """Dead tasks that are grouped; beyond that the groups speak of the first so many."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def depth(self) -> Depth:
        return self._queue.depth()

    def dead(self, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        found = self._queue.dead(limit=limit if cause is None else self.MOST, after=after)
        return DeadLetters(found).page(limit=limit, cause=cause)

    def causes(self) -> Sequence[DeadLetterGroup]:
        return DeadLetters(self._queue.dead(limit=self.MOST)).causes
