"""The work queues of a node: on its logs, or over a broker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from millstream.core.clock import MICROSECONDS
from millstream.mill.audit.audit_queue import AuditQueue, with_outbox
from millstream.mill.tasks import QueueName
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.logs import LogsPart
from millstream.node.stores import StoresPart
from millstream.queue import Depth, LogWorkQueue, WorkQueue, queue_log
from millstream.queue.database_queue import DatabaseWorkQueue
from millstream.queue.task_rows import queue_depths, queue_names


class QueuesPart:
    """Opens each work queue once. Thread-safe."""

    def __init__(self, context: NodeContext, databases: DatabasesPart, logs: LogsPart, stores: StoresPart) -> None:
        self._context = context
        self._databases = databases
        self._logs = logs
        self._stores = stores
        self._queues: dict[str, WorkQueue] = {}
        self._opening = threading.Lock()

    def open(self, name: str) -> WorkQueue:
        """The work queue *name*, opened once and kept."""
        with self._opening:
            if name not in self._queues:
                queue = self._on_broker(name) if self._context.settings.queue.broker else self._on_log(name)
                if name == QueueName.AUDIT:
                    queue = AuditQueue(queue, self._stores.outbox, self._context.clock)
                self._queues[name] = queue
            return self._queues[name]

    def is_open(self, name: str) -> bool:
        """Whether this process works on the queue *name*."""
        with self._opening:
            return name in self._queues

    def names_on_broker(self) -> Sequence[str]:
        """The names of the queues on the broker that the settings name."""
        names = queue_names(self._databases.at(self._context.settings.queue.database))
        prefix = self._prefix
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def depths_on_broker(self, names: Sequence[str]) -> Mapping[str, Depth]:
        """The depths of the queues *names* on the broker that the settings name, in two or three statements."""
        engine, prefix = self._databases.at(self._context.settings.queue.database), self._prefix
        found = queue_depths(engine, self._context.clock, [prefix + name for name in names])
        depths = {name.removeprefix(prefix): depth for name, depth in found.items()}
        if QueueName.AUDIT in depths:
            depths[QueueName.AUDIT] = with_outbox(depths[QueueName.AUDIT], self._stores.outbox)
        return depths

    def _on_log(self, name: str) -> WorkQueue:
        queue = LogWorkQueue(self._logs.store.log(queue_log(name)), clock=self._context.clock)
        self._context.resources.callback(queue.close)
        queue.reclaim()  # the workers of a node end with it, so earlier leases have no worker
        return queue

    def _on_broker(self, name: str) -> WorkQueue:
        from millstream.messaging.rocketmq_work_queue import SCHEME, RocketWorkQueue
        from millstream.queue.rabbitmq import ConnectionOptions, RabbitWorkQueue

        settings, clock = self._context.settings.queue, self._context.clock
        engine, known_as = self._databases.at(settings.database), self._prefix + name
        queue: DatabaseWorkQueue
        if settings.broker.startswith(SCHEME):
            queue = RocketWorkQueue(settings.broker, engine, known_as, clock)
        else:
            options = ConnectionOptions(
                publishers=settings.publisher_pool_size,
                retry_first=settings.reconnect_initial_interval / MICROSECONDS,
                retry_longest=settings.reconnect_max_interval / MICROSECONDS,
            )
            queue = RabbitWorkQueue(settings.broker, engine, known_as, clock, options=options)
        self._context.resources.callback(queue.close)
        return queue

    @property
    def _prefix(self) -> str:
        """The prefix of the names of queues at the broker; topics of RocketMQ may not contain dots."""
        return "millstream." if self._context.settings.queue.broker.startswith("amqp") else "millstream-"
