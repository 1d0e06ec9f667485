"""Batching by event time: pure state machines that group records by when they happened, one value a key.

They do no input or output and have no clock; the same class runs in process, in a Spark stream and in a Spark job.
"""

from millstream.batching.batcher import Batcher
from millstream.batching.config import BatchConfig, ConflictCut, Late, Mode
from millstream.batching.errors import BatchingError, BoundBrokenError, ConfigError, FlushedError, SnapshotError
from millstream.batching.event import Event, EventBatch, Outcome, Reject
from millstream.batching.rulebook import Override, Rulebook

__all__ = [
    "BatchConfig",
    "Batcher",
    "BatchingError",
    "BoundBrokenError",
    "ConfigError",
    "ConflictCut",
    "Event",
    "EventBatch",
    "FlushedError",
    "Late",
    "Mode",
    "Outcome",
    "Override",
    "Reject",
    "Rulebook",
    "SnapshotError",
]
