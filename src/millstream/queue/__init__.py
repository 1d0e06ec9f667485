"""Work queues: tasks that are leased, and either done, tried again, or dead with a cause.

:class:`WorkQueue` is the seam, :class:`LogWorkQueue` the embedded implementation on a log. All implementations pass
:class:`millstream.testing.queues.WorkQueueConformance`.
"""

from millstream.queue.events import DamagedQueueError
from millstream.queue.log_queue import LogWorkQueue
from millstream.queue.protocol import (
    DeadTask,
    Depth,
    Lease,
    LeaseLostError,
    QueueError,
    QueueInputError,
    WorkQueue,
)

__all__ = [
    "DamagedQueueError",
    "DeadTask",
    "Depth",
    "Lease",
    "LeaseLostError",
    "LogWorkQueue",
    "QueueError",
    "QueueInputError",
    "WorkQueue",
]
