"""Batching by event time: pure state machines that group records by when they happened, one value a key.

They do no input or output and have no clock; the same class runs in process, in a Spark stream and in a Spark job.
"""

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.batching.batch_config import BatchConfig, BatchingMode, ConflictCut, LatePolicy
    from millstream.batching.batcher import Batcher
    from millstream.batching.errors import BatchingError, BoundBrokenError, ConfigError, FlushedError, SnapshotError
    from millstream.batching.event import BatcherOutput, Event, EventBatch, Reject
    from millstream.batching.rulebook import Override, Rulebook

__all__ = [
    "BatchConfig",
    "Batcher",
    "BatcherOutput",
    "BatchingError",
    "BatchingMode",
    "BoundBrokenError",
    "ConfigError",
    "ConflictCut",
    "Event",
    "EventBatch",
    "FlushedError",
    "LatePolicy",
    "Override",
    "Reject",
    "Rulebook",
    "SnapshotError",
]

__getattr__ = lazy_names(__name__)
