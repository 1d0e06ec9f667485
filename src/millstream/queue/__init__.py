"""Work queues: tasks that are leased, and either done, retried, or dead with a cause.

:class:`WorkQueue` is the seam, :class:`LogWorkQueue` the embedded implementation on a log; :func:`recover` and
:class:`QueueView` look at such a queue without opening it, also while a process works on it. All implementations pass
:class:`millstream.testing.queues.WorkQueueConformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.queue.dead_letters import DeadLetterGroup, DeadLetters
    from millstream.queue.events import DamagedQueueError
    from millstream.queue.log_queue import LogWorkQueue, queue_log, queue_name, queues_on_logs
    from millstream.queue.protocol import (
        DeadTask,
        Depth,
        Lease,
        LeaseLostError,
        QueueError,
        QueueInputError,
        UnknownQueueError,
        WorkQueue,
    )
    from millstream.queue.snapshot import recover
    from millstream.queue.state import QueueState
    from millstream.queue.view import QueueView

__all__ = [
    "DamagedQueueError",
    "DeadLetterGroup",
    "DeadLetters",
    "DeadTask",
    "Depth",
    "Lease",
    "LeaseLostError",
    "LogWorkQueue",
    "QueueError",
    "QueueInputError",
    "QueueState",
    "QueueView",
    "UnknownQueueError",
    "WorkQueue",
    "queue_log",
    "queue_name",
    "queues_on_logs",
    "recover",
]

__getattr__ = lazy_names(__name__)
