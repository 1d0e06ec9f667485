"""The desk: one node, and what the console and the interface for programs need to look at it and to act on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millstream.anchoring.journal_reading import JournalReader
from millstream.console_settings import ConsoleSettings
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.log import Log, LogSpec, Message
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.queue import Cause, DeadLetters, DeadTask, Depth, LogWorkQueue, QueueView, WorkQueue
from millstream.rest.access import Access
from millstream.rest.trail import Trail

if TYPE_CHECKING:
    from millstream.messaging.broker.room import Room
    from millstream.rest.watch import Watch

Result = TypeVar("Result")

QUEUE_PREFIX = "queue."
_ANSWER_SECONDS = 10.0


class UnknownQueueError(NotFoundError):
    """There is no such queue."""


class NoBrokerError(NotFoundError):
    """No broker runs in this node."""


class BrokerLink:
    """The broker that runs in this process, asked from other threads than that of its event *loop*."""

    def __init__(self, room: Callable[[], Room], loop: asyncio.AbstractEventLoop) -> None:
        self._room, self._loop = room, loop

    def ask(self, call: str, request: Any, kind: type[Result]) -> Result:
        """The answer of the call of this name (see :class:`~millstream.messaging.broker.admin.Admin`)."""
        from millstream.messaging.broker.remote import read_answer

        async def asked() -> bytes:
            return await self._room().admin.calls()[call](msgspec.json.encode(request))

        return read_answer(self._wait(asked()), kind)

    def publish(self, topic: str, message: Message) -> int:
        """Append *message* to a topic, as the broker does; its id."""

        async def published() -> int:
            (number,) = await self._room().core.publish(topic, [message])
            return number

        return int(self._wait(published()))

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_ANSWER_SECONDS)


class Queues:
    """The work queues of *node*: looked at without taking them, and taken only for as long as something is done."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._views: dict[str, QueueView] = {}

    def names(self) -> Sequence[str]:
        """Every queue that there is, and those of the mill, sorted."""
        if self._node.settings.queue.broker:
            found = set(self._node.broker_queues())
        else:
            logs = self._node.store.logs()
            found = {name.removeprefix(QUEUE_PREFIX) for name in logs if name.startswith(QUEUE_PREFIX)}
        return sorted(found | {name.value for name in QueueName})

    def depth(self, name: str) -> Depth:
        """How many tasks of the queue *name* stand where. Raises :class:`UnknownQueueError`."""
        view = self._view(name)
        return view.depth() if view else Depth(0, 0, 0, 0, exact=True, as_of=self._node.clock.now())

    def dead(self, name: str, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        """Up to *limit* dead tasks with ids above *after*, by id; with *cause* only those of that group."""
        view = self._view(name)
        return view.dead(limit=limit, after=after, cause=cause) if view else []

    def causes(self, name: str) -> Sequence[Cause]:
        """The dead tasks by cause, the largest group first."""
        view = self._view(name)
        return view.causes() if view else []

    def holder(self, name: str) -> str | None:
        """Who works on the queue; None where nobody does, or where many may."""
        with suppress(MillstreamError):
            return self._node.store.log(LogSpec(QUEUE_PREFIX + name), create=False).info().writer
        return None

    @contextmanager
    def taken(self, name: str) -> Iterator[WorkQueue]:
        """The queue *name*, to act on it. Raises the log's ``WriterBusyError`` where another process works on it."""
        self._require(name)
        if self._node.settings.queue.broker or self._node.has_open_queue(name):
            yield self._node.queue(name)
            return
        with LogWorkQueue(self._node.store.log(LogSpec(QUEUE_PREFIX + name)), self._node.clock) as queue:
            yield queue

    def _view(self, name: str) -> QueueView | _Direct | None:
        """How to look at the queue *name*; None where nothing was ever put on it."""
        self._require(name)
        if self._node.settings.queue.broker:
            return _Direct(self._node.queue(name))
        with self._lock:
            if name not in self._views:
                if QUEUE_PREFIX + name not in self._node.store.logs():
                    return None
                log = self._node.store.log(LogSpec(QUEUE_PREFIX + name), create=False)
                self._views[name] = QueueView(log, self._node.clock)
            return self._views[name]

    def _require(self, name: str) -> None:
        if name not in self.names():
            raise UnknownQueueError(f"there is no queue {name[:100]!r}")


class _Direct:
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

    def causes(self) -> Sequence[Cause]:
        return DeadLetters(self._queue.dead(limit=self.MOST)).causes


class Desk:
    """*node*, watched. *origins* says where each of its settings came from; *broker* is the one in this process."""

    def __init__(
        self, node: Node, *, origins: Mapping[str, str] | None = None, broker: BrokerLink | None = None
    ) -> None:
        self.node = node
        self.clock = node.clock
        self.origins = origins or {}
        self.broker = broker
        self.started_at = node.clock.now()
        node.prepare()
        self.access = Access(self.settings, node.folder, node.clock)
        self.trail = Trail(node.database, node.clock)
        self.queues = Queues(node)
        self.batches = JournalReader(node.database)
        self._timeline: tuple[int, Mapping[str, Sequence[tuple[int, int]]]] | None = None

    @property
    def settings(self) -> ConsoleSettings:
        """The settings of the console."""
        return self.node.settings.console

    @cached_property
    def watch(self) -> Watch:
        """The figures of the node as they were a moment ago."""
        from millstream.rest.watch import Watch

        return Watch(self)

    def timeline(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """How many batches begin when, by log: counted anew when batches were added since."""
        last = self.batches.last_number()
        if self._timeline is None or self._timeline[0] != last:
            self._timeline = last, self.batches.starts()
        return self._timeline[1]

    def log(self, name: str) -> Log:
        """The log *name*. Raises :class:`~millstream.log.LogNotFoundError`, :class:`~millstream.log.LogInputError`."""
        return self.node.store.log(LogSpec(name), create=False)

    def require_broker(self) -> BrokerLink:
        """The broker of this process. Raises :class:`NoBrokerError`."""
        if self.broker is None:
            raise NoBrokerError
        return self.broker
